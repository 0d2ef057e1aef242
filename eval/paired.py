"""Paired differences between arms of a comparison, with intervals over tasks.

Each task has a value per arm: its score at K attempts (all test pairs solved, or the share of
them), averaged over the arm's seeds. The interval is the percentile bootstrap over tasks: tasks
are drawn with replacement, and both arms keep their values of a drawn task. It says how much the
difference depends on which tasks were asked, not how much on the seeds; their spread is reported
beside it.
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
    won: int  # tasks that the arm solves more often
    lost: int


def task_values(
    ranks_of_seeds: Sequence[TruthRanks], attempts: int, score: str
) -> Float[np.ndarray, " tasks"]:
    """Each task's score at ``attempts``, averaged over seeds, in the order of the first."""
    values = np.zeros((len(ranks_of_seeds), len(ranks_of_seeds[0])))
    for s, ranks in enumerate(ranks_of_seeds):
        for t, task_id in enumerate(ranks_of_seeds[0]):
            solved = [rank is not None and rank <= attempts for rank in ranks[task_id]]
            values[s, t] = all(solved) if score == "all_tests" else np.mean(solved)
    return values.mean(axis=0)


def paired_difference(
    arm: Float[np.ndarray, " tasks"], baseline: Float[np.ndarray, " tasks"], *, seed: int = 0
) -> Difference:
    """The mean difference and its interval."""
    difference = arm - baseline
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(difference), (NUM_RESAMPLES, len(difference)))
    means = difference[drawn].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(
        mean=float(difference.mean()),
        low=float(low),
        high=float(high),
        won=int((difference > EQUAL_BELOW).sum()),
        lost=int((difference < -EQUAL_BELOW).sum()),
    )


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
