"""The ARC Prize submission: per task one entry per test pair, in order, two attempts each.

The second attempt differs from the first wherever there is a second candidate. What is written is
strictly of the format. What is scored may be anybody's; what is not legal in it counts as wrong.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
    if problems:
        raise InvalidDataError(problems)
    write_atomically(path, json.dumps(submission) + "\n")


class Graded(NamedTuple):
    """What a submission of anybody's is worth.

    An attempt that is missing or no legal grid is a wrong one, and counted.
    """

    score: (
        Score | None
    )  # both at K = 2 of the tasks whose outputs are known; None if there are none
    num_missing: int  # attempts of scored test pairs
    num_illegal: int  # of these
    num_unknown: int  # tasks that are not among those that are scored or predicted

    @property
    def remarks(self) -> list[str]:
        """Say what was counted, a sentence each."""
        counted = (
            (self.num_missing, "attempts are missing; each counts as a wrong one"),
            (self.num_illegal, "attempts are no legal grid; each counts as a wrong one"),
            (self.num_unknown, "tasks are none of the data; they do not count"),
        )
        return [f"{number} {what}" for number, what in counted if number]


def grade_submission(value: Any, tasks: Sequence[Task], where: str) -> Graded:
    """Score the value of a submission file against tasks.

    Raises:
        InvalidDataError: if it is no object with task ids as keys.
    """
    if not isinstance(value, dict):
        raise InvalidDataError(
            [f"{where}: expected an object with task ids as keys, got {shown(value)}"]
        )
    num_missing, num_illegal = 0, 0
    solved: dict[str, tuple[bool, ...]] = {}
    for task_id, outputs in scored_tasks(tasks).items():
        entries = value.get(task_id)
        found = []
        for i, truth in enumerate(outputs):
            entry = entries[i] if isinstance(entries, list) and i < len(entries) else None
            attempts = entry if isinstance(entry, dict) else {}
            given = [attempts[name] for name in ATTEMPT_NAMES if name in attempts]
            legal = [grid for grid in given if not any(grid_problems(grid, where))]
            num_missing += len(ATTEMPT_NAMES) - len(given)
            num_illegal += len(given) - len(legal)
            found.append(any(np.array_equal(truth, grid) for grid in legal))
        solved[task_id] = tuple(found)
    known = {task.id for task in tasks}
    return Graded(
        score=score_solved(solved),
        num_missing=num_missing,
        num_illegal=num_illegal,
        num_unknown=sum(task_id not in known for task_id in value),
    )


def grade_file(path: Path, tasks: Sequence[Task]) -> Graded:
    """Score a submission file against tasks.

    Raises:
        InvalidDataError: if the file can't be read or is no object with task ids as keys.
    """
    return grade_submission(read_json(path), tasks, str(path))
