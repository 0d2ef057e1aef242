"""The evaluation ladder: both scores over attempts K, and at K = 2 over votes A and segments."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from eval.predictions import Predictions
from eval.score import Score, score, truth_ranks
from eval.vote import Ballots, Ranking

ATTEMPTS = (1, 2, 4, 8, 16)  # the paper's rungs
VOTES = (1, 4, 16, 64, 256, 1000)
ARC_PRIZE_ATTEMPTS = 2


def build_ladder(ballots: Ballots, *, attempts: Sequence[int] = ATTEMPTS) -> dict[str, Any]:
    """The content of ladder.json: fractions of the scored tasks, null where nothing is scored.

    ``oracle`` counts the truth anywhere among the candidates. ``votes_at_2`` has the rungs of
    ``VOTES`` that there are augmentations for, and all of them. ``segments_at_2`` has the rungs
    that were predicted: the answers if no row ran more segments; null if none were asked for.
    ``num_votes`` is the largest number of augmentations of a test pair. ``warnings`` says what
    makes the numbers doubtful.
    """
    predictions = ballots.predictions
    num_votes = int(predictions.vote.max()) + 1

    def at_2(voting: Bool[np.ndarray, " n"]) -> Score | None:
        return score(truth_ranks(ballots, ballots.rank(voting)), ARC_PRIZE_ATTEMPTS)

    final = ballots.rank()
    ranks = truth_ranks(ballots, final)
    at_votes = {
        votes: at_2(predictions.final & (predictions.vote < votes))
        for votes in sorted({*(v for v in VOTES if v < num_votes), num_votes})
    }
    at_segments = {limit: at_2(rows) for limit, rows in _segment_rungs(predictions).items()}
    ladder = {
        **_by_score({k: score(ranks, k) for k in sorted(set(attempts))}),
        "oracle": _by_score({"all": score(ranks, None)}),
        "votes_at_2": _by_score(at_votes),
        "segments_at_2": _by_score(at_segments) if at_segments else None,
        "num_votes": num_votes,
        "num_pooled": len(predictions.about.get("pooled", [None])),
        "mean_segments": float(predictions.segments[predictions.final].mean()),
        "num_tasks": len(predictions.tasks),
        "num_scored_tasks": len(ranks),
        "num_scored_pairs": sum(map(len, ranks.values())),
    }
    return {**ladder, "warnings": _warnings(ballots, final, ladder)}


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


def _warnings(ballots: Ballots, final: Ranking, ladder: dict[str, Any]) -> list[str]:
    warnings = []
    p = ballots.predictions
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
    for name, over in (("arc_prize", "attempts K"), ("votes_at_2", "votes A")):
        rungs = ladder[name] if name == "arc_prize" else ladder[name]["arc_prize"]
        values = set(rungs.values())
        if len(rungs) > 1 and len(values) == 1 and values.isdisjoint({None, 1.0}):
            warnings.append(
                f"the ladder is flat, {100 * values.pop():.2f} % (arc_prize) at every rung of "
                f"{over}: did the augmentations and the puzzle embeddings reach the evaluation?"
            )
    return warnings


def _by_score(rungs: dict[Any, Score | None]) -> dict[str, dict[str, float | None]]:
    return {
        name: {str(rung): None if s is None else getattr(s, name) for rung, s in rungs.items()}
        for name in Score._fields
    }


def read_ladder(path: Path) -> dict[str, Any]:
    """A ladder.json."""
    return json.loads(path.read_text(encoding="utf-8"))
