"""Puzzles: every task under its augmentations, numbered for the puzzle-embedding table.

Puzzle ``i`` belongs to one task under one augmentation; a task's puzzles are consecutive and start
with the identity. Augmentations are distinct as grids: a task with symmetries or few colors has
fewer than were asked for. What distinguishes them is what a solver may see (demonstrations and test
inputs), so that hidden outputs make no difference.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from jaxtyping import Int64, UInt8

from arc_data.augment import NUM_DIHEDRAL, Augmentation, from_dihedral, move_grid
from arc_data.grid import NUM_COLORS
from arc_data.task import Task

JSON_FORMAT = 1
NAME = re.compile(r"[0-7]:[0-9]{10}")


def _composition_table() -> UInt8[np.ndarray, "8 8"]:
    """``table[a, b]`` is the move that equals moving by b, then by a."""
    probe = np.arange(6, dtype=np.uint8).reshape(2, 3)
    images = {move_grid(probe, d).tobytes() + bytes(move_grid(probe, d).shape): d for d in range(8)}
    table = np.empty((NUM_DIHEDRAL, NUM_DIHEDRAL), dtype=np.uint8)
    for a in range(NUM_DIHEDRAL):
        for b in range(NUM_DIHEDRAL):
            image = move_grid(move_grid(probe, b), a)
            table[a, b] = images[image.tobytes() + bytes(image.shape)]
    return table


COMPOSE = _composition_table()


@dataclass(frozen=True, kw_only=True, eq=False)
class PuzzleSet:
    """Tasks with their augmentations as arrays; a million puzzles take some 11 MB."""

    tasks: tuple[Task, ...]
    offsets: Int64[np.ndarray, " tasks_plus_one"]  # puzzles of task t: offsets[t]..offsets[t+1]-1
    dihedral: UInt8[np.ndarray, " puzzles"]
    colors: UInt8[np.ndarray, "puzzles 10"]

    def __len__(self) -> int:
        return len(self.dihedral)

    def augmentation(self, puzzle_id: int) -> Augmentation:
        return from_dihedral(
            int(self.dihedral[puzzle_id]), tuple(int(c) for c in self.colors[puzzle_id])
        )

    def puzzle_ids(self, task_index: int) -> range:
        """Ids of one task's puzzles, identity first."""
        return range(int(self.offsets[task_index]), int(self.offsets[task_index + 1]))

    def names(self) -> list[str]:
        """Every puzzle's augmentation as text: the move's number, then the color map."""
        digits = (self.colors + ord("0")).tobytes().decode("ascii")
        return [
            f"{move}:{digits[NUM_COLORS * i : NUM_COLORS * (i + 1)]}"
            for i, move in enumerate(self.dihedral)
        ]

    def to_json(self) -> str:
        """Every puzzle by name: task id and, per puzzle, its augmentation."""
        names = self.names()
        return write_puzzles(
            {
                task.id: names[self.offsets[t] : self.offsets[t + 1]]
                for t, task in enumerate(self.tasks)
            }
        )

    @property
    def content_hash(self) -> str:
        """SHA-256 of the names; equal sets have equal hashes."""
        return sha256(self.to_json().encode()).hexdigest()


SavedPuzzles = dict[str, list[str]]  # task id -> names, in row order


def write_puzzles(saved: SavedPuzzles) -> str:
    """The text that :func:`read_puzzles` reads."""
    entries = [{"id": task_id, "puzzles": names} for task_id, names in saved.items()]
    return json.dumps({"format": JSON_FORMAT, "tasks": entries})


def read_puzzles(text: str, where: str) -> SavedPuzzles:
    """The names in a ``to_json`` text; rows of the table are numbered through in this order.

    Raises:
        ValueError: naming ``where``, if the text is not one.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not a list of puzzles (no JSON)") from error
    if not isinstance(value, dict) or value.get("format") != JSON_FORMAT:
        raise ValueError(f"{where}: not a list of puzzles of format {JSON_FORMAT}")
    saved: SavedPuzzles = {}
    for entry in value["tasks"] if isinstance(value.get("tasks"), list) else [None]:
        task_id = entry.get("id") if isinstance(entry, dict) else None
        names = entry.get("puzzles") if isinstance(entry, dict) else None
        if not isinstance(task_id, str) or not isinstance(names, list):
            raise ValueError(
                f"{where}: not a list of puzzles (task {len(saved)} has no id or names)"
            )
        if not names or not all(isinstance(n, str) and NAME.fullmatch(n) for n in names):
            raise ValueError(
                f"{where}: not a list of puzzles (task {task_id}: a name is a move 0..7, a colon "
                "and a permutation of 0..9)"
            )
        saved[task_id] = names
        _parse_names(names, where)
    return saved


def _parse_names(names: Sequence[str], where: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Moves and color maps of names that match ``NAME``."""
    text = np.frombuffer("".join(names).encode("ascii"), np.uint8).reshape(len(names), -1)
    digits = text - ord("0")
    dihedral, colors = digits[:, 0], digits[:, 2:]
    if (np.sort(colors, axis=1) != np.arange(NUM_COLORS)).any():
        raise ValueError(f"{where}: not a list of puzzles (a color map must permute 0..9)")
    return dihedral, colors


@dataclass(frozen=True, kw_only=True, eq=False)
class MatchedPuzzles:
    """Puzzles of a collection, and the rows that a saved table has for them."""

    puzzles: PuzzleSet
    rows: Int64[np.ndarray, " puzzles"]  # row of the saved table; -1 for a puzzle it lacks
    num_saved: int

    @property
    def in_place(self) -> bool:
        """Whether every puzzle has the row that it was saved with."""
        return len(self.rows) == self.num_saved and bool(
            (self.rows == np.arange(self.num_saved)).all()
        )


def match_puzzles(
    saved: SavedPuzzles, tasks: Sequence[Task], where: str, *, num_aug: int, seed: int, init: bool
) -> MatchedPuzzles:
    """The saved puzzles of ``tasks``, matched by name whatever the order of either.

    With ``init`` a task that was not saved gets new puzzles, and saved ones without a task are left
    out; otherwise both are errors.

    Raises:
        ValueError: naming ``where``, how many ids are missing and extra, and which.
    """
    ids = {task.id for task in tasks}
    missing = [task.id for task in tasks if task.id not in saved]
    extra = [task_id for task_id in saved if task_id not in ids]
    if (missing or extra) and not init:
        raise ValueError(
            f"{where} and the data have different tasks: "
            f"{len(extra)} of {len(saved)} are missing from the data{_listed(extra)}, "
            f"{len(missing)} of {len(tasks)} are in the data only{_listed(missing)}; "
            "new_puzzles=init leaves the former out and gives the latter fresh rows"
        )
    first_row = dict(zip(saved, np.cumsum([0, *map(len, saved.values())]), strict=False))
    sets, rows = [], []
    for task in tasks:
        if task.id in saved:
            sets.append(_parse_names(saved[task.id]))
            rows.append(first_row[task.id] + np.arange(len(saved[task.id])))
        else:
            sets.append(_draw_distinct(task, num_aug + 1, seed))
            rows.append(np.full(len(sets[-1][0]), -1))
    return MatchedPuzzles(
        puzzles=_join(tasks, sets),
        rows=np.concatenate(rows).astype(np.int64),
        num_saved=sum(map(len, saved.values())),
    )


def _listed(ids: Sequence[str], most: int = 3) -> str:
    if not ids:
        return ""
    return f" ({', '.join(ids[:most])}{', ...' if len(ids) > most else ''})"


def _join(tasks: Sequence[Task], sets: Sequence[tuple[np.ndarray, np.ndarray]]) -> PuzzleSet:
    """One set of the tasks' moves and color maps."""
    return PuzzleSet(
        tasks=tuple(tasks),
        offsets=np.cumsum([0] + [len(dihedral) for dihedral, _ in sets]),
        dihedral=np.concatenate([dihedral for dihedral, _ in sets]),
        colors=np.concatenate([colors for _, colors in sets]),
    )


def build_puzzles(tasks: Sequence[Task], *, num_aug: int, seed: int) -> PuzzleSet:
    """The identity and up to ``num_aug`` distinct augmentations of every task.

    A task's augmentations depend on ``seed`` and its id alone, not on its neighbours.
    """
    return _join(tasks, [_draw_distinct(task, num_aug + 1, seed) for task in tasks])


def _draw_distinct(task: Task, wanted: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Moves and color maps of ``wanted`` distinct augmentations, or of all that there are."""
    used = np.array(task.visible_colors, dtype=np.int64)
    symmetries = _symmetries(task)
    # Distinct colorings of the used colors times moves, each image met once per symmetry.
    num_distinct = NUM_DIHEDRAL * _falling_factorial(9, len(used)) // len(symmetries)
    target = min(wanted, num_distinct)
    words = np.frombuffer(sha256(task.id.encode("utf-8", "surrogatepass")).digest(), np.uint32)
    rng = np.random.default_rng([seed, *words])

    dihedral = np.zeros(1, dtype=np.uint8)
    colors = np.arange(NUM_COLORS, dtype=np.uint8)[None]
    while len(dihedral) < target:
        num_drawn = max(16, target)
        shuffled = rng.permuted(
            np.tile(np.arange(1, NUM_COLORS, dtype=np.uint8), (num_drawn, 1)), axis=1
        )
        new_colors = np.concatenate((np.zeros((num_drawn, 1), np.uint8), shuffled), axis=1)
        new_dihedral = rng.integers(NUM_DIHEDRAL, size=num_drawn, dtype=np.uint8)
        dihedral = np.concatenate((dihedral, new_dihedral))
        colors = np.concatenate((colors, new_colors))
        keys = _image_keys(dihedral, colors, used, symmetries)
        first = np.sort(np.unique(keys, return_index=True)[1])[:target]
        dihedral, colors = dihedral[first], colors[first]
    return dihedral, colors


def _symmetries(task: Task) -> list[tuple[int, np.ndarray]]:
    """Moves and color maps that leave every visible grid as it is; the identity is one."""
    found = []
    for dihedral in range(NUM_DIHEDRAL):
        colors = np.full(NUM_COLORS, -1)
        for grid in task.visible_grids:
            moved = move_grid(grid, dihedral)
            if moved.shape != grid.shape:
                break
            colors[moved] = grid  # the last assignment wins, so the finished map is checked below
        else:
            agrees = all(
                np.array_equal(colors[move_grid(grid, dihedral)], grid)
                for grid in task.visible_grids
            )
            used = [0, *task.visible_colors]
            if agrees and colors[0] in (0, -1) and len(set(colors[used])) == len(used):
                found.append((dihedral, np.where(colors < 0, np.arange(NUM_COLORS), colors)))
    return found


def _image_keys(
    dihedral: np.ndarray, colors: np.ndarray, used: np.ndarray, symmetries: list
) -> Int64[np.ndarray, " drawn"]:
    """Equal numbers for augmentations with equal images: the least over the task's symmetries.

    Augmentation (d, c) after symmetry (s, t) is (d s, c t), with the same image as (d, c).
    """
    powers = 10 ** np.arange(len(used), dtype=np.int64)
    keys = [
        COMPOSE[dihedral, move].astype(np.int64) * 10 ** len(used)
        + colors[:, symmetry_colors[used]].astype(np.int64) @ powers
        for move, symmetry_colors in symmetries
    ]
    return np.min(keys, axis=0)


def _falling_factorial(n: int, k: int) -> int:
    product = 1
    for i in range(k):
        product *= n - i
    return product
