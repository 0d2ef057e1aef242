"""Two scores of a voted evaluation, always side by side.

A test pair is solved at K if its true output is among the top K candidates.

    all_tests    share of tasks with every test pair solved (HRM, the DeepLoop paper)
    arc_prize    mean over tasks of the share of their test pairs that are solved (ARC Prize)
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from arc_data.grid import Grid
from arc_data.task import Task
from eval.vote import Candidate, TestPair

TruthRanks = dict[str, tuple[int | None, ...]]  # by task id, one entry per test pair


class Score(NamedTuple):
    """Fractions of the scored tasks."""

    all_tests: float
    arc_prize: float


def truth_ranks(
    tasks: Sequence[Task], candidates: Mapping[TestPair, Sequence[Candidate]]
) -> TruthRanks:
    """Where the true output of each test pair stands among its candidates, from 1; None if absent.

    Tasks with a test pair whose output is not known are left out: they can't be scored.
    """
    ranks: TruthRanks = {}
    for task in tasks:
        outputs = [pair.output for pair in task.test if pair.output is not None]
        if len(outputs) == len(task.test):
            ranks[task.id] = tuple(
                _rank_of(output, candidates.get((task.id, i), ()))
                for i, output in enumerate(outputs)
            )
    return ranks


def _rank_of(truth: Grid, candidates: Sequence[Candidate]) -> int | None:
    for rank, candidate in enumerate(candidates, start=1):
        if np.array_equal(candidate.grid, truth):
            return rank
    return None


def score(ranks: TruthRanks, attempts: int | None) -> Score | None:
    """Both scores with ``attempts`` candidates a pair (None: all); None if nothing is scored."""
    if not ranks:
        return None
    solved = [
        [rank is not None and (attempts is None or rank <= attempts) for rank in task_ranks]
        for task_ranks in ranks.values()
    ]
    return Score(
        all_tests=sum(all(pairs) for pairs in solved) / len(solved),
        arc_prize=sum(sum(pairs) / len(pairs) for pairs in solved) / len(solved),
    )
