"""The ARC Prize submission: per task one entry per test pair, in order, two attempts each.

The second attempt differs from the first wherever there is a second candidate.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arc_data.atomic import write_atomically
from arc_data.files import read_json
from arc_data.grid import grid_problems, shown
from arc_data.task import InvalidDataError, Task
from eval.score import Score, score_solved, scored_tasks
from eval.vote import Candidate, TestPair

Submission = dict[str, list[dict[str, list[list[int]]]]]

ATTEMPT_NAMES = ("attempt_1", "attempt_2")
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
    grids = [candidate.grid.tolist() for candidate in candidates[:2]] or [NO_ANSWER]
    return dict(zip(ATTEMPT_NAMES, (grids[0], grids[-1]), strict=True))


def submission_problems(value: Any, tasks: Sequence[Task], where: str) -> Iterator[str]:
    """Everything that keeps a value from being a submission for ``tasks``, one line each."""
    if not isinstance(value, dict):
        yield f"{where}: expected an object with task ids as keys, got {shown(value)}"
        return
    wanted = {task.id: task for task in tasks}
    for task_id in value:
        if task_id not in wanted:
            yield f"{where}, task {shown(task_id)}: expected a task of the challenge"
    for task_id, task in wanted.items():
        place = f"{where}, task {shown(task_id)}"
        entries = value.get(task_id)
        if not isinstance(entries, list) or len(entries) != len(task.test):
            found = shown(entries) if task_id in value else "no such task"
            yield f"{place}: expected {len(task.test)} entries, one a test pair, got {found}"
            continue
        for i, entry in enumerate(entries):
            if not isinstance(entry, dict) or set(entry) != set(ATTEMPT_NAMES):
                yield f"{place}, test pair {i}: expected {' and '.join(ATTEMPT_NAMES)} alone"
                continue
            for name in ATTEMPT_NAMES:
                yield from grid_problems(entry[name], f"{place}, test pair {i}, {name}")


def write_submission(submission: Submission, tasks: Sequence[Task], path: Path) -> None:
    """Write ``submission.json``, after checking it against the challenge."""
    problems = list(submission_problems(submission, tasks, str(path)))
    assert not problems, problems[0]
    write_atomically(path, json.dumps(submission) + "\n")


def read_submission(path: Path, tasks: Sequence[Task]) -> Submission:
    """A submission for ``tasks``.

    Raises:
        InvalidDataError: with every problem found.
    """
    value = read_json(path)
    problems = list(submission_problems(value, tasks, str(path)))
    if problems:
        raise InvalidDataError(problems)
    return value


def score_submission(submission: Submission, tasks: Sequence[Task]) -> Score | None:
    """Both scores at K = 2 of the tasks whose outputs are known; None if there are none."""
    return score_solved(
        {
            task_id: tuple(
                any(np.array_equal(truth, entry[name]) for name in ATTEMPT_NAMES)
                for truth, entry in zip(outputs, submission[task_id], strict=True)
            )
            for task_id, outputs in scored_tasks(tasks).items()
        }
    )
