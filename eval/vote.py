"""Voting: undo the augmentations, group equal grids, rank the groups.

Candidates of a test pair are ranked by votes, then mean halt probability, then shape and bytes, so
the order is the same whatever the order of the predictions. An empty grid is not a vote.
"""

import math
from typing import NamedTuple

from arc_data.grid import Grid, grid_key
from eval.predictions import Predictions

TestPair = tuple[str, int]  # task id, index of the test pair


class Candidate(NamedTuple):
    """One distinct answer to a test pair."""

    grid: Grid
    votes: int
    halt: float  # mean halt probability of its voters


def rank_candidates(
    predictions: Predictions, *, max_votes: int | None = None
) -> dict[TestPair, list[Candidate]]:
    """Candidates of every predicted test pair, best first.

    A pair whose every prediction is empty has an empty list. ``max_votes`` counts only the first
    that many augmentations of each task.
    """
    ballots: dict[TestPair, dict[tuple, tuple[Grid, list[float]]]] = {}
    for i, grid in enumerate(predictions.grids()):
        if max_votes is not None and predictions.vote[i] >= max_votes:
            continue
        pair = (predictions.task_ids[predictions.task[i]], int(predictions.test_index[i]))
        ballot = ballots.setdefault(pair, {})
        if grid.size:
            ballot.setdefault(grid_key(grid), (grid, []))[1].append(float(predictions.halt[i]))
    return {pair: _ranked(ballot) for pair, ballot in ballots.items()}


def _ranked(ballot: dict[tuple, tuple[Grid, list[float]]]) -> list[Candidate]:
    def order(entry: tuple[tuple, tuple[Grid, list[float]]]) -> tuple:
        key, (_, halts) = entry
        return (-len(halts), -_mean(halts), key)

    return [
        Candidate(grid=grid, votes=len(halts), halt=_mean(halts))
        for _, (grid, halts) in sorted(ballot.items(), key=order)
    ]


def _mean(values: list[float]) -> float:
    # fsum is exact, so the mean does not depend on the order of the votes
    return math.fsum(values) / len(values)
