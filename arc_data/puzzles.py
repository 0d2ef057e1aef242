"""Puzzles: every task under its augmentations, numbered for the puzzle-embedding table.

Puzzle ``i`` belongs to one task under one augmentation; a task's puzzles are consecutive and start
with the identity. Augmentations are distinct as grids: a task with symmetries or few colors has
fewer than were asked for. What distinguishes them is what a solver may see (demonstrations and test
inputs), so that hidden outputs make no difference.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from jaxtyping import Int64, UInt8

from arc_data.augment import NUM_DIHEDRAL, Augmentation, from_dihedral, move_grid
from arc_data.grid import NUM_COLORS
from arc_data.task import Task

JSON_FORMAT = 1


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

    def to_json(self) -> str:
        """Every puzzle by name: task id and, per puzzle, the move's number and the color map."""
        names = [
            f"{move}:{colors}"
            for move, colors in zip(self.dihedral, _digits(self.colors), strict=True)
        ]
        entries = [
            {"id": task.id, "puzzles": names[self.offsets[t] : self.offsets[t + 1]]}
            for t, task in enumerate(self.tasks)
        ]
        return json.dumps({"format": JSON_FORMAT, "tasks": entries})

    @property
    def content_hash(self) -> str:
        """SHA-256 of the names; equal sets have equal hashes."""
        return sha256(self.to_json().encode()).hexdigest()


def _digits(colors: UInt8[np.ndarray, "puzzles 10"]) -> list[str]:
    text = (colors + ord("0")).tobytes().decode("ascii")
    return [text[i : i + NUM_COLORS] for i in range(0, len(text), NUM_COLORS)]


def read_puzzles(text: str, tasks: Sequence[Task], where: str) -> PuzzleSet:
    """The puzzles of ``to_json``, in their order, for the tasks of the same ids.

    Raises:
        ValueError: if the text is not one, or if it and ``tasks`` have different ids.
    """
    try:
        entries = json.loads(text)["tasks"]
        names = {entry["id"]: entry["puzzles"] for entry in entries}
        split = [name.split(":") for entry in entries for name in entry["puzzles"]]
        dihedral = np.array([int(move) for move, _ in split], dtype=np.uint8)
        colors = np.array([list(map(int, digits)) for _, digits in split], dtype=np.uint8)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{where}: not a list of puzzles ({error})") from error
    by_id = {task.id: task for task in tasks}
    missing = [task_id for task_id in names if task_id not in by_id]
    extra = [task_id for task_id in by_id if task_id not in names]
    if missing or extra:
        raise ValueError(
            f"{where} and the data have different tasks: "
            f"{len(missing)} are missing from the data ({', '.join(missing[:3])}), "
            f"{len(extra)} are in the data only ({', '.join(extra[:3])})"
        )
    return PuzzleSet(
        tasks=tuple(by_id[task_id] for task_id in names),
        offsets=np.cumsum([0] + [len(puzzles) for puzzles in names.values()]),
        dihedral=dihedral,
        colors=colors,
    )


def build_puzzles(tasks: Sequence[Task], *, num_aug: int, seed: int) -> PuzzleSet:
    """The identity and up to ``num_aug`` distinct augmentations of every task.

    A task's augmentations depend on ``seed`` and its id alone, not on its neighbours.
    """
    drawn = [_draw_distinct(task, num_aug + 1, seed) for task in tasks]
    return PuzzleSet(
        tasks=tuple(tasks),
        offsets=np.cumsum([0] + [len(dihedral) for dihedral, _ in drawn]),
        dihedral=np.concatenate([dihedral for dihedral, _ in drawn]),
        colors=np.concatenate([colors for _, colors in drawn]),
    )


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
