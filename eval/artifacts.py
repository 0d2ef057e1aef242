"""Turn predictions into the files of an evaluation directory."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.ladder import build_ladder
from eval.plots import plot_ladders
from eval.predictions import Predictions
from eval.report import write_report
from eval.submission import build_submission, write_submission
from eval.vote import count_ballots

PREDICTIONS_FILE = "predictions.npz"
LADDER_FILE = "ladder.json"
SUBMISSION_FILE = "submission.json"
PLOT_FILE = "ladder.png"
REPORT_FILE = "report.html"


def write_artifacts(
    directory: Path, predictions: Predictions, *, attempts: Sequence[int], name: str
) -> dict[str, Any]:
    """Vote, score, and write ladder, plot, submission and report; returns the ladder.

    ``name`` is what the plot calls the evaluation.
    """
    ballots = count_ballots(predictions)
    ladder = build_ladder(ballots, attempts=attempts)
    candidates = ballots.candidates(ballots.rank())
    directory.mkdir(parents=True, exist_ok=True)
    write_submission(
        build_submission(predictions.tasks, candidates),
        predictions.tasks,
        directory / SUBMISSION_FILE,
    )
    (directory / LADDER_FILE).write_text(json.dumps(ladder) + "\n", encoding="utf-8")
    plot_ladders({name: ladder}, directory / PLOT_FILE)
    write_report(ballots, candidates, ladder, directory / REPORT_FILE)
    return ladder
