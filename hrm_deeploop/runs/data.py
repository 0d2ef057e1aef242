"""The tasks of a run: read, checked for leaks and rendered once per process for equal data.

A comparison trains many runs on the same tasks, so what depends on the tasks alone is kept:
:func:`load_tasks` of an equal configuration returns the same object, as long as no file of the data
has changed.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from arc_data import sources
from arc_data.batches import BatchStream, MarkedGrids, mark_grids
from arc_data.config import DataConfig
from arc_data.files import LeftOut
from arc_data.leaks import TrainingSet, find_leaks, format_match, training_set
from arc_data.puzzles import (
    MatchedPuzzles,
    PuzzleSet,
    build_puzzles,
    match_puzzles,
    read_puzzles,
)
from arc_data.windows import WindowedStream
from hrm_deeploop.runs.checkpoint import DamagedCheckpointError, read_digests, read_text
from hrm_deeploop.runs.config import CONFIG_FILE, RunConfig
from hrm_deeploop.runs.seen import TASKS_FILE, Seen, describe_differences

PUZZLES_FILE = "puzzles.json"
NUM_KEPT = 4  # configurations of data whose tasks are kept

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tasks:
    """The tasks of a data configuration, and what follows from them alone."""

    config: DataConfig
    collection: sources.Collection

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 over the tasks' ids and grids in order, and which are evaluated."""
        return self.collection.content_hash

    @cached_property
    def puzzles(self) -> PuzzleSet:
        """The tasks under the augmentations that the configuration draws."""
        return build_puzzles(
            self.collection.tasks, num_aug=self.config.num_aug, seed=self.config.seed
        )

    @cached_property
    def training(self) -> TrainingSet:
        """The pairs that train, after the leak check; what the check finds is logged."""
        report = find_leaks(self.collection)
        if report.across:
            handled = {"exclude": "excluded", "keep": "kept"}
            log.warning(
                "data: %d training pairs are held-out pairs of another task, %s "
                "(hrm-deeploop data leaks lists them): %s",
                len(report.across),
                handled.get(self.config.leaks, "refused"),
                few([format_match(match) for match in report.across]),
            )
        return training_set(self.collection, report, self.config.leaks)

    @cached_property
    def grids(self) -> MarkedGrids:
        """The training pairs' grids, rendered under every move."""
        return mark_grids(self.training, self.config.canvas)


@dataclass(frozen=True, kw_only=True)
class Data:
    """The tasks of a run and their puzzles."""

    tasks: Tasks
    puzzles: PuzzleSet
    matched: MatchedPuzzles | None = None  # with a checkpoint's rows, if there is one
    seen: Seen | None = None  # what the run had seen at the checkpoint

    @property
    def collection(self) -> sources.Collection:
        return self.tasks.collection

    @property
    def evaluated_indices(self) -> list[int]:
        """Which of ``puzzles.tasks`` have their test pairs predicted."""
        evaluated = self.collection.evaluated
        return [i for i, task in enumerate(self.puzzles.tasks) if task.id in evaluated]


def load_tasks(config: DataConfig) -> Tasks:
    """Load the configured tasks, or return those that this process has loaded before.

    Raises:
        ValueError: if a file is not valid, an id or a source is unknown, or no task fits.
    """
    return _load_tasks(config.model_dump_json(), _stamp(config))


@lru_cache(maxsize=NUM_KEPT)
def _load_tasks(config_json: str, _: object) -> Tasks:
    config = DataConfig.model_validate_json(config_json)
    collection = sources.load(config)
    for reason, ids in by_reason(collection.left_out).items():
        log.warning("data: %d tasks left out, %s: %s", len(ids), reason, few(ids))
    return Tasks(config=config, collection=collection)


def _stamp(config: DataConfig) -> object:
    """Return what changes when a file of the data does: names, sizes and times."""
    files = [Path(name) for name in (config.challenges, config.solutions) if name is not None]
    for folder in (*config.folders, *config.extra_folders):
        files += sorted(Path(folder).rglob("*.json"))
    found = []
    for path in files:
        try:
            status = path.stat()
        except OSError:  # whoever reads it says what is wrong
            continue
        found.append((str(path), status.st_size, status.st_mtime_ns))
    return tuple(found)


def load_data(config: RunConfig, checkpoint: Path | None = None) -> Data:
    """Load the configured tasks; their puzzles are built, or matched by name with a checkpoint's.

    Raises:
        DamagedCheckpointError: if a file of the checkpoint is not what was written.
        ValueError: if the configuration is not that of the checkpoint, or the tasks differ from the
            run's and ``new_puzzles`` is ``refuse``.
    """
    if checkpoint is None:
        tasks = load_tasks(config.data)
        return Data(tasks=tasks, puzzles=tasks.puzzles)
    if read_digests(checkpoint).config != config.digest:
        raise ValueError(
            f"{Path(config.run_dir) / CONFIG_FILE}: not the configuration that {checkpoint.name} "
            "was trained with; the file is damaged or was edited, or the scaling rule has changed"
        )
    where = str(checkpoint / PUZZLES_FILE)
    texts = {name: read_text(checkpoint, name) for name in (PUZZLES_FILE, TASKS_FILE)}
    try:
        saved = read_puzzles(texts[PUZZLES_FILE], where)
        seen = Seen.from_json(texts[TASKS_FILE], str(checkpoint / TASKS_FILE))
    except ValueError as error:
        raise DamagedCheckpointError(str(error)) from error
    tasks = load_tasks(config.data)
    matched = match_puzzles(
        saved,
        tasks.collection.tasks,
        where,
        num_aug=config.data.num_aug,
        seed=config.data.seed,
        init=config.new_puzzles == "init",
    )
    differences = describe_differences(seen, tasks.collection)
    if differences is not None:
        if config.new_puzzles == "refuse":
            raise ValueError(
                f"{checkpoint}: the data is not what the run was trained on: {differences}; name "
                "where the run's data lies (data.folders=[...]), or new_puzzles=init takes what "
                "there is now"
            )
        log.warning("data: not what the run was trained on: %s", differences)
    if not matched.in_place:
        log.warning(
            "data: %s of %s puzzles have a row among the %s of %s; the others start at zero",
            f"{int((matched.rows >= 0).sum()):,}",
            f"{len(matched.rows):,}",
            f"{matched.num_saved:,}",
            checkpoint,
        )
    return Data(tasks=tasks, puzzles=matched.puzzles, matched=matched, seen=seen)


def build_stream(config: RunConfig, data: Data) -> BatchStream | WindowedStream:
    """Build the stream of training batches, after the leak check."""
    stream = _plain_stream(config, data, config.optim.global_batch_size)
    return WindowedStream(stream) if config.window == "task" else stream


def build_probe(config: RunConfig, data: Data, rows: int) -> BatchStream:
    """Build batches of ``rows`` training examples to measure a network on: whole canvases."""
    return _plain_stream(config, data, rows)


def _plain_stream(config: RunConfig, data: Data, global_batch_size: int) -> BatchStream:
    return BatchStream(
        data.puzzles,
        training=data.tasks.training,
        canvas=config.data.canvas,
        global_batch_size=global_batch_size,
        seed=config.seed,
        grids=data.tasks.grids,
    )


def by_reason(left_out: Sequence[LeftOut]) -> dict[str, list[str]]:
    """List the ids of tasks that can't be used, by the reason why."""
    found: dict[str, list[str]] = {}
    for entry in left_out:
        found.setdefault(entry.reason, []).append(entry.task_id)
    return found


def few(names: Sequence[str], most: int = 3) -> str:
    """Name the first of several, and that there are more."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
