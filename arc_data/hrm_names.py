"""Puzzle names of the released HRM code, as values.

``identifiers.json`` lists them by row of the puzzle table: ``<blank>`` first, then a task's id
(``0a1d4ef5``) or id, move and color map (``0a1d4ef5_t3_0123456789``).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from arc_data.augment import IDENTITY_COLORS, NUM_DIHEDRAL, Augmentation, from_dihedral, move_grid
from arc_data.puzzles import SavedPuzzles

BLANK = "<blank>"
AUGMENTED = re.compile(r"(?P<id>.*)_t(?P<move>[0-7])_(?P<colors>\d{10})", re.DOTALL)


def _hrm_moves() -> tuple[int, ...]:
    """Our number for each of HRM's moves.

    0 none; 1, 2, 3 quarter turns left; 4 left-right flip; 5 up-down flip; 6 transpose; 7 the other
    transpose: a quarter turn left, then a left-right flip.
    """
    probe = np.arange(6, dtype=np.uint8).reshape(2, 3)
    theirs = (
        *(np.rot90(probe, turns) for turns in range(4)),
        *(np.fliplr(probe), np.flipud(probe), probe.T, np.fliplr(np.rot90(probe))),
    )
    return tuple(
        next(d for d in range(NUM_DIHEDRAL) if np.array_equal(move_grid(probe, d), image))
        for image in theirs
    )


HRM_MOVES = _hrm_moves()


def parse_name(name: str) -> tuple[str, Augmentation]:
    """Task id and augmentation of a name; an id may itself hold underscores."""
    match = AUGMENTED.fullmatch(name)
    if match is None:
        return name, Augmentation()
    colors = tuple(int(color) for color in match["colors"])
    if tuple(sorted(colors)) != IDENTITY_COLORS:  # not a color map, so part of the id
        return name, Augmentation()
    return match["id"], from_dihedral(HRM_MOVES[int(match["move"])], colors)


@dataclass(frozen=True, kw_only=True)
class HrmPuzzles:
    """HRM's puzzles grouped by task, and where their rows are."""

    saved: SavedPuzzles
    rows: Int64[np.ndarray, " puzzles"]  # HRM's row of each puzzle, in the order of ``saved``


def parse_identifiers(names: Sequence[str]) -> HrmPuzzles:
    """Group the names by task, identity first, otherwise in the order of the rows.

    Raises:
        ValueError: if a name occurs twice.
    """
    by_task: dict[str, list[tuple[bool, int, str]]] = {}
    seen: set[tuple[str, str]] = set()
    for row, name in enumerate(names):
        if name == BLANK:
            continue
        task_id, augmentation = parse_name(name)
        ours = f"{augmentation.dihedral}:{''.join(map(str, augmentation.colors))}"
        if (task_id, ours) in seen:
            raise ValueError(f"row {row}: {name!r} occurs twice")
        seen.add((task_id, ours))
        by_task.setdefault(task_id, []).append((augmentation != Augmentation(), row, ours))
    ordered = {task_id: sorted(entries) for task_id, entries in by_task.items()}
    return HrmPuzzles(
        saved={task_id: [ours for _, _, ours in entries] for task_id, entries in ordered.items()},
        rows=np.array([row for entries in ordered.values() for _, row, _ in entries], np.int64),
    )
