"""An answer has the attempts of every test pair, and shows ids and notes as they are."""

import pytest

from eval.task_answer import answer_task
from eval.views import ARC_COLORS

HALT = 0.5
MARKUP = "<b>&[x]"


@pytest.fixture
def answer_of(make_predictions, make_task, plain):
    """Answer a task with the outputs ``truths`` by the votes of each of its test pairs."""

    def answer(*votes_of_pairs, truths, task_id="t", notes=()):
        rows = [
            (task_id, number, plain, grid, HALT)
            for number, votes in enumerate(votes_of_pairs)
            for grid in votes
        ]
        return answer_task(make_predictions(rows, [make_task(task_id, *truths)]), notes)

    return answer


def test_attempts_are_the_two_candidates_with_most_votes_best_first(answer_of):
    votes = [[[1]], [[2]], [[2]], [[3]], [[3]], [[3]]]
    answer = answer_of(votes, truths=[[[2]]])
    assert [(a.grid.tolist(), a.votes) for a in answer.attempts] == [([[3]], 3), ([[2]], 2)]
    assert len(answer.tests[0].candidates) == 3
    assert repr(answer) == "TaskAnswer(t: 1 test pair, best 3 of 6 votes, solved)"


def test_an_empty_prediction_is_asked_and_no_vote(answer_of):
    answer = answer_of([[[1]], []], truths=[None])
    assert answer.tests[0].num_votes == 2
    assert [attempt.votes for attempt in answer.attempts] == [1]
    nothing = answer_of([[], []], truths=[[[1]]])
    assert nothing.attempts == ()
    assert repr(nothing) == "TaskAnswer(t: 1 test pair, best 0 of 2 votes, not solved)"


@pytest.mark.parametrize(
    ("truth", "expected", "said"),
    [([[1]], True, ", solved)"), ([[7]], False, ", not solved)"), (None, None, "votes)")],
)
def test_solved_is_not_known_where_the_output_is_not(truth, expected, said, answer_of):
    answer = answer_of([[[1]]], truths=[truth])
    assert answer.tests[0].is_solved is answer.is_solved is expected
    assert repr(answer).endswith(said)
    captions = [caption for caption, _ in answer.tests[0].figures()]
    shown = [] if truth is None else ["truth"]
    assert captions == ["input", *shown, "attempt 1: 1 of 1 votes"]


def test_of_several_pairs_each_has_its_attempts(answer_of):
    answer = answer_of([[[1]], [[1]]], [[[2]], [[3]]], truths=[[[1]], [[4]]])
    assert repr(answer) == "TaskAnswer(t: 2 test pairs, best 2 and 1 of 2 votes, not solved)"
    assert [test.is_solved for test in answer.tests] == [True, False]
    with pytest.raises(ValueError, match=r"t has 2 test pairs: take \.tests\[i\]"):
        _ = answer.attempts
    uneven = answer_of([[[1]], [[1]]], [[[2]]], truths=[[[1]], None])
    assert repr(uneven) == "TaskAnswer(t: 2 test pairs, best 2 of 2 and 1 of 1 votes)"


def test_predictions_of_several_tasks_are_refused(make_predictions, plain):
    rows = [(task_id, 0, plain, [[1]], HALT) for task_id in ("a", "b")]
    with pytest.raises(ValueError, match="expected predictions of one task, got 2"):
        answer_task(make_predictions(rows))


def test_html_has_the_color_of_every_cell_and_escapes_texts(answer_of):
    answer = answer_of([[[2, 3], [2, 4]]], truths=[None], task_id=MARKUP, notes=(MARKUP,))
    html = answer._repr_html_()
    cells = {color: html.count(f"background:{ARC_COLORS[color]};") for color in range(10)}
    assert {color: n for color, n in cells.items() if n} == {1: 1, 2: 2, 3: 1, 4: 1}
    assert html.count("&lt;b&gt;&amp;[x]") == 2
    assert MARKUP not in html


def test_show_swallows_no_brackets(answer_of, capsys):
    answer_of([[[2]]], truths=[None], task_id="id[x]", notes=("a [bold]note[/]",)).show()
    printed = capsys.readouterr().out
    for text in ("id[x]: 1 test pair", "note: a [bold]note[/]", "attempt 1: 1 of 1 votes"):
        assert text in printed
