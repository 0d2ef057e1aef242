"""Paired differences between arms of a comparison, with intervals over tasks.

Each task has a value per arm and seed: its score at K attempts (all test pairs solved, or the share
of them). The interval is the percentile bootstrap over tasks of the means over seeds: tasks are
drawn with replacement, and both arms keep their values of a drawn task. It says how much the
difference depends on which tasks were asked. A second, wider one draws each arm's seeds with
replacement too; of few seeds it still knows little, for it sees no seed but those.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from eval.score import Score, TruthRanks

NUM_RESAMPLES = 10_000
EQUAL_BELOW = 1e-9  # means of thirds over seeds differ by rounding
LEVEL = 0.95


class Difference(NamedTuple):
    """Arm minus baseline, in fractions of the tasks."""

    mean: float
    low: float
    high: float
    low_with_seeds: float | None  # seeds drawn too; None where both arms have one alone
    high_with_seeds: float | None
    won: int  # tasks that the arm solves more often
    lost: int


def task_values(
    ranks_of_seeds: Sequence[TruthRanks], attempts: int, score: str
) -> Float[np.ndarray, "seeds tasks"]:
    """Each task's score at ``attempts``, by seed, in the order of the first."""
    values = np.zeros((len(ranks_of_seeds), len(ranks_of_seeds[0])))
    for s, ranks in enumerate(ranks_of_seeds):
        for t, task_id in enumerate(ranks_of_seeds[0]):
            solved = [rank is not None and rank <= attempts for rank in ranks[task_id]]
            values[s, t] = all(solved) if score == "all_tests" else np.mean(solved)
    return values


def paired_difference(
    arm: Float[np.ndarray, "seeds tasks"],
    baseline: Float[np.ndarray, "other_seeds tasks"],
    *,
    seed: int = 0,
) -> Difference:
    """The mean difference and its intervals."""
    difference = arm.mean(axis=0) - baseline.mean(axis=0)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(difference), (NUM_RESAMPLES, len(difference)))
    low, high = _interval(difference[drawn].mean(axis=1))
    with_seeds: tuple[float, float] | tuple[None, None] = (None, None)
    if len(arm) > 1 or len(baseline) > 1:
        means = [
            np.take_along_axis(_draw_seeds(values, rng), drawn, axis=1).mean(axis=1)
            for values in (arm, baseline)
        ]
        with_seeds = _interval(means[0] - means[1])
    return Difference(
        mean=float(difference.mean()),
        low=low,
        high=high,
        low_with_seeds=with_seeds[0],
        high_with_seeds=with_seeds[1],
        won=int((difference > EQUAL_BELOW).sum()),
        lost=int((difference < -EQUAL_BELOW).sum()),
    )


def _draw_seeds(
    values: Float[np.ndarray, "seeds tasks"], rng: np.random.Generator
) -> Float[np.ndarray, "resamples tasks"]:
    """Means over as many seeds as there are, drawn with replacement."""
    drawn = rng.integers(0, len(values), (NUM_RESAMPLES, len(values)))
    weights = (drawn[:, :, None] == np.arange(len(values))).mean(axis=1)
    return weights @ values


def _interval(values: Float[np.ndarray, " resamples"]) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def compare_ranks(
    arm: Sequence[TruthRanks], baseline: Sequence[TruthRanks], attempts: Sequence[int]
) -> dict[str, dict[str, Difference]]:
    """By score and rung of attempts."""
    return {
        score: {
            str(k): paired_difference(task_values(arm, k, score), task_values(baseline, k, score))
            for k in attempts
        }
        for score in Score._fields
    }


def mean_and_spread(ladders: Sequence[Mapping[str, float | None]]) -> dict[str, tuple]:
    """Mean and standard deviation over seeds of each rung; (None, None) where nothing is scored."""
    found = {}
    for rung in ladders[0]:
        values = [ladder[rung] for ladder in ladders]
        scored = [value for value in values if value is not None]
        if not scored:
            found[rung] = (None, None)
            continue
        spread = float(np.std(scored, ddof=1)) if len(scored) > 1 else None
        found[rung] = (float(np.mean(scored)), spread)
    return found
