"""Paired differences: values by hand, and intervals that cover what they should."""

import numpy as np
import pytest

from eval.paired import compare_ranks, paired_difference, spread_of_rungs, task_values


def test_a_tasks_value_is_its_score_by_seed():
    seeds = [{"a": (1, 3), "b": (2,)}, {"a": (2, 2), "b": (None,)}]
    np.testing.assert_allclose(task_values(seeds, 2, "all_tests"), [[0, 1], [1, 0]])
    np.testing.assert_allclose(task_values(seeds, 2, "arc_prize"), [[0.5, 1], [1, 0]])
    np.testing.assert_allclose(task_values(seeds, 4, "all_tests"), [[1, 1], [1, 0]])


def test_the_difference_is_counted_by_task():
    arm = np.array([[1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0]])
    found = paired_difference(arm, np.array([[0.0, 1.0, 1.0, 0.0]]))
    assert (found.mean, found.won, found.lost) == (0.125, 2, 1)
    assert found.low < 0.125 < found.high
    same = paired_difference(np.ones((1, 5)), np.ones((1, 5)))
    assert tuple(dict(same).values()) == (0.0, 0.0, 0.0, None, None, 0, 0)
    assert (same.interval, same.interval_with_seeds) == ((0.0, 0.0), None)
    assert repr(same).startswith("Difference(+0.0 points, +0.0 to +0.0 over tasks; 0 tasks won")


def test_equal_means_of_thirds_are_a_tie():
    """1 + 1 + 1/3 and 1 + 1/3 + 1 differ in the last digit."""
    arm, baseline = (
        [{"a": ranks} for ranks in seeds]
        for seeds in (
            [(1, 1, 1), (1, 1, 1), (1, 2, 2)],
            [(1, 1, 1), (1, 2, 2), (1, 1, 1)],
        )
    )
    found = compare_ranks(arm, baseline, [1]).arc_prize[1]
    assert (found.won, found.lost) == (0, 0)


def test_an_interval_covers_the_true_difference_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        baseline = rng.random(60) < 0.4
        arm = np.where(rng.random(60) < 0.3, rng.random(60) < 0.7, baseline)  # 0.3 * (0.7 - 0.4)
        found = paired_difference(arm[None].astype(float), baseline[None].astype(float))
        covered += found.low <= 0.09 <= found.high
    assert 0.90 <= covered / 200 <= 0.98


def test_the_interval_with_seeds_knows_how_far_they_lie_apart():
    """Two seeds that agree task by task on average, and on nothing; by hand for one task."""
    rng = np.random.default_rng(0)
    half = (rng.random(60) < 0.5).astype(float)
    arm = np.stack([np.ones(60), np.zeros(60)])  # a seed solves all, the other nothing
    found = paired_difference(arm, np.stack([half, half]))
    assert found.low_with_seeds is not None
    assert found.low_with_seeds < found.low - 0.3
    assert found.high_with_seeds > found.high + 0.3
    alike = paired_difference(np.stack([half, half]), np.zeros((2, 60)))
    assert (alike.low_with_seeds, alike.high_with_seeds) == (alike.low, alike.high)
    # Of one task: the arm's mean is 0, 1/2 or 1 with chances 1/4, 1/2, 1/4.
    one = paired_difference(np.array([[1.0], [0.0]]), np.zeros((1, 1)))
    assert (one.low, one.high) == (0.5, 0.5)
    assert (one.low_with_seeds, one.high_with_seeds) == (0.0, 1.0)


def test_the_interval_is_a_function_of_the_values():
    arm, baseline = np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]]), np.array([[0.0, 0.0, 1.0]])
    assert paired_difference(arm, baseline) == paired_difference(arm, baseline)


def test_every_rung_of_both_scores_is_compared():
    arm, baseline = [{"a": (1,), "b": (4,)}], [{"a": (4,), "b": (4,)}]
    found = compare_ranks(arm, baseline, [1, 4])
    assert found.all_tests[1].mean == 0.5
    assert found.arc_prize[4].mean == 0.0


def test_mean_and_spread_over_seeds():
    found = spread_of_rungs([{1: 0.25, 2: None}, {1: 0.75, 2: None}])
    assert found == {1: (0.5, pytest.approx(np.std([0.25, 0.75], ddof=1))), 2: (None, None)}
    assert spread_of_rungs([{1: 0.25}]) == {1: (0.25, None)}
