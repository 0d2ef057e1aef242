"""One evaluation of a checkpoint: what is asked, what decides the answers, and the files."""

import logging
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field, PositiveInt

from arc_data.sources import hash_tasks
from arc_data.task import Task
from eval.artifacts import PREDICTIONS_FILE, write_artifacts
from eval.ladder import Ladder, format_ladders
from eval.predictions import About, Predictions, load_predictions
from eval.questions import Window, list_questions
from eval.shards import Shards
from hrm_deeploop.attention import AttentionName
from hrm_deeploop.config import StrictConfig
from hrm_deeploop.device import DeviceName, Ranks, choose_dtype, join_ranks, leave_ranks
from hrm_deeploop.fit import Report, StopSignals
from hrm_deeploop.runs.build import build_network, build_table, load_table
from hrm_deeploop.runs.checkpoint import hash_weights, load_into
from hrm_deeploop.runs.config import NewPuzzles, RunConfig, load_config
from hrm_deeploop.runs.data import Data, load_data
from hrm_deeploop.runs.directory import find_checkpoint
from hrm_deeploop.runs.engines import StoppedError
from hrm_deeploop.runs.predict import Halting, Predictor, PuzzleIds, change_puzzle_ids, predict
from hrm_deeploop.runs.progress import show_progress

log = logging.getLogger(__name__)

EVALUATIONS = "eval"


class Choices(StrictConfig):
    """What distinguishes an evaluation from the one that the run's configuration describes."""

    votes: PositiveInt | None = None  # augmentations of a test pair; None: as the run says
    tasks: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | None = None
    halting: Halting = "fixed"
    puzzle_ids: PuzzleIds = "correct"
    window: Window | None = None  # None: as the run trained
    segments: Annotated[tuple[PositiveInt, ...], Field(strict=False)] = ()  # rungs of a ladder

    @property
    def label(self) -> str:
        """These choices as part of a directory's name, so that no evaluation replaces another."""
        parts = [
            *(["act"] if self.halting == "act" else []),
            *([self.puzzle_ids] if self.puzzle_ids != "correct" else []),
            *([f"{self.window}-window"] if self.window is not None else []),
            *([f"votes{self.votes}"] if self.votes is not None else []),
        ]
        if self.segments:
            parts.append("segments" + "-".join(map(str, sorted(set(self.segments)))))
        if self.tasks is not None:
            digest = sha256(repr(sorted(set(self.tasks))).encode()).hexdigest()[:6]
            parts.append(f"tasks{len(set(self.tasks))}-{digest}")
        return "".join(f"-{part}" for part in parts)


class EvaluateOptions(Choices):
    """Keys of ``configs/evaluate.yaml``."""

    run: str
    checkpoint: int | str = "last"
    attempts: Annotated[tuple[PositiveInt, ...], Field(strict=False, min_length=1)] | None = None
    batch_size: PositiveInt | None = None
    new_puzzles: NewPuzzles | None = None
    attention: AttentionName | None = None
    device: DeviceName = "auto"


class EvaluationResult(NamedTuple):
    """What came of an evaluation: its files, and the ladder that they hold."""

    directory: Path
    ladder: Ladder

    def show(self) -> None:
        """Print the ladder."""
        print(format_ladders({self.directory.parent.parent.name: self.ladder}))

    def _repr_html_(self) -> str:
        return self.ladder._repr_html_()


def evaluate_run(options: EvaluateOptions) -> EvaluationResult | None:
    """Predict, vote, score and write the files; None on all ranks but the main one.

    Raises:
        StoppedError: if a signal ended it early; the same call goes on.
        ValueError: if the run, the checkpoint and the choices do not go together.
    """
    run = Path(options.run)
    config = load_config(run)
    changes = {key: getattr(options, key) for key in ("new_puzzles", "attention")}
    config = config.changed(
        run_dir=options.run,
        evaluation=config.evaluation.changed(
            batch_size=options.batch_size or config.evaluation.batch_size
        ),
        **{key: value for key, value in changes.items() if value is not None},
    )
    checkpoint = find_checkpoint(run, options.checkpoint)
    ranks = join_ranks(options.device)
    evaluation = Evaluation(config, checkpoint, ranks, options)
    stopped_by = evaluation.predict()
    leave_ranks(ranks)
    if stopped_by is not None:
        raise StoppedError(stopped_by)
    if not ranks.is_main:
        return None
    ladder = evaluation.results(options.attempts, run.name)
    return EvaluationResult(evaluation.directory, ladder)


class Evaluation:
    """One evaluation in progress, continued from what is on disk.

    Every rank must make one and call :meth:`predict`; the main rank alone then has the results.

    Raises:
        ValueError: if the run, the checkpoint and the choices do not go together.
    """

    def __init__(self, config: RunConfig, checkpoint: Path, ranks: Ranks, choices: Choices) -> None:
        self.config = config
        self.checkpoint = checkpoint
        self.ranks = ranks
        self.choices = choices
        self.weights = config.optim.predicting_weights
        self.data = load_data(config, checkpoint)
        self.window: Window = choices.window or config.window
        self.votes = choices.votes or config.evaluation.votes or config.data.num_aug + 1
        self.questions = list_questions(self.data.puzzles, self._chosen_tasks(), self.votes)
        self.directory = Path(config.run_dir) / EVALUATIONS / (checkpoint.name + choices.label)
        self.path = self.directory / PREDICTIONS_FILE
        self._check_bounds()

    def _chosen_tasks(self) -> list[int]:
        config, tasks = self.config, self.choices.tasks
        by_id = {self.data.puzzles.tasks[i].id: i for i in self.data.evaluated_indices}
        if not by_id:
            raise ValueError(
                f"{config.run_dir}: no task is evaluated with data.evaluate="
                f"{config.data.evaluate}; train with another choice"
            )
        unknown = [task_id for task_id in tasks or () if task_id not in by_id]
        if unknown:
            raise ValueError(
                f"tasks={','.join(unknown)}: not among the {len(by_id)} evaluated tasks of the run"
            )
        return [by_id[task_id] for task_id in dict.fromkeys(tasks or by_id)]

    def _check_bounds(self) -> None:
        max_steps = self.config.model.halt_max_steps
        self.config.data.check_votes(self.votes, "votes")
        if self.choices.puzzle_ids == "shuffled" and len(self.questions.evaluated) < 2:
            raise ValueError("puzzle_ids=shuffled needs at least two evaluated tasks")
        if max(self.choices.segments, default=1) > max_steps:
            raise ValueError(
                f"segments={list(self.choices.segments)}: allowed are 1 to {max_steps}, the run's "
                "model.halt_max_steps"
            )

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks that are predicted."""
        return tuple(self.questions.puzzles.tasks[t] for t in self.questions.evaluated)

    @cached_property
    def about(self) -> About:
        """What the predictions file says of itself.

        Equal keys mean equal answers, but for rounding.
        """
        config, choices, max_steps = self.config, self.choices, self.config.model.halt_max_steps
        return About(
            facts={
                "run": config.run_dir,
                "evaluation": self.directory.name,
                "data": config.data.source,
                "evaluated tasks": len(self.tasks),
                "scaling": config.scaling.rule,
                "gradient": config.gradient,
                **config.kind.facts(config.model),
                **{key: str(choice) for key, choice in config.transitions.items()},
                "learning rate": config.optim.lr,
                "seed": config.seed,
                "votes A": self.votes,
                "halting": f"{choices.halting}, at most {max_steps} segments",
                "window": self.window,
                "puzzle ids": choices.puzzle_ids,
                "predictions": len(self.questions),
            },
            key={
                "weights": hash_weights(self.checkpoint, (self.weights, "puzzle_embedding")),
                "model": config.model.model_dump(mode="json"),
                **{key: choice.model_dump() for key, choice in config.transitions.items()},
                "gains": [[m, *gain] for m, layers in config.gains.items() for gain in layers],
                "gradient": config.gradient,
                "dtype": str(choose_dtype(config.dtype, self.ranks.device)),
                "canvas": config.data.canvas,
                "tasks": hash_tasks(self.tasks),
                "puzzles": self.questions.puzzles.content_hash,
                "votes": self.votes,
                "halting": choices.halting,
                "window": self.window,
                "segments": list(self.limits),
                "puzzle_ids": choices.puzzle_ids,
            },
        )

    @property
    def limits(self) -> tuple[int, ...]:
        """The segments after which an answer is recorded beside the last."""
        return tuple(sorted({*self.choices.segments} - {self.config.model.halt_max_steps}))

    def predict(self, report: Report | None = None) -> int | None:
        """Predict what is not on disk yet; the number of the signal that ended it early, or None.

        What was predicted until then is kept, and found by the next evaluation with equal choices.
        ``report`` is told how many rows have answered; without it a progress bar is shown.
        """
        ranks = self.ranks
        if ranks.any(ranks.is_main and self._finished() is not None):
            if ranks.is_main:
                log.warning("%s: complete, not predicted again", self.path)
            return None
        parts = Shards(self.path, self.about.key, rank=ranks.rank)
        if ranks.is_main and parts.open():
            log.warning("%s: of other weights or choices, begun anew", parts.folder)
        ranks.barrier()
        answered = parts.answered(len(self.questions))
        ranks.barrier()  # everybody has looked before anybody writes
        stopped_by = ranks.agree(self._predict_others(parts, answered, report))
        if stopped_by is not None:
            return stopped_by
        if ranks.is_main:
            parts.finish(self.tasks, self.about, len(self.questions)).save(self.path)
            parts.close()
        ranks.barrier()
        return None

    def _finished(self) -> Predictions | None:
        """The predictions on disk, if they are those that are asked for."""
        if not self.path.is_file():
            return None
        try:
            found = load_predictions(self.path)
        except ValueError as error:
            log.warning("%s; predicting anew", error)
            return None
        if found.about.key != self.about.key:
            log.warning("%s: of other weights or choices, predicting anew", self.path)
            return None
        return found

    def _predict_others(self, parts: Shards, answered: Any, report: Report | None) -> int | None:
        """Predict this rank's share of the rows without an answer."""
        ranks = self.ranks
        mine = (~answered).nonzero()[0][ranks.rank :: ranks.world_size]
        predictor = self.load()
        done = int(answered.sum()) if ranks.is_main else 0
        title = f"predict {Path(self.config.run_dir).name}"
        with (
            StopSignals() as stop,
            show_progress(
                title, "grid", total=done + len(mine), done=done, ranks=ranks, report=report
            ) as told,
        ):
            for answers in predict(
                predictor,
                self.questions.take(mine),
                halting=self.choices.halting,
                limits=self.limits,
                should_stop=lambda: stop.received is not None,
            ):
                parts.add(answers._replace(number=mine[answers.number]))
                done += int(answers.predictions.final.sum())
                told(done, "")
            parts.write()
        return stop.received

    def load(self) -> Predictor:
        """Load the checkpoint's network, ready to be asked."""
        predictor = load_predictor(self.config, self.checkpoint, self.data, self.ranks.device)
        lookup = change_puzzle_ids(
            predictor.lookup, self.questions, self.choices.puzzle_ids, seed=self.config.data.seed
        )
        return replace(predictor, lookup=lookup, window=self.window)

    def results(self, attempts: tuple[int, ...] | None, name: str) -> Ladder:
        """Vote, score and write the files of the evaluation; returns the ladder."""
        return write_artifacts(
            self.directory,
            load_predictions(self.path),
            attempts=attempts or self.config.evaluation.attempts,
            name=name,
        )


def load_predictor(
    config: RunConfig, checkpoint: Path, data: Data, device: torch.device
) -> Predictor:
    """Load a checkpoint's network and puzzle table, ready to be asked about ``data``."""
    network = build_network(config, device).eval()
    load_into(network, checkpoint, config.optim.predicting_weights)
    table = build_table(config, data.puzzles, device)
    load_table(table, data, checkpoint)
    return Predictor(
        network=network,
        lookup=table.lookup,
        canvas=config.data.canvas,
        batch_size=config.evaluation.batch_size,
        device=device,
        window=config.window,
    )
