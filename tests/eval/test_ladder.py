"""Ladders counted by hand, and the warnings about numbers that can't be trusted."""

import pytest

from eval.ladder import build_ladder, format_ladders
from eval.plots import ladders_svg, plot_ladders
from eval.predictions import About
from eval.tables import Table, format_markdown
from eval.vote import count_ballots


def ladder_of(predictions, **options):
    return build_ladder(count_ballots(predictions), **options)


def test_the_votes_ladder_counts_the_first_votes_alone(make_predictions, make_task, plain):
    answers = [[[7]], [[1]], [[1]], [[2]], [[2]]]
    rows = [("t", 0, plain, answer, 0.9 if answer == [[7]] else 0.5) for answer in answers]
    ladder = ladder_of(make_predictions(rows, [make_task("t", [[7]])]))
    assert ladder.votes_at_2.all_tests == {1: 1.0, 4: 1.0, 5: 0.0}
    assert ladder.all_tests == {1: 0.0, 2: 0.0, 4: 1.0, 8: 1.0, 16: 1.0}
    assert ladder.oracle.all_tests.all == 1.0
    assert ladder.segments_at_2 is None
    assert ladder.warnings == ()


def test_any_rungs_of_attempts_can_be_asked_for(make_predictions, make_task, plain):
    rows = [("t", 0, plain, [[c]], 0.5) for c in range(5)]
    ladder = ladder_of(make_predictions(rows, [make_task("t", [[4]])]), attempts=(1000, 5, 4))
    assert ladder.all_tests == {4: 0.0, 5: 1.0, 1000: 1.0}


def test_the_segments_ladder_is_the_answers_under_a_limit(make_predictions, make_task, plain):
    # The first row halts after 1 segment, the second after 4; it was asked on the way after 1, 2.
    rows = [
        ("t", 0, plain, [[1]], 0.9),
        ("t", 0, plain, [[2]], 0.5),
        ("t", 0, plain, [[7]], 0.5),
        ("t", 0, plain, [[7]], 0.5),
    ]
    predictions = make_predictions(
        rows, [make_task("t", [[7]])], segments=[1, 1, 2, 4], final=[True, False, False, True]
    )
    ladder = ladder_of(predictions)
    assert ladder.segments_at_2.all_tests == {1: 0.0, 2: 1.0, 4: 1.0}
    assert ladder.mean_segments == 2.5
    assert ladder.num_votes == 2  # what a row said on the way is no further vote
    assert ladder.all_tests[1] == 0.0


def test_nothing_is_scored_without_truth(make_predictions, plain):
    ladder = ladder_of(make_predictions([("t", 0, plain, [[c]], 0.5) for c in range(4)]))
    assert set(ladder.all_tests.values()) == {None}
    assert ladder.oracle.arc_prize.all is None
    assert (ladder.num_tasks, ladder.num_scored_tasks) == (1, 0)
    assert ladder.warnings == ()


def test_warnings_tell_of_lone_voters_of_unanimity_and_of_flat_ladders(
    make_predictions, make_task, plain
):
    tasks = [make_task("t", [[7]]), make_task("u", [[8]])]
    alone = ladder_of(make_predictions([("t", 0, plain, [[7]], 0.5)], tasks)).warnings
    assert alone[0] == "1 of 2 test pairs have no prediction"
    assert alone[1].startswith("1 of 2 test pairs have one voter")
    assert "flat, 50.00 % (arc_prize) at every rung of attempts K" in alone[2]
    rows = [("t", 0, plain, [[7]], 0.5), ("u", 0, plain, [[9]], 0.5)] * 2
    unanimous = ladder_of(make_predictions(rows, tasks)).warnings
    assert "no test pair has two candidates" in unanimous[0]
    assert "flat, 50.00 % (arc_prize) at every rung of votes A" in unanimous[2]
    rows = [("t", 0, plain, [], 0.5)] * 3 + [("t", 0, plain, [[1]], 0.5), ("t", 0, plain, [[7]], 0)]
    empty = ladder_of(make_predictions(rows, tasks[:1])).warnings
    assert empty[0] == "3 of 5 predictions are empty, which is no vote"


def test_a_perfect_ladder_is_flat_without_a_warning(make_predictions, make_task, plain):
    rows = [("t", 0, plain, [[7]], 0.5), ("t", 0, plain, [[7]], 0.5), ("t", 0, plain, [[1]], 0.5)]
    assert ladder_of(make_predictions(rows, [make_task("t", [[7]])])).warnings == ()


def test_empty_predictions_are_counted_and_notes_stand_among_the_warnings(
    make_predictions, make_task, plain
):
    rows = [("t", 0, plain, answer, 0.5) for answer in ([[7]], [], [[7]], [[1]])]
    about = About(notes=("2 of 5 evaluated tasks left out: larger than the canvas",))
    ladder = ladder_of(make_predictions(rows, [make_task("t", [[7]])], about=about))
    assert ladder.num_empty == 1
    assert ladder.warnings[0] == about.notes[0]
    text = format_ladders({"run": ladder})
    assert "run: 1 predictions are empty" in text
    assert "warning: run: 2 of 5 evaluated tasks left out" in text


@pytest.mark.parametrize("name", ["$\\frac{$", "a$b$c", "50 %", "_", "{x}^2"])
def test_a_run_of_any_name_is_drawn(name, make_predictions, make_task, plain, tmp_path):
    rows = [("t", 0, plain, [[7]], 0.5), ("t", 0, plain, [[1]], 0.5)]
    ladder = ladder_of(make_predictions(rows, [make_task("t", [[7]])]))
    plot_ladders({name: ladder}, tmp_path / "ladder.png")
    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")
    assert ladders_svg({name: ladder})


def test_a_bar_in_an_entry_is_no_border_of_a_markdown_table():
    text = format_markdown([Table("caption", ["|G|"], {"a|b": ["1"]})])
    assert text.splitlines() == ["**caption**", "", r"| | \|G\| |", "|---|---|", r"| a\|b | 1 |"]
