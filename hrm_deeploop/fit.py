"""The loop around the training step: progress, log, evaluation, checkpoints, orderly stops."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from hrm_deeploop.halting import Batch
from hrm_deeploop.stop_signals import StopSignals
from hrm_deeploop.trainer import Trainer

AGREE_EVERY = 10  # steps
Asked = Callable[[], bool]
"""Tells whether a signal has asked for an end."""
Report = Callable[[int, str], None]
"""Told how much is done, and what there is to say of it."""


@runtime_checkable
class RowLog(Protocol):
    """Where the rows of the log go."""

    def write(self, row: Mapping[str, float | int]) -> None:
        """Log one row; it must hold ``step``."""


def fit(
    trainer: Trainer,
    draw: Callable[[int], Sequence[Batch]],
    log: RowLog | None,
    *,
    until: int,
    log_every: int,
    checkpoint_every: int | None,
    save: Callable[[], None],
    eval_interval: int | None = None,
    evaluate: Callable[[Asked], dict[str, float] | None] | None = None,
    evaluate_first: bool = False,
    measure_every: int | None = None,
    measure: Callable[[], dict[str, float]] | None = None,
    report: Report = lambda step, note: None,
) -> int | None:
    """Train until step ``until``: log, evaluate and save on the way, save at the end.

    Args:
        draw: this rank's batch of a step on its device, a part for every length of sequence.
        log: of the main rank; None on the others.
        save: writes a checkpoint; called on every rank.
        evaluate: every ``eval_interval`` steps and at the end of the schedule; returns what to log,
            None if a signal ended it, and is called before the step's checkpoint is written.
        evaluate_first: the step that is gone on from was due, and a signal ended its evaluation.
        measure: every ``measure_every`` steps; called on the main rank, returns what to log.
        report: told after every step how many there have been, and what there is to say.

    Returns:
        The number of the signal that ended it early, or None.
    """
    clock, note = _Clock(), ""

    def scores_are_logged() -> bool:
        assert evaluate is not None
        with clock.measure("eval"):
            scores = evaluate(stop.is_asked)
        if scores is not None and log is not None:
            log.write({"step": trainer.step, **scores, "seconds/eval": clock.take("eval")})
        return scores is not None

    with StopSignals() as stop:
        if evaluate_first and not scores_are_logged():
            return trainer.ranks.agree(stop.received)
        while trainer.step < until:
            with clock.measure("data"):
                batch = draw(trainer.step)
            with clock.measure("step"):
                trainer.train_step(batch)
            step, is_end = trainer.step, trainer.step == trainer.total_steps
            if step % log_every == 0 or is_end:
                row = _log_row(trainer, clock)
                if log is not None:
                    log.write(row)
                note = _shown(row)
            report(step, note)
            if measure is not None and measure_every and step % measure_every == 0 and log:
                with clock.measure("alignment"):
                    found = measure()
                log.write({"step": step, **found, "seconds/alignment": clock.take("alignment")})
            due = eval_interval is not None and (step % eval_interval == 0 or is_end)
            is_whole = True  # nothing of the step is left to do
            if evaluate is not None and due:
                trainer.check_finite()
                is_whole = scores_are_logged()
            number = _agreed(trainer, stop.received, now=not is_whole)
            at_interval = checkpoint_every is not None and step % checkpoint_every == 0
            # What was evaluated is saved, so that the best step has a checkpoint.
            if at_interval or due or step == until or number is not None:
                with clock.measure("checkpoint"):
                    save()
            if number is not None and (step < until or not is_whole):
                return number
    return None


def _agreed(trainer: Trainer, number: int | None, *, now: bool) -> int | None:
    """The signal that any rank has received, so that all stop after the same step.

    Asking makes an accelerator wait, so several ranks on such do not ask every step, unless all
    know that it must be ``now``.
    """
    ranks = trainer.ranks
    if (
        not now
        and ranks.world_size > 1
        and ranks.device.type != "cpu"
        and trainer.step % AGREE_EVERY
    ):
        return None
    return ranks.agree(number)


class _Clock:
    """Adds up seconds by what they were spent on."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._name, self._started = "", 0.0

    def measure(self, name: str) -> "_Clock":
        self._name = name
        return self

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *_: object) -> None:
        spent = time.monotonic() - self._started
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + spent

    def take(self, name: str) -> float:
        """Seconds since the last call for ``name``."""
        return round(self._seconds.pop(name, 0.0), 4)


def _log_row(trainer: Trainer, clock: _Clock) -> dict[str, Any]:
    """One line of metrics.jsonl about the steps since the last one."""
    batch_size = trainer.config.global_batch_size
    num_steps = trainer.log_sums.num_steps
    with clock.measure("step"):  # an accelerator is waited for here
        means = trainer.log_sums.take(batch_size)
    seconds = {name: clock.take(name) for name in ("data", "step", "checkpoint")}
    return {
        "step": trainer.step,
        "train/examples_drawn": trainer.step * batch_size,
        "train/examples_finished": trainer.log_sums.num_finished,
        "train/lr": trainer.lr,
        "train/puzzle_emb_lr": trainer.puzzle_emb_lr,
        **{f"train/{name}": value for name, value in means.items()},
        # Of this process: a resumed one starts its first window anew.
        "train/rows_per_second": num_steps * batch_size / max(sum(seconds.values()), 1e-9),
        **{f"seconds/{name}": value for name, value in seconds.items()},
    }


def _shown(row: dict[str, Any]) -> str:
    """Say loss, exact accuracy, segments and rows per second of a row."""
    shown = [f"loss {row['train/lm_loss']:.3f}"]
    if "train/exact_accuracy" in row:
        shown.append(f"exact {row['train/exact_accuracy']:.1%}")
        shown.append(f"segments {row['train/segments']:.1f}")
    return ", ".join([*shown, f"{row['train/rows_per_second']:.0f} ex/s"])
