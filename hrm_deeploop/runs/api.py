"""What a notebook calls: :func:`train`, :func:`evaluate` and :func:`compare`."""

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.comparison import Comparison
from hrm_deeploop.device import join_ranks, leave_ranks
from hrm_deeploop.runs.checking import validate
from hrm_deeploop.runs.comparison import plan_comparison
from hrm_deeploop.runs.compose import Composer
from hrm_deeploop.runs.config import RunConfig
from hrm_deeploop.runs.engines import StoppedError
from hrm_deeploop.runs.evaluation import EvaluationResult
from hrm_deeploop.runs.report import run_comparison
from hrm_deeploop.runs.run import Run, load_run
from hrm_deeploop.runs.training import train_run


def train(experiment: str | None = None, **values: Any) -> Run:
    """Train a run and return it.

    Args:
        experiment: a file of configs/experiment/; None: configs/train.yaml as it is.
        values: keys of a run: ``scaling="vanilla"``, ``optim={"lr": 1e-3}``, ``seed=1``.

    Raises:
        ValueError: if a value is not allowed, or the run's directory holds another run.
        KeyboardInterrupt: if it was interrupted; ``resume="auto"`` goes on.
    """
    composed = Composer("train", _experiment(experiment), values).values()
    composed.pop("output")
    config: RunConfig = validate(RunConfig, composed)
    ranks = join_ranks(config.device)
    stopped_by = train_run(config, ranks).stopped_by
    leave_ranks(ranks)
    _check_not_stopped(stopped_by)
    return load_run(config.run_dir, device=config.device)


def evaluate(run: Run | str | Path, **choices: Any) -> EvaluationResult:
    """Predict the evaluated tasks of a run, vote, score and write the files.

    Args:
        run: or its directory.
        choices: keys of ``hrm-deeploop evaluate``: ``votes=16``, ``halting="act"``.

    Raises:
        ValueError: if the run and the choices do not go together.
        KeyboardInterrupt: if it was interrupted; the same call goes on.
    """
    found = run if isinstance(run, Run) else load_run(run)
    try:
        return found.evaluate(**choices)
    except StoppedError as stopped:
        _check_not_stopped(stopped.number)
        raise


def compare(
    experiment: str | None = None,
    *,
    arms: Mapping[str, Mapping[str, Any]] | None = None,
    seeds: Sequence[int] | None = None,
    **values: Any,
) -> Comparison:
    """Train arms that differ in declared keys alone, evaluate them, and compare their votes.

    Args:
        experiment: a file of configs/experiment/.
        arms: the keys that each arm declares, by its name; None: vanilla and deeploop.
        seeds: of every arm; None: the run's.
        values: further keys of ``hrm-deeploop compare``: ``grid={"optim.lr": [1e-3, 2e-3]}``,
            ``run_dir="runs/mine"``, ``workers=1``, or of a run, the same for all arms.

    Raises:
        ValueError: if the arms are no comparison.
        KeyboardInterrupt: if it was interrupted; the same call goes on.
    """
    changes = dict(values) if seeds is None else {**values, "seeds": list(seeds)}
    composer = Composer("compare", _experiment(experiment), changes)
    own = None if arms is None else {name: dict(keys) for name, keys in arms.items()}
    try:
        return run_comparison(plan_comparison(composer, own))
    except StoppedError as stopped:
        _check_not_stopped(stopped.number)
        raise


def _experiment(name: str | None) -> list[str]:
    return [] if name is None else [f"experiment={name}"]


def _check_not_stopped(number: int | None) -> None:
    """Raise what a notebook raises when it is interrupted."""
    if number is not None:
        raise KeyboardInterrupt(f"stopped by {signal.Signals(number).name}; all is saved")
