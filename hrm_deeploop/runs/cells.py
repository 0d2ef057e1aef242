"""Cells of a comparison: one training run each, what came of it, and where that is kept.

A cell is an arm at a point of the grid with a seed. ``cell.json`` in its run directory holds its
numbers, so that a finished cell is read and not run again.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from eval.compare import flatten
from eval.comparison import CellResult, CellTest, Status, ValidationScores
from eval.predictions import load_predictions
from eval.score import truth_ranks
from eval.vote import count_ballots
from hrm_deeploop.device import Ranks
from hrm_deeploop.finite import NonFiniteError
from hrm_deeploop.fit import Report as Told
from hrm_deeploop.runs.choices import Choices
from hrm_deeploop.runs.config import DATA_PATHS, RESUMABLE_KEYS, RunConfig
from hrm_deeploop.runs.costs import run_costs
from hrm_deeploop.runs.data import load_data, load_tasks
from hrm_deeploop.runs.directory import METRICS_FILE
from hrm_deeploop.runs.engines import Progress, Report, StoppedError
from hrm_deeploop.runs.evaluation import Evaluation, load_predictor
from hrm_deeploop.runs.metrics import read_metrics
from hrm_deeploop.runs.training import train_run
from hrm_deeploop.runs.validation import validate_network

CELL_FILE = "cell.json"
FINAL_SHARE = 0.1  # of a run's log rows, whose mean is its final training loss
LEARNT_BELOW = 0.5  # of the first logged loss

TRAINED: Status = "trained"
DIVERGED: Status = "diverged"
NOT_LEARNING: Status = "not learning"


log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a comparison."""

    arm: str
    point: Mapping[str, Any]  # keys of the grid and their values
    config: RunConfig

    @property
    def directory(self) -> Path:
        return Path(self.config.run_dir)

    @property
    def title(self) -> str:
        return f"{self.arm} {self.directory.name}"


def cell_name(point: Mapping[str, Any], seed: int) -> str:
    """``lr0.001-seed0``: the last part of each key of the grid, its value, and the seed."""
    parts = [f"{key.rpartition('.')[2]}{value}" for key, value in point.items()]
    return "-".join([*parts, f"seed{seed}"])


def is_finished(found: CellResult | None, *, test: bool) -> bool:
    """Tell whether nothing is left to do for a cell of which this is known."""
    return found is not None and bool(found.test is not None or not test or found.failure)


def run_cell(cell: Cell, ranks: Ranks, *, test: bool, report: Report | None = None) -> None:
    """Train and validate a cell, and evaluate it with ``test``; cell.json has what came of it.

    A cell that was stopped goes on where it was. ``report`` is told of every step and prediction;
    without it progress bars are shown.

    Raises:
        StoppedError: if a signal came.
    """
    config, costs = cell.config, run_costs(cell.config)
    facts: dict[str, Any] = dict(
        arm=cell.arm,
        point=dict(cell.point),
        seed=config.seed,
        key=_key(config),
        run_dir=config.run_dir,
        **costs._asdict(),
    )

    def tell(total: int, unit: str) -> Told | None:
        if report is None:
            return None
        listener = report
        return lambda done, note: listener(Progress(done, total, f"{unit} {note}".strip()))

    def keep(
        *,
        failure: str | None = None,
        validation: ValidationScores | None = None,
        tested: CellTest | None = None,
    ) -> None:
        result = CellResult(
            **facts,
            **_training(cell, costs.steps),
            validation=validation,
            test=tested,
            failure=failure,
        )
        cell.directory.mkdir(parents=True, exist_ok=True)
        result.save(cell.directory / CELL_FILE)

    try:
        checkpoint, stopped_by = train_run(config, ranks, tell(costs.steps, "step"))
    except NonFiniteError as error:
        log.warning("%s: %s", cell.title, error)
        keep(failure=str(error))
        return
    if stopped_by is not None:
        raise StoppedError(stopped_by)
    validation = None
    if config.data.validation:
        data = load_data(config, checkpoint)
        validation = validate_network(
            load_predictor(config, checkpoint, data, ranks.device),
            data,
            config.evaluation.validation_votes,
            ranks,
        )
    keep(validation=validation, tested=_test(cell, checkpoint, ranks, tell) if test else None)


def _test(
    cell: Cell, checkpoint: Path, ranks: Ranks, tell: Callable[[int, str], Told | None]
) -> CellTest:
    """Evaluate a cell on its test pairs."""
    evaluation = Evaluation(cell.config, checkpoint, ranks, Choices())
    with evaluation.held():
        stopped_by = evaluation.predict(tell(len(evaluation.questions), "predict"))
        if stopped_by is not None:
            raise StoppedError(stopped_by)
        ladder = evaluation.results(None, cell.title)
    ballots = count_ballots(load_predictions(evaluation.path))
    return CellTest(
        directory=str(evaluation.directory.relative_to(cell.directory)),
        ladder=ladder,
        truth_ranks=truth_ranks(ballots, ballots.rank()),
    )


def read_cell(cell: Cell) -> CellResult | None:
    """Read what is known of a cell; None if nothing is, or if it was another configuration's."""
    path = cell.directory / CELL_FILE
    if not path.is_file():
        return None
    try:
        found = CellResult.load(path)
    except ValueError as error:
        log.warning("%s; it is run again", error)
        return None
    if found.key != _key(cell.config):
        return None
    return found.model_copy(update={"run_dir": cell.config.run_dir})  # it may have been moved


def _key(config: RunConfig) -> str:
    """What decides the numbers of a cell."""
    values = flatten(config.model_dump(mode="json"))
    kept = {key: value for key, value in values.items() if key not in RESUMABLE_KEYS}
    kept["attention"] = config.attention  # resumable, but they decide numbers
    if any(values[key] for key in DATA_PATHS):  # wherever it lies
        kept["data"] = load_tasks(config.data).content_hash
    kept["gains"] = config.gains  # a rule of the user's may have been changed since
    for name in ("votes", "attempts", "validation_votes"):
        kept[f"evaluation.{name}"] = getattr(config.evaluation, name)
    return sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _training(cell: Cell, steps: int) -> dict[str, Any]:
    """Read status, losses and time of a cell's training from its log."""
    rows = read_metrics(cell.directory / METRICS_FILE)
    losses = [row["train/lm_loss"] for row in rows if "train/lm_loss" in row]
    seconds = sum(row.get("seconds/step", 0.0) + row.get("seconds/data", 0.0) for row in rows)
    if not losses:
        nothing = {"train_loss": None, "first_train_loss": None}
        return {"status": DIVERGED, **nothing, "seconds": seconds}
    last = losses[-max(1, round(FINAL_SHARE * len(losses))) :]
    final = sum(last) / len(last)
    status: Status = TRAINED if final < LEARNT_BELOW * losses[0] else NOT_LEARNING
    return {
        "status": status if rows[-1]["step"] >= steps else DIVERGED,
        "train_loss": final,
        "first_train_loss": losses[0],
        "seconds": seconds,
    }
