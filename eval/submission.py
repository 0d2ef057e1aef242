"""The ARC Prize submission: per task one entry per test pair, in order, two attempts each."""

from collections.abc import Mapping, Sequence

from arc_data.grid import Grid
from arc_data.task import Task
from eval.vote import Candidate, TestPair

Submission = dict[str, list[dict[str, list[list[int]]]]]

# The format has no way to leave an attempt out; this grid stands where there is no candidate.
NO_ANSWER = [[0]]


def build_submission(
    tasks: Sequence[Task], candidates: Mapping[TestPair, Sequence[Candidate]]
) -> Submission:
    """The two best candidates of every test pair; a single candidate is given twice."""
    return {
        task.id: [_attempts(candidates.get((task.id, i), ())) for i in range(len(task.test))]
        for task in tasks
    }


def _attempts(candidates: Sequence[Candidate]) -> dict[str, list[list[int]]]:
    grids = [_rows(candidate.grid) for candidate in candidates[:2]] or [NO_ANSWER]
    return {"attempt_1": grids[0], "attempt_2": grids[-1]}


def _rows(grid: Grid) -> list[list[int]]:
    return [[int(cell) for cell in row] for row in grid]
