"""Vote and score from files, without a model."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np

from arc_data.task import Task
from eval.artifacts import PREDICTIONS_FILE, write_artifacts
from eval.ladder import ATTEMPTS, Ladder
from eval.predictions import Predictions, load_predictions, pool, replace_tasks
from eval.submission import Graded, grade_file


def vote_again(
    paths: Sequence[Path],
    *,
    out: Path | None = None,
    tasks: tuple[Task, ...] | None = None,
    votes: int | None = None,
    attempts: Sequence[int] = ATTEMPTS,
) -> tuple[Path, Ladder]:
    """Recompute the results of predictions files; returns their folder and the ladder.

    Args:
        paths: of the files; the votes of several are counted together.
        out: where the results go; None: beside the first file.
        tasks: whose outputs score; None: those in the files.
        votes: count the first so many augmentations alone; None: all.
        attempts: rungs K of the ladder.

    Raises:
        ValueError: if a file can't be read, is given twice, or the files do not go together.
    """
    several = [load_predictions(path) for path in paths]
    contents = [sha256(path.read_bytes()).digest() for path in paths]
    if len(set(contents)) < len(contents):
        raise ValueError("predictions: the same predictions are given twice")
    predictions = pool(several) if len(several) > 1 else several[0]
    if tasks is not None:
        predictions = replace_tasks(predictions, tasks)
    if votes is not None:
        predictions = _first_votes(predictions, votes)
    directory = paths[0].parent if out is None else out
    name = " + ".join(path.absolute().parent.name for path in paths)
    return directory, write_artifacts(directory, predictions, attempts=attempts, name=name)


def _first_votes(predictions: Predictions, votes: int) -> Predictions:
    num_votes = int(predictions.vote.max()) + 1
    if votes > num_votes:
        raise ValueError(f"votes={votes}: the predictions have {num_votes} augmentations")
    return predictions.take(np.flatnonzero(predictions.vote < votes))


def score_file(path: Path, tasks: tuple[Task, ...] | None) -> Graded:
    """Score a submission, by default with the tasks of the predictions beside it."""
    if tasks is None:
        beside = path.with_name(PREDICTIONS_FILE)
        if not beside.is_file():
            raise ValueError(
                f"submission={path}: there is no {PREDICTIONS_FILE} beside it that has the tasks; "
                "name them with data=... (see hrm-deeploop data --help)"
            )
        tasks = load_predictions(beside).tasks
    return grade_file(path, tasks)
