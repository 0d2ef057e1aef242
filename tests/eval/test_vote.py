"""The vote: parity with two recorded voters, independence of order, and odd ballots."""

import numpy as np
import pytest

from arc_data.augment import Augmentation, from_dihedral
from eval.ladder import build_ladder
from eval.score import score, truth_ranks
from eval.vote import count_ballots, undo_augmentations

ATTEMPTS = (1, 2, 4, 5, 8, 10, 16, 100, 1000)


def candidates_of(predictions):
    ballots = count_ballots(predictions)
    return ballots.candidates(ballots.rank())


def ranks_of(predictions):
    ballots = count_ballots(predictions)
    return truth_ranks(ballots, ballots.rank())


def test_both_scores_equal_the_recorded_voters(recorded):
    predictions, expected = recorded
    assert len(predictions) == 912
    ranks = ranks_of(predictions)
    for k in ATTEMPTS:
        both = score(ranks, k)
        assert round(both.arc_prize, 4) == round(expected["pass_at_k_arc_prize"][str(k)], 4)
        assert round(both.all_tests, 4) == expected["pass_at_k_all_tests"][str(k)]


def test_the_order_of_the_predictions_makes_no_difference(recorded):
    predictions, _ = recorded
    shuffled = predictions.take(np.random.default_rng(0).permutation(len(predictions)))
    original, other = candidates_of(predictions), candidates_of(shuffled)
    assert original.keys() == other.keys()
    for pair, candidates in original.items():
        for ours, theirs in zip(candidates, other[pair], strict=True):
            np.testing.assert_array_equal(ours.grid, theirs.grid)
            assert ours[1:] == theirs[1:]  # the mean halt values bit for bit
    assert build_ladder(count_ballots(predictions)) == build_ladder(count_ballots(shuffled))


def test_undoing_at_once_equals_undoing_one_by_one(make_predictions, monkeypatch):
    monkeypatch.setattr("eval.vote.CELLS_AT_ONCE", 16)  # several gathers per shape
    rng = np.random.default_rng(0)
    rows = []
    for i in range(200):
        colors = (0, *(int(c) for c in 1 + rng.permutation(9)))
        grid = rng.integers(0, 10, rng.integers(1, 4, 2))
        rows.append(("t", i, from_dihedral(int(rng.integers(8)), colors), grid.tolist(), 0.5))
    predictions = make_predictions(rows)
    height, width, cells = undo_augmentations(predictions)
    expected = list(predictions.grids())
    assert [grid.shape for grid in expected] == list(zip(height, width, strict=True))
    assert np.concatenate([grid.reshape(-1) for grid in expected]).tolist() == cells.tolist()


def test_votes_then_halt_then_shape_and_bytes_decide(make_predictions, plain):
    rows = [
        ("t", 0, plain, [[1]], 0.1),
        ("t", 0, plain, [[1]], 0.1),  # two votes beat any halt value
        ("t", 0, plain, [[2]], 0.9),
        ("t", 0, plain, [[3]], 0.9),  # equal to the last but for its bytes
        ("t", 0, plain, [[4, 4]], 0.95),
    ]
    ranked = candidates_of(make_predictions(rows))["t", 0]
    assert [c.grid.tolist() for c in ranked] == [[[1]], [[4, 4]], [[2]], [[3]]]
    assert [c.votes for c in ranked] == [2, 1, 1, 1]
    assert ranked[0].halt == pytest.approx(0.1)


def test_grids_of_other_shape_with_equal_bytes_are_two_candidates(make_predictions, plain):
    rows = [("t", 0, plain, [[1, 2, 3, 4]], 0.5), ("t", 0, plain, [[1, 2], [3, 4]], 0.5)]
    assert len(candidates_of(make_predictions(rows))["t", 0]) == 2


def test_an_empty_prediction_is_no_vote(make_predictions, plain):
    rows = [("t", 0, plain, [], 0.9), ("t", 1, plain, [[5]], 0.1)]
    found = candidates_of(make_predictions(rows))
    assert found["t", 0] == []
    assert [c.grid.tolist() for c in found["t", 1]] == [[[5]]]


def test_predictions_that_are_all_empty_have_no_candidates(make_predictions, make_task, plain):
    predictions = make_predictions([("t", 0, plain, [], 0.9)], [make_task("t", [[5]])])
    assert candidates_of(predictions) == {("t", 0): []}
    assert ranks_of(predictions) == {"t": (None,)}


def test_a_full_canvas_is_a_grid_as_any_other(make_predictions, make_task, plain):
    full = np.full((30, 30), 3).tolist()
    predictions = make_predictions([("t", 0, plain, full, 0.5)], [make_task("t", full)])
    assert ranks_of(predictions) == {"t": (1,)}


def test_two_test_pairs_alike_vote_apart(make_predictions, make_task, plain):
    # Their inputs are equal, as are the first one's answers and the second one's truth.
    rows = [("t", 0, plain, [[7]], 0.5), ("t", 0, plain, [[7]], 0.5), ("t", 1, plain, [[8]], 0.5)]
    predictions = make_predictions(rows, [make_task("t", [[7]], [[7]])])
    assert ranks_of(predictions) == {"t": (1, None)}


def test_a_pair_without_prediction_shifts_nothing(make_predictions, make_task, plain):
    predictions = make_predictions(
        [("t", 1, plain, [[8]], 0.5)], [make_task("t", [[7]], [[8]]), make_task("u", [[1]])]
    )
    assert ranks_of(predictions) == {"t": (None, 1), "u": (None,)}


def test_the_augmentation_is_undone_before_counting(make_predictions, plain):
    move = Augmentation(colors=(0, 2, 1, *range(3, 10)), transpose=True, quarter_turns=3)
    grid = np.array([[1, 0, 2]], dtype=np.uint8)
    rows = [("t", 0, plain, grid, 0.5), ("t", 0, move, move.apply(grid), 0.5)]
    (only,) = candidates_of(make_predictions(rows))["t", 0]
    assert only.votes == 2
    np.testing.assert_array_equal(only.grid, grid)


def test_one_of_two_test_pairs_right_is_0_and_one_half(make_predictions, make_task, plain):
    rows = [("t", 0, plain, [[7]], 0.5), ("t", 1, plain, [[1]], 0.5)]
    predictions = make_predictions(rows, [make_task("t", [[7]], [[8]])])
    assert score(ranks_of(predictions), 2) == (0.0, 0.5)


def test_a_task_without_known_output_is_not_scored(make_predictions, make_task, plain):
    rows = [("t", 0, plain, [[7]], 0.5), ("t", 1, plain, [[1]], 0.5)]
    predictions = make_predictions(rows, [make_task("t", [[7]], None)])
    assert ranks_of(predictions) == {}
    assert score({}, 2) is None
