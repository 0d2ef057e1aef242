"""One evaluation of a checkpoint: what is asked, what decides the answers, and the files."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from arc_data.sources import hash_tasks
from arc_data.task import Task
from eval.artifacts import PREDICTIONS_FILE, write_artifacts
from eval.ladder import Ladder, format_ladders
from eval.predictions import About, Predictions, load_predictions
from eval.questions import Window, list_questions
from eval.shards import Shards
from hrm_deeploop.device import Ranks, choose_dtype, join_ranks, leave_ranks
from hrm_deeploop.fit import Report
from hrm_deeploop.runs.build import build_network, build_table, load_table
from hrm_deeploop.runs.checkpoint import (
    DamagedCheckpointError,
    check_file,
    is_whole,
    list_checkpoints,
    load_into,
    read_digests,
    step_of,
)
from hrm_deeploop.runs.choices import Choices, EvaluateOptions
from hrm_deeploop.runs.config import RunConfig, load_config
from hrm_deeploop.runs.data import Data, by_reason, few, load_data
from hrm_deeploop.runs.directory import CHECKPOINTS, find_checkpoint
from hrm_deeploop.runs.engines import StoppedError
from hrm_deeploop.runs.locking import hold_directory
from hrm_deeploop.runs.predict import Predictor, change_puzzle_ids, predict
from hrm_deeploop.runs.progress import show_progress
from hrm_deeploop.runs.seen import trained_tests
from hrm_deeploop.stop_signals import StopSignals

log = logging.getLogger(__name__)

EVALUATIONS = "eval"


class EvaluationResult(NamedTuple):
    """What came of an evaluation: its files, and the ladder that they hold."""

    directory: Path
    ladder: Ladder
    name: str  # of the run

    def show(self) -> None:
        """Print the ladder."""
        print(format_ladders({self.name: self.ladder}))

    def _repr_html_(self) -> str:
        return self.ladder._repr_html_()


def evaluate_run(options: EvaluateOptions) -> EvaluationResult | None:
    """Predict, vote, score and write the files; None on all ranks but the main one.

    Raises:
        StoppedError: if a signal ended it early; the same call goes on.
        ValueError: if the run, the checkpoint and the choices do not go together, or another
            process makes the same evaluation.
    """
    run = Path(options.run)
    config = load_config(run)
    changes = {key: getattr(options, key) for key in ("new_puzzles", "attention")}
    config = config.changed(
        run_dir=options.run,
        data=options.data.move(config.data),
        evaluation=config.evaluation.changed(
            batch_size=options.batch_size or config.evaluation.batch_size
        ),
        **{key: value for key, value in changes.items() if value is not None},
    )
    ranks = join_ranks(options.device)
    # The main rank looks for all: a training may write another one meanwhile.
    checkpoint = ranks.from_main(lambda: find_checkpoint(run, options.checkpoint))
    out = None if options.out is None else Path(options.out)
    try:
        evaluation = Evaluation(config, checkpoint, ranks, options, out)
        with evaluation.held():
            stopped_by = evaluation.predict()
            leave_ranks(ranks)
            if stopped_by is not None:
                raise StoppedError(stopped_by)
            if not ranks.is_main:
                return None
            ladder = evaluation.results(options.attempts, run.name)
    except DamagedCheckpointError as error:
        raise ValueError(f"{error}{_whole_instead(run, checkpoint)}") from error
    return EvaluationResult(evaluation.directory, ladder, run.name)


def _whole_instead(run: Path, damaged: Path) -> str:
    """Say which checkpoint can be evaluated in place of a damaged one."""
    others = list(reversed(list_checkpoints(run / CHECKPOINTS).values()))
    for path in others:
        if path != damaged and is_whole(path):
            return f"; checkpoint={step_of(path)} is whole"
    return "; no other checkpoint is whole" if others else ""


class Evaluation:
    """One evaluation in progress, continued from what is on disk.

    Every rank must make one and call :meth:`predict`; the main rank alone then has the results.
    Both are for who holds the directory (:meth:`held`).

    Args:
        out: the directory of its files; None: a folder of the run's, named by the choices.

    Raises:
        ValueError: if the run, the checkpoint and the choices do not go together.
    """

    def __init__(
        self,
        config: RunConfig,
        checkpoint: Path,
        ranks: Ranks,
        choices: Choices,
        out: Path | None = None,
    ) -> None:
        self.config = config
        self.checkpoint = checkpoint
        self.ranks = ranks
        self.choices = choices
        self.weights = config.optim.predicting_weights
        self.data = load_data(config, checkpoint)
        self.window: Window = choices.window or config.window
        self.votes = choices.votes or config.evaluation.votes or config.data.num_aug + 1
        self.notes: list[str] = []  # what every output says of the evaluation
        self.questions = list_questions(self.data.puzzles, self._chosen_tasks(), self.votes)
        own = Path(config.run_dir) / EVALUATIONS / (checkpoint.name + choices.label)
        self.directory = own if out is None else out
        self.path = self.directory / PREDICTIONS_FILE
        self._check_bounds()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the directory of the files on the main rank.

        Raises:
            ValueError: if another process makes the same evaluation.
        """
        with ExitStack() as stack:
            self.ranks.from_main(lambda: self._hold(stack))
            yield

    def _hold(self, stack: ExitStack) -> None:
        stack.enter_context(hold_directory(self.directory, "evaluating", key="out"))

    def _chosen_tasks(self) -> list[int]:
        config, tasks = self.config, self.choices.tasks
        by_id = {self.data.puzzles.tasks[i].id: i for i in self.data.evaluated_indices}
        unusable = by_reason(self.data.collection.left_out_evaluated)
        num_wanted = len(by_id) + sum(map(len, unusable.values()))
        self.notes += [
            f"{len(ids)} of {num_wanted} evaluated tasks left out: {reason}"
            for reason, ids in unusable.items()
            if tasks is None
        ]
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
        chosen = list(dict.fromkeys(tasks or by_id))
        left_out = self._left_out(chosen)
        if len(left_out) == len(chosen):
            raise ValueError(
                f"{config.run_dir}: the run has trained on test pairs of every task that is to be "
                "evaluated; trained_pairs=score scores them, and says so"
            )
        return [by_id[task_id] for task_id in chosen if task_id not in left_out]

    def _left_out(self, chosen: Sequence[str]) -> set[str]:
        """Find the tasks that are not scored because a test pair of theirs has trained.

        Of the evaluated tasks, that is; notes say what was left out, and what is scored although
        it trained.
        """
        seen, config = self.data.seen, self.config
        assert seen is not None
        if seen.trained is None:
            self.notes.append("what trained is not known: test pairs may be among it")
            return set()
        trained = [pair for pair in trained_tests(seen, self.data.collection) if pair[0] in chosen]
        if not trained:
            return set()
        shown = few([f"{task_id} pair {number}" for task_id, number in trained])
        if self.choices.trained_pairs == "score" or config.data.leaks == "keep":
            self.notes.append(f"the run has trained on {len(trained)} of the test pairs: {shown}")
            return set()
        left_out = {task_id for task_id, _ in trained}
        self.notes.append(
            f"{len(left_out)} of {len(chosen)} evaluated tasks left out, the run has trained on "
            f"their test pairs: {shown}"
        )
        return left_out

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
        digests = read_digests(self.checkpoint).files
        names = [f"{stem}.safetensors" for stem in (self.weights, "puzzle_embedding")]
        for name in names:  # also where nothing is left to predict
            check_file(self.checkpoint, name)
        return About(
            notes=tuple(self.notes),
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
                "weights": [digests[name] for name in names],
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
                should_stop=stop.is_asked,
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
