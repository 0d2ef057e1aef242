"""Leak check: does a held-out pair occur among the training pairs, up to augmentation?

Held out are the test pairs of evaluated tasks, and the demonstrations that validate a training.

Two pairs have the same content if a dihedral move and a color permutation that keeps black turn one
into the other. Each pair has a canonical key, so one dictionary answers for all. A test pair whose
output is not known is compared by its input.

Across tasks such a pair is a leak. Within a task, where a held-out pair is a symmetric copy of a
demonstration, it is ARC's own doing: reported, never removed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from arc_data.augment import NUM_DIHEDRAL, move_grid
from arc_data.config import LeakPolicy
from arc_data.grid import NUM_COLORS, Grid
from arc_data.sources import Collection
from arc_data.task import Pair, PlacedPair, Task

Key = bytes


def canonical_key(grids: Sequence[Grid]) -> Key:
    """Equal for two lists of grids if one augmentation turns one list into the other."""
    return sha256(min(_renamed(grids, move) for move in range(NUM_DIHEDRAL))).digest()


def _renamed(grids: Sequence[Grid], move: int) -> bytes:
    """Shapes and cells after ``move``, with colors numbered in the order in which they appear."""
    moved = [move_grid(grid, move) for grid in grids]
    # A zero in front makes black the first color, so that it keeps its number.
    cells = np.concatenate([np.zeros(1, np.uint8), *(grid.reshape(-1) for grid in moved)])
    colors, first = np.unique(cells, return_index=True)
    table = np.zeros(NUM_COLORS, dtype=np.uint8)
    table[colors[np.argsort(first)]] = np.arange(len(colors))
    return bytes(side for grid in moved for side in grid.shape) + table[cells].tobytes()


class Match(NamedTuple):
    """A held-out pair, and a training pair with the same content."""

    held_out: PlacedPair
    found: PlacedPair
    by_input: bool  # the test output is not known, the inputs are equal

    @property
    def is_within(self) -> bool:
        """Whether both are of one task."""
        return self.held_out.task_id == self.found.task_id


@dataclass(frozen=True, kw_only=True)
class LeakReport:
    """What was found in a collection."""

    across: tuple[Match, ...]  # in another task: leaks
    within: tuple[Match, ...]  # among the task's own demonstrations
    equal_tasks: tuple[tuple[str, ...], ...]  # ids of tasks with the same set of pairs
    repeated_ids: tuple[str, ...]  # tasks left out because an earlier source has their id


def find_leaks(collection: Collection) -> LeakReport:
    """Compare every held-out pair with every training pair."""
    placed = [
        place
        for task in collection.tasks
        for place in task.training_pairs(evaluated=task.id in collection.evaluated)
    ]
    by_pair: dict[Key, list[PlacedPair]] = {}
    by_input: dict[Key, list[PlacedPair]] = {}
    held_out = [
        PlacedPair(task.id, "test", i, pair)
        for task in collection.evaluated_tasks
        for i, pair in enumerate(task.test)
    ]
    held_out += [
        PlacedPair(task.id, "train", len(task.train), task.test[0])
        for task in collection.validation_tasks
    ]
    hidden = any(place.pair.output is None for place in held_out)
    for place in placed:
        by_pair.setdefault(canonical_key(place.pair.grids), []).append(place)
        if hidden:
            by_input.setdefault(canonical_key([place.pair.input]), []).append(place)
    matches = [
        Match(held, found, by_input=held.pair.output is None)
        for held in held_out
        for found in (by_input if held.pair.output is None else by_pair).get(
            canonical_key(held.pair.grids), ()
        )
        if found.place != held.place
    ]
    return LeakReport(
        across=tuple(match for match in matches if not match.is_within),
        within=tuple(match for match in matches if match.is_within),
        equal_tasks=_equal_tasks(collection.tasks),
        repeated_ids=collection.repeated,
    )


def _equal_tasks(tasks: Sequence[Task]) -> tuple[tuple[str, ...], ...]:
    groups: dict[frozenset[Key], list[str]] = {}
    for task in tasks:
        keys = frozenset(canonical_key(pair.grids) for pair in task.train + task.test)
        groups.setdefault(keys, []).append(task.id)
    return tuple(tuple(ids) for ids in groups.values() if len(ids) > 1)


TrainingSet = tuple[tuple[Pair, ...], ...]  # per task of a collection, the pairs that train


def training_set(collection: Collection, report: LeakReport, policy: LeakPolicy) -> TrainingSet:
    """The pairs that train under ``policy``; ``exclude`` drops the training side of each leak.

    Demonstrations held out for validation do not train.

    Raises:
        ValueError: if there are leaks and the policy is ``error``, or nothing is left to train.
    """
    if policy == "error" and report.across:
        raise ValueError(
            f"data.leaks=error: {len(report.across)} held-out pairs occur in other tasks' "
            f"training pairs, the first is {format_match(report.across[0])}"
        )
    dropped = {match.found.place for match in report.across if policy == "exclude"}
    dropped |= {
        (task.id, "train", len(task.train) - 1)
        for task in collection.tasks
        if task.id in collection.validation
    }
    pairs = tuple(
        tuple(
            placed.pair
            for placed in task.training_pairs(evaluated=task.id in collection.evaluated)
            if placed.place not in dropped
        )
        for task in collection.tasks
    )
    if not any(pairs):
        raise ValueError(f"{collection.name}: no pair is left to train on")
    return pairs


def format_match(match: Match) -> str:
    """One line for a match."""
    held, found = match.held_out, match.found
    what = "the input of test pair" if match.by_input else f"{held.part} pair"
    return (
        f"{what} {held.number} of {held.task_id} is {found.part} pair {found.number} of "
        f"{found.task_id}"
    )
