"""The loop around the training step: progress, log, evaluation, checkpoints, orderly stops."""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, Protocol, runtime_checkable

from hrm_deeploop.halting import Batch
from hrm_deeploop.trainer import Trainer

AGREE_EVERY = 10  # steps
Report = Callable[[int, str], None]
"""Told how much is done, and what there is to say of it."""


@runtime_checkable
class RowLog(Protocol):
    """Where the rows of the log go."""

    def write(self, row: Mapping[str, float | int]) -> None:
        """Log one row; it must hold ``step``."""


class StopSignals:
    """Turns the first SIGINT or SIGTERM into a request to stop after the step.

    Use as a context manager. A second one acts as it would have without us.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._receive)
        return self

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self.received = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def __exit__(self, *_: object) -> None:
        self._restore()


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
    evaluate: Callable[[], dict[str, float]] | None = None,
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
            and is called before the step's checkpoint is written.
        measure: every ``measure_every`` steps; called on the main rank, returns what to log.
        report: told after every step how many there have been, and what there is to say.

    Returns:
        The number of the signal that ended it early, or None.
    """
    clock, note = _Clock(), ""
    with StopSignals() as stop:
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
            if evaluate is not None and due:
                trainer.check_finite()
                with clock.measure("eval"):
                    scores = evaluate()
                if log is not None:
                    log.write({"step": step, **scores, "seconds/eval": clock.take("eval")})
            number = _agreed(trainer, stop.received)
            at_interval = checkpoint_every is not None and step % checkpoint_every == 0
            # What was evaluated is saved, so that the best step has a checkpoint.
            if at_interval or due or step == until or number is not None:
                with clock.measure("checkpoint"):
                    save()
            if number is not None and step < until:
                return number
    return None


def _agreed(trainer: Trainer, number: int | None) -> int | None:
    """The signal that any rank has received, so that all stop after the same step.

    Asking makes an accelerator wait, so several ranks on such do not ask every step.
    """
    ranks = trainer.ranks
    if ranks.world_size > 1 and ranks.device.type != "cpu" and trainer.step % AGREE_EVERY:
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
