"""Look at and check data: problems of files, leaks and numbers of a collection, one task."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field
from rich.console import Console
from rich.table import Table
from rich.text import Text

from arc_data import sources
from arc_data.augment import Augmentation
from arc_data.config import DataConfig
from arc_data.files import read_any
from arc_data.leaks import LeakReport, find_leaks, format_match, training_set
from arc_data.puzzles import build_puzzles
from arc_data.stats import CollectionStats, collection_stats
from arc_data.task import InvalidDataError, Pair, Task
from eval.plots import plot_task
from eval.views import grid_text
from hrm_deeploop.config import StrictConfig


class DataOptions(StrictConfig):
    """Keys of ``configs/data_command.yaml``."""

    data: DataConfig
    puzzle: int = Field(ge=0)
    save: str | None


@dataclass(frozen=True, kw_only=True)
class PathCheck:
    """What is wrong with folders or files, a line a problem, and the tasks of those without."""

    problems: tuple[str, ...]
    num_tasks: int

    def to_json(self) -> dict[str, Any]:
        """Return the content as plain containers."""
        return {"problems": list(self.problems), "num_tasks": self.num_tasks}

    def __str__(self) -> str:
        count = len(self.problems)
        end = f"{count} problems" if count else f"{self.num_tasks} tasks, no problem"
        return "\n".join([*(" ".join(problem.split()) for problem in self.problems), end])

    def show(self) -> None:
        """Print every problem, and how many there are."""
        print(self)


def check_paths(paths: Sequence[Path]) -> PathCheck:
    """Read folders or files, and list every problem."""
    num_tasks, problems = 0, []
    for path in paths:
        try:
            num_tasks += len(read_any(path))
        except InvalidDataError as error:
            problems.extend(error.problems)
    return PathCheck(problems=tuple(problems), num_tasks=num_tasks)


@dataclass(frozen=True, kw_only=True)
class CollectionLeaks:
    """What :func:`~arc_data.leaks.find_leaks` finds in a collection."""

    name: str
    num_tasks: int
    num_evaluated_tasks: int
    num_held_out_pairs: int
    report: LeakReport

    def to_json(self) -> dict[str, Any]:
        """Return the content as plain containers, without the collection's name."""
        return {
            "num_tasks": self.num_tasks,
            "num_evaluated_tasks": self.num_evaluated_tasks,
            "num_held_out_pairs": self.num_held_out_pairs,
            "across": list(map(format_match, self.report.across)),
            "within": list(map(format_match, self.report.within)),
            "equal_tasks": [list(ids) for ids in self.report.equal_tasks],
            "repeated_ids": list(self.report.repeated_ids),
        }

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.num_tasks} tasks, {self.num_evaluated_tasks} of them evaluated "
            f"with {self.num_held_out_pairs} held-out test pairs"
        ]
        for title, found in (
            (
                "held-out pairs among another task's training pairs (leaks)",
                map(format_match, self.report.across),
            ),
            (
                "held-out pairs among the task's own demonstrations (kept)",
                map(format_match, self.report.within),
            ),
            ("equal tasks under several ids", map(" ".join, self.report.equal_tasks)),
            ("tasks left out, an earlier source has the id", self.report.repeated_ids),
        ):
            entries = list(found)
            lines += ["", f"{title}: {len(entries)}", *(f"  {entry}" for entry in entries)]
        return "\n".join(lines)

    def show(self) -> None:
        """Print what was found, by kind."""
        print(self)


def leaks_of(config: DataConfig) -> CollectionLeaks:
    """Find the held-out pairs of a collection that would train, and what repeats in it."""
    collection = sources.load(config)
    return CollectionLeaks(
        name=collection.name,
        num_tasks=len(collection.tasks),
        num_evaluated_tasks=len(collection.evaluated),
        num_held_out_pairs=sum(len(task.test) for task in collection.evaluated_tasks),
        report=find_leaks(collection),
    )


def stats_of(config: DataConfig) -> CollectionStats:
    """Count what a collection holds and trains."""
    collection = sources.load(config)
    training = training_set(collection, find_leaks(collection), config.leaks)
    puzzles = build_puzzles(collection.tasks, num_aug=config.num_aug, seed=config.seed)
    return collection_stats(collection, training, puzzles, canvas=config.canvas)


@dataclass(frozen=True, kw_only=True)
class TaskView:
    """A task as one of its puzzles: under an augmentation."""

    task: Task
    augmentation: Augmentation

    def to_json(self) -> dict[str, Any]:
        """Return the augmented grids as lists; None is an output that is not known."""
        return {
            "id": self.task.id,
            "split": self.task.split,
            "augmentation": {
                "dihedral": self.augmentation.dihedral,
                "colors": list(self.augmentation.colors),
            },
            **{name: [self._pair(pair) for pair in pairs] for name, pairs in self._pairs()},
        }

    def _pair(self, pair: Pair) -> dict[str, list[list[int]] | None]:
        output = None if pair.output is None else self.augmentation.apply(pair.output).tolist()
        return {"input": self.augmentation.apply(pair.input).tolist(), "output": output}

    def _pairs(self) -> tuple[tuple[str, tuple[Pair, ...]], ...]:
        return ("train", self.task.train), ("test", self.task.test)

    def __str__(self) -> str:
        return f"{self.task.id} ({self.task.split})"

    def show(self) -> None:
        """Print the pairs in color, a row a pair."""
        # As Text: an id may hold brackets, which a string's markup would swallow.
        table = Table("pair", "input", "output", title=Text(str(self)), show_lines=True)
        for name, pairs in self._pairs():
            for number, pair in enumerate(pairs):
                output = pair.output
                table.add_row(
                    f"{name} {number}",
                    grid_text(self.augmentation.apply(pair.input)),
                    "not known" if output is None else grid_text(self.augmentation.apply(output)),
                )
        Console().print(table)


def view_task(options: DataOptions, task_id: str) -> TaskView:
    """Take a task under the augmentation that is asked for, and save a picture if one is.

    Raises:
        ValueError: if there is no such task, or it has no such puzzle.
    """
    collection = sources.load(options.data)
    sources.check_known([task_id], collection.tasks, "show", collection.name)
    task = next(task for task in collection.tasks if task.id == task_id)
    puzzles = build_puzzles([task], num_aug=options.data.num_aug, seed=options.data.seed)
    if options.puzzle >= len(puzzles):
        raise ValueError(f"puzzle={options.puzzle}: {task_id} has puzzles 0 to {len(puzzles) - 1}")
    augmentation = puzzles.augmentation(options.puzzle)
    if options.save is not None:
        plot_task(task, augmentation, Path(options.save))
    return TaskView(task=task, augmentation=augmentation)
