"""The evaluation ladder: both scores over attempts K, and at K = 2 over votes A."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arc_data.task import Task
from eval.predictions import Predictions
from eval.score import Score, score, truth_ranks
from eval.vote import rank_candidates

ATTEMPTS = (1, 2, 4, 8, 16)  # the paper's rungs
VOTES = (1, 4, 16, 64, 256, 1000)
ARC_PRIZE_ATTEMPTS = 2


def build_ladder(
    predictions: Predictions, tasks: Sequence[Task], *, attempts: Sequence[int] = ATTEMPTS
) -> dict[str, Any]:
    """The content of ladder.json: fractions of the scored tasks, null where nothing is scored.

    ``oracle`` counts the truth anywhere among the candidates. ``votes_at_2`` has the rungs of
    ``VOTES`` that there are votes for, and all votes.
    """
    num_votes = int(predictions.vote.max()) + 1
    ranks = truth_ranks(tasks, rank_candidates(predictions))
    at_votes = {
        votes: score(
            truth_ranks(tasks, rank_candidates(predictions, max_votes=votes)), ARC_PRIZE_ATTEMPTS
        )
        for votes in sorted({*(v for v in VOTES if v < num_votes), num_votes})
    }
    return {
        **_by_score({k: score(ranks, k) for k in attempts}),
        "oracle": _by_score({"all": score(ranks, None)}),
        "votes_at_2": _by_score(at_votes),
        "num_votes": num_votes,
        "num_tasks": len(tasks),
        "num_scored_tasks": len(ranks),
        "num_scored_pairs": sum(map(len, ranks.values())),
    }


def _by_score(rungs: dict[Any, Score | None]) -> dict[str, dict[str, float | None]]:
    return {
        name: {str(rung): None if s is None else getattr(s, name) for rung, s in rungs.items()}
        for name in Score._fields
    }


def read_ladder(path: Path) -> dict[str, Any]:
    """A ladder.json."""
    return json.loads(path.read_text(encoding="utf-8"))
