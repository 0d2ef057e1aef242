"""A trained run, ready to be asked: what :func:`load_run` returns."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from arc_data.files import read_any
from arc_data.puzzles import build_puzzles
from arc_data.sources import hash_tasks
from arc_data.task import Task, parse_task
from eval.artifacts import LADDER_FILE
from eval.ladder import Ladder, ladder_tables
from eval.predictions import join
from eval.questions import list_questions
from eval.tables import format_html
from eval.task_answer import TaskAnswer, answer_task
from hrm_deeploop.device import DeviceName, choose_device
from hrm_deeploop.runs.checking import validate
from hrm_deeploop.runs.choices import DataPaths, EvaluateOptions
from hrm_deeploop.runs.config import RunConfig, load_config
from hrm_deeploop.runs.data import Data, load_data
from hrm_deeploop.runs.directory import METRICS_FILE, find_checkpoint
from hrm_deeploop.runs.evaluation import (
    EVALUATIONS,
    EvaluationResult,
    evaluate_run,
    load_predictor,
)
from hrm_deeploop.runs.metrics import read_metrics
from hrm_deeploop.runs.predict import Halting, Predictor, predict
from hrm_deeploop.runs.seen import Seen, trained_numbers

TaskLike = str | Path | Task | Mapping[str, Any]
"""An id, a file, a task, or an object with ``train`` and ``test`` as in ARC's files."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A run at one checkpoint.

    Example:
        >>> run = load_run("runs/demo/deeploop/seed0")  # doctest: +SKIP
        >>> run.predict("0d3d703e", votes=16).attempts[0].grid  # doctest: +SKIP
    """

    directory: Path
    config: RunConfig
    checkpoint: Path
    device: DeviceName = "auto"

    @property
    def step(self) -> int:
        """Optimiser steps that the checkpoint has trained."""
        return int(self.checkpoint.name.rpartition("_")[2])

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl."""
        return read_metrics(self.directory / METRICS_FILE)

    @property
    def ladder(self) -> Ladder | None:
        """The ladder of the checkpoint's evaluation, if there is one."""
        path = self.directory / EVALUATIONS / self.checkpoint.name / LADDER_FILE
        return Ladder.load(path) if path.is_file() else None

    @cached_property
    def data(self) -> Data:
        """The tasks that it trained on, and their puzzles."""
        return load_data(self.config, self.checkpoint)

    @property
    def _seen(self) -> Seen:
        assert self.data.seen is not None  # of a checkpoint
        return self.data.seen

    @cached_property
    def _predictor(self) -> Predictor:
        device = choose_device(self.device)
        return load_predictor(self.config, self.checkpoint, self.data, device)

    def predict(
        self,
        task: TaskLike,
        *,
        votes: int | None = None,
        halting: Halting = "fixed",
        untrained_row: bool = False,
    ) -> TaskAnswer:
        """Answer a task by vote.

        Args:
            task: an id, a task, a file, or an object with ``train`` and ``test``.
            votes: augmentations that vote; None: as the run is evaluated.
            halting: ``fixed`` runs all segments, ``act`` halts a row as in training.
            untrained_row: answer a task that the run has no rows for with the puzzle vector that
                training starts from. The answer's notes then say so.

        Raises:
            ValueError: if the run does not know the task, or it is no task, or does not fit.
        """
        config = self.config
        known = {own.id: number for number, own in enumerate(self.data.puzzles.tasks)}
        task = _read_task(task, {own.id: own for own in self.data.puzzles.tasks})
        votes = votes or config.evaluation.votes or config.data.num_aug + 1
        config.data.check_votes(votes, "votes")
        if task.max_side > config.data.canvas:
            raise ValueError(
                f"{task.id}: has a side of {task.max_side} cells, the run's canvas "
                f"{config.data.canvas}"
            )
        number = known.get(task.id)
        if number is not None and hash_tasks([self.data.puzzles.tasks[number]]) != hash_tasks(
            [task]
        ):
            number = None
        predictor, notes = self._predictor, ()
        trained = trained_numbers(task, set(self._seen.trained or ()))
        if trained:
            shown = ", ".join(map(str, trained))
            notes = (f"the run has trained on test pair {shown} of this task",)
        if number is not None:
            questions = list_questions(self.data.puzzles, [number], votes)
        elif untrained_row:
            puzzles = build_puzzles([task], num_aug=votes - 1, seed=config.data.seed)
            questions = list_questions(puzzles, [0], votes)
            predictor = _without_rows(predictor, config.model.puzzle_emb_ndim)
            notes += ("the run has no rows for this task; an untrained row answered",)
        else:
            raise ValueError(
                f"{task.id}: the run has no rows for it, of {len(known)} tasks that it trained "
                "on; untrained_row=True answers with an untrained one"
            )
        answers = [
            answers.predictions for answers in predict(predictor, questions, halting=halting)
        ]
        return answer_task(join(answers), notes)

    def evaluate(self, **choices: Any) -> EvaluationResult:
        """Predict, vote, score and write the files; ``choices`` are the keys of ``evaluate``."""
        values = {
            "run": str(self.directory),
            "checkpoint": self.step,
            "device": self.device,
            "data": {name: getattr(self.config.data, name) for name in DataPaths.model_fields},
            **choices,
        }
        result = evaluate_run(validate(EvaluateOptions, values))
        assert result is not None  # there are no ranks here
        return result

    def show(self) -> None:
        """Print what the run is, and its ladder if it was evaluated."""
        print(repr(self))
        if self.ladder is not None:
            self.ladder.show()

    def _repr_html_(self) -> str:
        ladder = self.ladder
        tables = "" if ladder is None else format_html(ladder_tables({"": ladder}))
        return f"<p>{repr(self).replace('<', '&lt;')}</p>{tables}"

    def __repr__(self) -> str:
        config, ladder = self.config, self.ladder
        at_2 = None if ladder is None or 2 not in ladder.all_tests else ladder.all_tests[2]
        score = "" if at_2 is None else f", all_tests at K=2 {100 * at_2:.2f} %"
        return (
            f"Run({self.directory}: {config.data.source}, {config.model.name}, "
            f"{config.scaling.rule}, step {self.step}{score})"
        )


def load_run(
    path: str | Path,
    *,
    checkpoint: str | int = "last",
    device: DeviceName = "auto",
    data: Mapping[str, Any] | None = None,
) -> Run:
    """Open a run's directory at a checkpoint: ``last``, ``best`` or a step.

    ``data`` says where the run's data lies now, if it was moved: ``{"folders": ["tasks"]}``.

    Raises:
        ValueError: if there is no run, no such checkpoint, or a plugin is missing.
    """
    directory = Path(path)
    config = load_config(directory).changed(run_dir=str(directory))
    if data is not None:
        paths: DataPaths = validate(DataPaths, dict(data))
        config = config.changed(data=paths.move(config.data))
    return Run(
        directory=directory,
        config=config,
        checkpoint=find_checkpoint(directory, checkpoint),
        device=device,
    )


def _read_task(given: TaskLike, known: Mapping[str, Task]) -> Task:
    """Find the task that is meant.

    Raises:
        ValueError: if it is none.
    """
    if isinstance(given, Task):
        return given
    if isinstance(given, Mapping):
        return parse_task("task", json.loads(json.dumps(dict(given))), "task")
    if isinstance(given, str) and given in known:
        return known[given]
    path = Path(given)
    if not path.is_file():
        raise ValueError(
            f"{given}: neither a file nor one of the {len(known)} tasks that the run trained on"
        )
    tasks = read_any(path)
    if len(tasks) != 1:
        raise ValueError(f"{path}: expected one task, got {len(tasks)}")
    return tasks[0]


def _without_rows(predictor: Predictor, ndim: int) -> Predictor:
    """Return a predictor whose every puzzle has the vector that training starts from: zeros."""

    def lookup(puzzle_ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(puzzle_ids), ndim, device=puzzle_ids.device)

    return replace(predictor, lookup=lookup)
