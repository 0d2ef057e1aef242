"""Turn predictions into the files of an evaluation directory."""

from collections.abc import Sequence
from pathlib import Path

from eval.ladder import Ladder, build_ladder
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
) -> Ladder:
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
    ladder.save(directory / LADDER_FILE)
    plot_ladders({name: ladder}, directory / PLOT_FILE)
    write_report(ballots, candidates, ladder, directory / REPORT_FILE)
    return ladder
