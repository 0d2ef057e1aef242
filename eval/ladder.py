"""The evaluation ladder: both scores over attempts K, and at K = 2 over votes A and segments."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool

from eval.predictions import Predictions
from eval.record import Record
from eval.score import Score, score, truth_ranks
from eval.tables import SCORE_TITLES, Table, format_html, format_text, percent
from eval.vote import Ballots, Ranking

ATTEMPTS = (1, 2, 4, 8, 16)  # the paper's rungs
VOTES = (1, 4, 16, 64, 256, 1000)
ARC_PRIZE_ATTEMPTS = 2


class Rungs(Record):
    """Both scores by rung: fractions of the scored tasks; None where nothing is scored."""

    all_tests: dict[int, float | None]
    arc_prize: dict[int, float | None]

    def of(self, score: str) -> dict[int, float | None]:
        """Return the rungs of a score, by its name."""
        return getattr(self, score)


class AnyRung(Record):
    """A score with every candidate allowed."""

    all: float | None


class Oracle(Record):
    """Both scores where the truth may be any of the candidates."""

    all_tests: AnyRung
    arc_prize: AnyRung

    def of(self, score: str) -> float | None:
        """Return a score, by its name."""
        return getattr(self, score).all


class Ladder(Rungs):
    """What ladder.json holds: both scores over attempts K, and at K = 2 over votes and segments.

    ``segments_at_2`` has the rungs that were predicted: the answers if no row ran more segments;
    None if none were asked for. ``warnings`` says what makes the numbers doubtful.
    """

    oracle: Oracle
    votes_at_2: Rungs  # over A: the rungs of ``VOTES`` that there are, and all of them
    segments_at_2: Rungs | None
    num_votes: int  # the largest number of augmentations of a test pair
    num_pooled: int  # evaluations whose votes are counted together
    mean_segments: float
    num_tasks: int
    num_scored_tasks: int
    num_scored_pairs: int
    num_empty: int | None = None  # predictions that are no grid, and no vote
    warnings: tuple[str, ...]

    def at(self, attempts: int = ARC_PRIZE_ATTEMPTS) -> Score | None:
        """Return both scores at so many attempts; None where nothing is scored.

        Raises:
            ValueError: if the ladder does not have the rung.
        """
        if attempts not in self.all_tests:
            rungs = ", ".join(map(str, self.all_tests))
            raise ValueError(f"attempts={attempts}: the ladder has the rungs {rungs}")
        found = (self.all_tests[attempts], self.arc_prize[attempts])
        return None if found[0] is None or found[1] is None else Score(found[0], found[1])

    def _repr_html_(self) -> str:
        return format_html(ladder_tables({"": self}))

    def show(self) -> None:
        """Print the ladder's tables."""
        print(format_ladders({"": self}))

    def __repr__(self) -> str:
        rungs = ", ".join(
            f"K={k} {'n/a' if value is None else f'{100 * value:.2f} %'}"
            for k, value in self.all_tests.items()
        )
        return f"Ladder(all_tests of {self.num_scored_tasks} tasks: {rungs})"


def build_ladder(ballots: Ballots, *, attempts: Sequence[int] = ATTEMPTS) -> Ladder:
    """Build the ladder of counted ballots."""
    predictions = ballots.predictions
    num_votes = int(predictions.vote.max()) + 1

    def at_2(voting: Bool[np.ndarray, " n"]) -> Score | None:
        return score(truth_ranks(ballots, ballots.rank(voting)), ARC_PRIZE_ATTEMPTS)

    final = ballots.rank()
    ranks = truth_ranks(ballots, final)
    at_attempts = _rungs({k: score(ranks, k) for k in sorted(set(attempts))})
    at_votes = _rungs(
        {
            votes: at_2(predictions.final & (predictions.vote < votes))
            for votes in sorted({*(v for v in VOTES if v < num_votes), num_votes})
        }
    )
    at_segments = {limit: at_2(rows) for limit, rows in _segment_rungs(predictions).items()}
    oracle = score(ranks, None)
    return Ladder(
        all_tests=at_attempts.all_tests,
        arc_prize=at_attempts.arc_prize,
        oracle=Oracle(
            all_tests=AnyRung(all=None if oracle is None else oracle.all_tests),
            arc_prize=AnyRung(all=None if oracle is None else oracle.arc_prize),
        ),
        votes_at_2=at_votes,
        segments_at_2=_rungs(at_segments) if at_segments else None,
        num_votes=num_votes,
        num_pooled=len(predictions.about.runs),
        mean_segments=float(predictions.segments[predictions.final].mean()),
        num_tasks=len(predictions.tasks),
        num_scored_tasks=len(ranks),
        num_scored_pairs=sum(map(len, ranks.values())),
        num_empty=int((ballots.row_candidate[predictions.final] < 0).sum()),
        warnings=tuple(_warnings(ballots, final, at_attempts, at_votes)),
    )


def ladder_tables(ladders: Mapping[str, Ladder]) -> list[Table]:
    """Both scores over attempts, then over votes, then over segments where asked for."""
    first = next(iter(ladders.values()))
    tables = [
        Table(
            caption=f"{score}: {SCORE_TITLES[score]}, % of {first.num_scored_tasks} tasks",
            columns=[*(f"K={rung}" for rung in first.of(score)), "any K"],
            rows={
                name: [
                    *(percent(ladder.of(score).get(rung)) for rung in first.of(score)),
                    percent(ladder.oracle.of(score)),
                ]
                for name, ladder in ladders.items()
            },
        )
        for score in Score._fields
    ]
    for letter, axis, rungs in (
        ("A", "votes A", {name: ladder.votes_at_2 for name, ladder in ladders.items()}),
        ("S", "segments S", {name: ladder.segments_at_2 for name, ladder in ladders.items()}),
    ):
        found = {name: at for name, at in rungs.items() if at is not None}
        if len(found) < len(rungs):
            continue
        own = next(iter(found.values()))
        tables += [
            Table(
                caption=f"{score} at K=2, over {axis}",
                columns=[f"{letter}={rung}" for rung in own.of(score)],
                rows={
                    name: [percent(at.of(score).get(rung)) for rung in own.of(score)]
                    for name, at in found.items()
                },
            )
            for score in Score._fields
        ]
    return tables


def format_ladders(ladders: Mapping[str, Ladder]) -> str:
    """The tables as text, and what makes the numbers doubtful."""
    lines = [format_text(ladder_tables(ladders))]
    for name, ladder in ladders.items():
        of = f"{name}: " if name else ""
        if ladder.num_pooled > 1:
            lines.append(
                f"{of}an ensemble of {ladder.num_pooled} evaluations, their votes pooled\n"
            )
        if ladder.num_empty:
            lines.append(f"{of}{ladder.num_empty} predictions are empty, which is no vote\n")
        lines += [f"warning: {of}{warning}" for warning in ladder.warnings]
    return "\n".join(lines)


def _segment_rungs(predictions: Predictions) -> dict[int, Bool[np.ndarray, " n"]]:
    """The rows that answer when no row may run more segments, by that limit."""
    p = predictions
    limits = sorted(set(p.segments[~p.final].tolist()))
    if not limits:
        return {}
    rungs = {
        limit: np.where(p.final, p.segments <= limit, p.segments == limit)
        for limit in (*limits, int(p.segments[p.final].max()))
    }
    # A pooled file may lack a limit; a rung on which not everybody votes would be no rung.
    return {limit: rows for limit, rows in rungs.items() if rows.sum() == p.final.sum()}


def _warnings(ballots: Ballots, final: Ranking, attempts: Rungs, votes: Rungs) -> list[str]:
    p = ballots.predictions
    warnings = list(dict.fromkeys(note for about in p.about.runs for note in about.notes))
    num_pairs = sum(len(task.test) for task in p.tasks)
    if len(ballots.pairs) < num_pairs:
        num_missing = num_pairs - len(ballots.pairs)
        warnings.append(f"{num_missing} of {num_pairs} test pairs have no prediction")
    voters = np.bincount(ballots.row_pair[p.final], minlength=len(ballots.pairs))
    num_lonely = int((voters <= 1).sum())
    if num_lonely:
        warnings.append(
            f"{num_lonely} of {num_pairs} test pairs have one voter: did the augmentations reach "
            "the evaluation?"
        )
    elif not (np.bincount(ballots.candidate_pair[final.order]) > 1).any():
        warnings.append(
            "no test pair has two candidates, all voters agree: did the augmentations and the "
            "puzzle embeddings reach the evaluation?"
        )
    empty = int((ballots.row_candidate[p.final] < 0).sum())
    if 2 * empty >= p.final.sum():
        warnings.append(f"{empty} of {p.final.sum()} predictions are empty, which is no vote")
    for rungs, over in ((attempts.arc_prize, "attempts K"), (votes.arc_prize, "votes A")):
        values = set(rungs.values())
        (value,) = values if len(values) == 1 else (None,)
        if len(rungs) > 1 and value is not None and value != 1.0:
            warnings.append(
                f"the ladder is flat, {100 * value:.2f} % (arc_prize) at every rung of "
                f"{over}: did the augmentations and the puzzle embeddings reach the evaluation?"
            )
    return warnings


def _rungs(scores: dict[int, Score | None]) -> Rungs:
    """Turn scores by rung into rungs by score."""
    return Rungs(
        all_tests={rung: None if s is None else s.all_tests for rung, s in scores.items()},
        arc_prize={rung: None if s is None else s.arc_prize for rung, s in scores.items()},
    )
