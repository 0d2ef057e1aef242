"""Voting: undo the augmentations, group equal grids, rank the groups.

Candidates of a test pair are ranked by votes, then mean halt probability, then shape and bytes, so
the order is the same whatever the order of the predictions. An empty grid is not a vote. A test
pair is its task's id and its number: two pairs with equal inputs vote apart, and a pair without
predictions shifts nothing.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Integer, UInt8

from arc_data.augment import is_turned, unmove_grid
from arc_data.grid import Grid
from eval.predictions import Predictions

TestPair = tuple[str, int]  # task id, index of the test pair
Key = tuple[int, int, int, bytes]  # number of the test pair, height, width, cells

CELLS_AT_ONCE = 1 << 20  # bounds the memory of the undoing


class Candidate(NamedTuple):
    """One distinct answer to a test pair."""

    grid: Grid
    votes: int
    halt: float  # mean halt probability of its voters


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranking:
    """How the candidates stand when some of the rows vote."""

    votes: Integer[np.ndarray, " candidates"]
    halt: Float[np.ndarray, " candidates"]  # mean halt probability of the voters
    order: Integer[np.ndarray, " ranked"]  # candidates with a vote, by test pair, best first
    rank: Integer[np.ndarray, " candidates"]  # from 1 within the test pair; 0 without a vote


@dataclass(frozen=True, kw_only=True, eq=False)
class Ballots:
    """The rows of a predictions file, grouped into candidates once for every way to count them.

    Candidates are numbered by test pair, then shape, then bytes.
    """

    predictions: Predictions
    pairs: tuple[TestPair, ...]  # those with a row, in the order of the tasks
    row_pair: Integer[np.ndarray, " n"]
    row_candidate: Integer[np.ndarray, " n"]  # -1 for an empty grid
    numbers: dict[Key, int]  # of the candidates
    candidate_pair: Integer[np.ndarray, " candidates"]

    @cached_property
    def grids(self) -> list[Grid]:
        """The candidates' grids."""
        return [
            np.frombuffer(cells, dtype=np.uint8).reshape(height, width)
            for _, height, width, cells in self.numbers
        ]

    def find(self, pair: TestPair, grid: Grid) -> int | None:
        """The number of a candidate, None if nobody voted for it."""
        number = self._pair_numbers.get(pair)
        if number is None:
            return None
        return self.numbers.get((number, *grid.shape, np.ascontiguousarray(grid).tobytes()))

    @cached_property
    def _pair_numbers(self) -> dict[TestPair, int]:
        return {pair: number for number, pair in enumerate(self.pairs)}

    def rank(self, voting: Bool[np.ndarray, " n"] | None = None) -> Ranking:
        """Count the rows ``voting`` (all final ones if None)."""
        counted = (self.predictions.final if voting is None else voting) & (self.row_candidate >= 0)
        candidate, halt = self.row_candidate[counted], self.predictions.halt[counted]
        order = np.lexsort((halt, candidate))  # one order of summation, whatever that of the rows
        candidate, halt = candidate[order], halt[order].astype(np.float64)
        votes = np.bincount(candidate, minlength=len(self.numbers))
        mean = np.zeros(len(self.numbers))
        if len(halt):
            starts = np.flatnonzero(np.diff(candidate, prepend=-1))
            mean[votes > 0] = np.add.reduceat(halt, starts) / votes[votes > 0]
        ranked = np.lexsort((-mean, -votes, self.candidate_pair))  # stable: ties by number
        ranked = ranked[votes[ranked] > 0]
        pair = self.candidate_pair[ranked]
        firsts = np.flatnonzero(np.diff(pair, prepend=-1))
        num_ranked = np.diff(np.append(firsts, len(pair)))
        rank = np.zeros(len(self.numbers), dtype=np.int64)
        rank[ranked] = np.arange(len(pair)) - np.repeat(firsts, num_ranked) + 1
        return Ranking(votes=votes, halt=mean, order=ranked, rank=rank)

    def candidates(self, ranking: Ranking) -> dict[TestPair, list[Candidate]]:
        """The candidates of every predicted test pair, best first; none if all were empty."""
        found: dict[TestPair, list[Candidate]] = {pair: [] for pair in self.pairs}
        for number in ranking.order:
            found[self.pairs[self.candidate_pair[number]]].append(
                Candidate(
                    grid=self.grids[number],
                    votes=int(ranking.votes[number]),
                    halt=float(ranking.halt[number]),
                )
            )
        return found


def count_ballots(predictions: Predictions) -> Ballots:
    """Undo every augmentation and group equal grids of each test pair."""
    p = predictions
    pair_key = p.task.astype(np.int64) * (int(p.test_index.max()) + 1) + p.test_index
    _, first, row_pair = np.unique(pair_key, return_index=True, return_inverse=True)
    pairs = tuple((p.tasks[p.task[i]].id, int(p.test_index[i])) for i in first)
    height, width, cells = undo_augmentations(p)
    blob, ends = cells.tobytes(), np.cumsum(p.num_cells)
    keys: list[Key | None] = [
        (pair, h, w, blob[end - h * w : end]) if h * w else None
        for pair, h, w, end in zip(
            row_pair.tolist(), height.tolist(), width.tolist(), ends.tolist(), strict=True
        )
    ]
    numbers = {key: i for i, key in enumerate(sorted({key for key in keys if key is not None}))}
    return Ballots(
        predictions=p,
        pairs=pairs,
        row_pair=row_pair,
        row_candidate=np.array([-1 if key is None else numbers[key] for key in keys]),
        numbers=numbers,
        candidate_pair=np.array([key[0] for key in numbers], dtype=np.int64),
    )


def undo_augmentations(
    predictions: Predictions,
) -> tuple[UInt8[np.ndarray, " n"], UInt8[np.ndarray, " n"], UInt8[np.ndarray, " cells"]]:
    """Heights, widths and cells of the predicted grids with their augmentation undone.

    Grids of one shape and move are one gather: the loop is over shapes, not over predictions.
    """
    p = predictions
    starts = np.cumsum(p.num_cells) - p.num_cells
    original_color = np.argsort(p.colors, axis=1).astype(np.uint8)
    undone = np.empty_like(p.cells)
    group = (p.dihedral.astype(np.int64) * 256 + p.height) * 256 + p.width
    order = np.argsort(group, kind="stable")
    for same in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        shape = (int(p.height[same[0]]), int(p.width[same[0]]))
        size = shape[0] * shape[1]
        if not size:
            continue
        source = unmove_grid(np.arange(size).reshape(shape), int(p.dihedral[same[0]])).reshape(-1)
        for rows in np.array_split(same, -(-len(same) * size // CELLS_AT_ONCE)):
            moved = p.cells[starts[rows, None] + source]
            undone[starts[rows, None] + np.arange(size)] = np.take_along_axis(
                original_color[rows], moved.astype(np.intp), axis=1
            )
    turned = is_turned(p.dihedral)
    return (
        np.where(turned, p.width, p.height),
        np.where(turned, p.height, p.width),
        undone,
    )
