"""Two scores of a voted evaluation, always side by side.

A test pair is solved at K if its true output is among the top K candidates.

    all_tests    share of tasks with every test pair solved (HRM, the DeepLoop paper)
    arc_prize    mean over tasks of the share of their test pairs that are solved (ARC Prize)
"""

from collections.abc import Sequence
from typing import NamedTuple

from arc_data.grid import Grid
from arc_data.task import Task
from eval.vote import Ballots, Ranking

TruthRanks = dict[str, tuple[int | None, ...]]  # by task id, one entry per test pair


class Score(NamedTuple):
    """Fractions of the scored tasks."""

    all_tests: float
    arc_prize: float


def scored_tasks(tasks: Sequence[Task]) -> dict[str, tuple[Grid, ...]]:
    """The true outputs by task id; tasks with an output that is not known can't be scored."""
    outputs = {task.id: tuple(pair.output for pair in task.test) for task in tasks}
    return {
        task_id: tuple(grid for grid in grids if grid is not None)
        for task_id, grids in outputs.items()
        if all(grid is not None for grid in grids)
    }


def truth_ranks(ballots: Ballots, ranking: Ranking) -> TruthRanks:
    """Where the true output of each scored test pair stands among its candidates, from 1.

    None if it is not among them; a pair without a prediction has no candidates.
    """

    def rank_of(task_id: str, test_index: int, truth: Grid) -> int | None:
        number = ballots.find((task_id, test_index), truth)
        return None if number is None else int(ranking.rank[number]) or None

    return {
        task_id: tuple(rank_of(task_id, i, truth) for i, truth in enumerate(outputs))
        for task_id, outputs in scored_tasks(ballots.predictions.tasks).items()
    }


def score(ranks: TruthRanks, attempts: int | None) -> Score | None:
    """Both scores with ``attempts`` candidates a pair (None: all); None if nothing is scored."""
    return score_solved(
        {
            task_id: tuple(
                rank is not None and (attempts is None or rank <= attempts) for rank in task_ranks
            )
            for task_id, task_ranks in ranks.items()
        }
    )


def score_solved(solved: dict[str, tuple[bool, ...]]) -> Score | None:
    """Both scores from which test pairs of each scored task are solved; None without a task."""
    if not solved:
        return None
    return Score(
        all_tests=sum(all(pairs) for pairs in solved.values()) / len(solved),
        arc_prize=sum(sum(pairs) / len(pairs) for pairs in solved.values()) / len(solved),
    )
