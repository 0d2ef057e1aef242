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

from eval.record import Record
from eval.score import TruthRanks

NUM_RESAMPLES = 10_000
EQUAL_BELOW = 1e-9  # means of thirds over seeds differ by rounding
LEVEL = 0.95


class Spread(NamedTuple):
    """Mean and standard deviation over seeds; None where nothing is known, or of one seed."""

    mean: float | None
    sd: float | None


class Spreads(Record):
    """Mean and standard deviation of both scores, by rung of attempts."""

    all_tests: dict[int, Spread]
    arc_prize: dict[int, Spread]

    def of(self, score: str) -> dict[int, Spread]:
        """Return the rungs of a score, by its name."""
        return getattr(self, score)


class Difference(Record):
    """Arm minus baseline, in fractions of the tasks."""

    mean: float
    low: float  # of the 95 % interval over tasks
    high: float
    low_with_seeds: float | None  # seeds drawn too; None where both arms have one alone
    high_with_seeds: float | None
    won: int  # tasks that the arm solves more often
    lost: int

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval over tasks."""
        return self.low, self.high

    @property
    def interval_with_seeds(self) -> tuple[float, float] | None:
        """The 95 % interval over tasks and seeds; None where both arms have one seed alone."""
        if self.low_with_seeds is None or self.high_with_seeds is None:
            return None
        return self.low_with_seeds, self.high_with_seeds

    def __repr__(self) -> str:
        low, high = (f"{100 * bound:+.1f}" for bound in self.interval)
        won = f"{self.won} tasks won, {self.lost} lost"
        return f"Difference({100 * self.mean:+.1f} points, {low} to {high} over tasks; {won})"


class Differences(Record):
    """Differences in both scores, by rung of attempts."""

    all_tests: dict[int, Difference]
    arc_prize: dict[int, Difference]

    def of(self, score: str) -> dict[int, Difference]:
        """Return the rungs of a score, by its name."""
        return getattr(self, score)


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
) -> Differences:
    """Compare two arms' answers, a :data:`~eval.score.TruthRanks` a seed."""

    def rungs(score: str) -> dict[int, Difference]:
        return {
            k: paired_difference(task_values(arm, k, score), task_values(baseline, k, score))
            for k in attempts
        }

    return Differences(all_tests=rungs("all_tests"), arc_prize=rungs("arc_prize"))


def spread(values: Sequence[float | None]) -> Spread:
    """Return mean and standard deviation of those values that are known."""
    known = [value for value in values if value is not None]
    if not known:
        return Spread(None, None)
    sd = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return Spread(float(np.mean(known)), sd)


def spread_of_rungs(seeds: Sequence[Mapping[int, float | None]]) -> dict[int, Spread]:
    """Return mean and standard deviation over seeds of each rung of a ladder."""
    return {rung: spread([one[rung] for one in seeds]) for rung in seeds[0]}
