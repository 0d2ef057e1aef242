"""Vote and score from files, without a model.

python scripts/vote.py predictions=runs/mini/eval/step_00001500/predictions.npz
python scripts/vote.py predictions=[A/predictions.npz,B/predictions.npz] pool=true out=ensemble
python scripts/vote.py submission=runs/mini/eval/step_00001500/submission.json
python scripts/vote.py submission=submission.json data=arc1
"""

from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from arc_data.config import DataConfig
from arc_data.task import Task
from eval.artifacts import PREDICTIONS_FILE, write_artifacts
from eval.predictions import Predictions, load_predictions, pool, replace_tasks
from eval.submission import read_submission, score_submission
from eval.tables import SCORE_TITLES
from hrm_deeploop.config import StrictConfig
from hrm_deeploop.runs.evaluation import Count


class VoteOptions(StrictConfig):
    """Keys of ``configs/vote.yaml``."""

    predictions: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | None
    submission: str | None
    pool: bool
    votes: Count | None
    attempts: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)]
    out: str | None
    data: DataConfig | None

    @model_validator(mode="after")
    def _one_of_both(self) -> "VoteOptions":
        if (self.predictions is None) == (self.submission is None):
            raise ValueError("give one of predictions=FILE and submission=FILE")
        return self

    @model_validator(mode="after")
    def _pooled_when_asked(self) -> "VoteOptions":
        num_files = len(self.predictions or ())
        if num_files > 1 and not self.pool:
            raise ValueError(
                f"predictions: {num_files} files given; pool=true counts their votes together, as "
                "an ensemble"
            )
        if self.out is not None and Path(self.out).exists() and not Path(self.out).is_dir():
            raise ValueError(f"out={self.out}: is no folder")
        if self.out is None and (num_files > 1 or self.votes is not None):
            raise ValueError("out: a folder is required with pool=true or votes=..., out=DIR")
        return self


def vote(options: VoteOptions, tasks: tuple[Task, ...] | None) -> tuple[Path, dict[str, Any]]:
    """Recompute the results of predictions files; returns their folder and the ladder."""
    paths = [Path(path) for path in options.predictions or ()]
    several = [load_predictions(path) for path in paths]
    contents = [sha256(path.read_bytes()).digest() for path in paths]
    if len(set(contents)) < len(contents):
        raise ValueError("predictions: the same predictions are given twice")
    predictions = pool(several) if len(several) > 1 else several[0]
    if tasks is not None:
        predictions = replace_tasks(predictions, tasks)
    if options.votes is not None:
        predictions = _first_votes(predictions, options.votes)
    directory = paths[0].parent if options.out is None else Path(options.out)
    name = " + ".join(path.absolute().parent.name for path in paths)
    return directory, write_artifacts(directory, predictions, attempts=options.attempts, name=name)


def _first_votes(predictions: Predictions, votes: int) -> Predictions:
    num_votes = int(predictions.vote.max()) + 1
    if votes > num_votes:
        raise ValueError(f"votes={votes}: the predictions have {num_votes} augmentations")
    return predictions.take(np.flatnonzero(predictions.vote < votes))


def score_file(path: Path, tasks: tuple[Task, ...] | None) -> dict[str, Any]:
    """Both scores of a submission at K = 2, with the tasks of the predictions beside it."""
    if tasks is None:
        beside = path.with_name(PREDICTIONS_FILE)
        if not beside.is_file():
            raise ValueError(
                f"submission={path}: there is no {PREDICTIONS_FILE} beside it that has the tasks; "
                "name them with data=... (see scripts/data.py)"
            )
        tasks = load_predictions(beside).tasks
    scores = score_submission(read_submission(path, tasks), tasks)
    return {name: None if scores is None else getattr(scores, name) for name in SCORE_TITLES}
