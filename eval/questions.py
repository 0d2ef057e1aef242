"""What is asked of a network: test pairs under augmentations, grouped by length of sequence."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int64

from arc_data.augment import is_turned
from arc_data.canvas import encode_grid
from arc_data.puzzles import PuzzleSet
from arc_data.task import Task
from arc_data.windows import MAX_SHARES, expected_box, plan_buckets, window_positions

Window = Literal["full", "task"]
Side = Literal["input", "output"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Questions:
    """What is predicted: a row is one test pair under one augmentation."""

    puzzles: PuzzleSet
    evaluated: tuple[int, ...]  # indices of the evaluated tasks
    rows: Int64[np.ndarray, "n 3"]  # position in ``evaluated``, test index, puzzle id

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, numbers: Int64[np.ndarray, " taken"]) -> "Questions":
        """The rows with these numbers."""
        return replace(self, rows=self.rows[numbers])

    def encode(self, number: int, canvas: int, side: Side = "input") -> np.ndarray:
        """Tokens of a row's augmented input or known output, at offset (0, 0)."""
        position, test_index, puzzle_id = self.rows[number]
        pair = self.puzzles.tasks[self.evaluated[position]].test[test_index]
        grid = pair.input if side == "input" else pair.output
        assert grid is not None
        return encode_grid(self.puzzles.augmentation(int(puzzle_id)).apply(grid), canvas)


def list_questions(puzzles: PuzzleSet, evaluated: Sequence[int], votes: int) -> Questions:
    """Every test pair of the tasks under their first ``votes`` puzzles, identity first."""
    rows = [
        (position, test_index, puzzle_id)
        for position, task_index in enumerate(evaluated)
        for test_index in range(len(puzzles.tasks[task_index].test))
        for puzzle_id in puzzles.puzzle_ids(task_index)[:votes]
    ]
    array = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Questions(puzzles=puzzles, evaluated=tuple(evaluated), rows=array)


def other_puzzles(questions: Questions, *, seed: int) -> Int64[np.ndarray, " puzzles"]:
    """For every puzzle one of another evaluated task; a task gets those of one other task.

    Raises:
        ValueError: if there is no other task.
    """
    puzzles, evaluated = questions.puzzles, questions.evaluated
    if len(evaluated) < 2:
        raise ValueError("puzzle_ids=shuffled needs at least two evaluated tasks")
    order = np.random.default_rng(seed).permutation(len(evaluated))
    other = np.arange(len(puzzles))
    for mine, theirs in zip(order, np.roll(order, 1), strict=True):
        ids, others = (np.array(puzzles.puzzle_ids(evaluated[i])) for i in (mine, theirs))
        other[ids] = others[np.arange(len(ids)) % len(others)]
    return other


class Group(NamedTuple):
    """Rows that have sequences of one length."""

    rows: Int64[np.ndarray, " n"]
    boxes: Int64[np.ndarray, "n 2"] | None  # windows' height and width; None: whole canvases
    length: int

    def positions(
        self, members: slice | Int64[np.ndarray, " taken"], canvas: int
    ) -> Int64[np.ndarray, "taken seq"] | None:
        """Canvas positions of the tokens of some members' windows, which stand at offset (0, 0)."""
        if self.boxes is None:
            return None
        height, width = self.boxes[members].T
        corner = np.zeros_like(height)
        return window_positions(corner, corner, height, width, length=self.length, canvas=canvas)


def whole_canvases(rows: Int64[np.ndarray, " n"], canvas: int) -> Group:
    """Rows that are asked on the whole canvas."""
    return Group(rows, None, canvas**2)


def window_groups(questions: Questions, canvas: int, *, known: bool = False) -> list[Group]:
    """The rows by length of their windows, in a few lengths.

    Windows are as in training: they cover the input and the output that the demonstrations let one
    expect, and with ``known`` the true output too.
    """
    tasks, puzzles = questions.puzzles.tasks, questions.puzzles
    box = {
        (position, test_index): _box(tasks[questions.evaluated[position]], test_index, known)
        for position, test_index in {(int(p), int(t)) for p, t, _ in questions.rows}
    }
    boxes = np.array([box[int(p), int(t)] for p, t, _ in questions.rows]).reshape(-1, 2)
    lies = is_turned(puzzles.dihedral[questions.rows[:, 2]])
    boxes = np.minimum(np.where(lies[:, None], boxes[:, ::-1], boxes) + 1, canvas)
    if not len(boxes):
        return []
    buckets = plan_buckets(boxes.prod(axis=1), global_batch_size=MAX_SHARES, canvas=canvas)
    groups = []
    for bucket, length in enumerate(buckets.lengths):
        rows = np.flatnonzero(buckets.of_pair == bucket)
        groups.append(Group(rows, boxes[rows], length))
    return groups


def _box(task: Task, test_index: int, known: bool) -> tuple[int, int]:
    pair = task.test[test_index]
    expected = expected_box(task.train, pair.input)
    if not known or pair.output is None:
        return expected
    height, width = np.maximum(expected, pair.output.shape).tolist()
    return height, width
