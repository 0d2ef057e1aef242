"""Turn predictions into the files of an evaluation directory, and a ladder into text."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arc_data.task import Task
from eval.ladder import build_ladder
from eval.predictions import Predictions
from eval.submission import build_submission
from eval.vote import rank_candidates

LADDER_FILE = "ladder.json"
PREDICTIONS_FILE = "predictions.npz"
SUBMISSION_FILE = "submission.json"

SCORE_TITLES = {
    "all_tests": "every test pair of the task solved",
    "arc_prize": "mean over the task's test pairs",
}


def write_results(
    directory: Path, predictions: Predictions, tasks: Sequence[Task], *, attempts: Sequence[int]
) -> dict[str, Any]:
    """Vote, score and write ladder.json and submission.json; returns the ladder."""
    ladder = build_ladder(predictions, tasks, attempts=attempts)
    submission = build_submission(tasks, rank_candidates(predictions))
    directory.mkdir(parents=True, exist_ok=True)
    for name, value in ((LADDER_FILE, ladder), (SUBMISSION_FILE, submission)):
        (directory / name).write_text(json.dumps(value) + "\n", encoding="utf-8")
    return ladder


def format_ladders(ladders: Mapping[str, Mapping[str, Any]]) -> str:
    """Both ladders of one or several runs as a table, in percent, side by side by rung."""
    first = next(iter(ladders.values()))
    width = max(len(name) for name in ladders)
    lines = []
    for score, title in SCORE_TITLES.items():
        rungs = list(first[score])
        lines.append(f"{score}: {title}, % of {first['num_scored_tasks']} tasks")
        lines.append(" " * width + "".join(f"{'K=' + rung:>8}" for rung in rungs) + "  any K")
        for name, ladder in ladders.items():
            cells = [ladder[score].get(rung) for rung in rungs] + [ladder["oracle"][score]["all"]]
            lines.append(f"{name:{width}}" + "".join(map(_percent, cells)))
        lines.append("")
    for score in SCORE_TITLES:
        rungs = list(first["votes_at_2"][score])
        lines.append(f"{score} at K=2, over votes A")
        lines.append(" " * width + "".join(f"{'A=' + rung:>8}" for rung in rungs))
        for name, ladder in ladders.items():
            cells = [ladder["votes_at_2"][score].get(rung) for rung in rungs]
            lines.append(f"{name:{width}}" + "".join(map(_percent, cells)))
        lines.append("")
    return "\n".join(lines)


def _percent(fraction: float | None) -> str:
    return f"{'n/a':>8}" if fraction is None else f"{100 * fraction:8.2f}"
