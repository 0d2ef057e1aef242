"""What may be asked of an evaluation and of a vote: the keys of ``evaluate`` and ``vote``."""

from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from arc_data.config import DataConfig, Strings
from eval.questions import Window
from hrm_deeploop.attention import AttentionName
from hrm_deeploop.config import StrictConfig
from hrm_deeploop.device import DeviceName
from hrm_deeploop.runs.checking import validate
from hrm_deeploop.runs.config import NewPuzzles
from hrm_deeploop.runs.predict import Halting, PuzzleIds

TrainedPairs = Literal["leave_out", "score"]


class Choices(StrictConfig):
    """What distinguishes an evaluation from the one that the run's configuration describes."""

    votes: PositiveInt | None = None  # augmentations of a test pair; None: as the run says
    tasks: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | None = None
    halting: Halting = "fixed"
    puzzle_ids: PuzzleIds = "correct"
    window: Window | None = None  # None: as the run trained
    segments: Annotated[tuple[PositiveInt, ...], Field(strict=False)] = ()  # rungs of a ladder
    trained_pairs: TrainedPairs = "leave_out"  # test pairs that the run has trained on

    @property
    def label(self) -> str:
        """These choices as part of a directory's name, so that no evaluation replaces another."""
        parts = [
            *(["act"] if self.halting == "act" else []),
            *([self.puzzle_ids] if self.puzzle_ids != "correct" else []),
            *([f"{self.window}-window"] if self.window is not None else []),
            *([f"votes{self.votes}"] if self.votes is not None else []),
            *(["trained-pairs"] if self.trained_pairs == "score" else []),
        ]
        if self.segments:
            parts.append("segments" + "-".join(map(str, sorted(set(self.segments)))))
        if self.tasks is not None:
            digest = sha256(repr(sorted(set(self.tasks))).encode()).hexdigest()[:6]
            parts.append(f"tasks{len(set(self.tasks))}-{digest}")
        return "".join(f"-{part}" for part in parts)


class DataPaths(StrictConfig):
    """Where a run's data lies now; None: where it lay when the run was trained."""

    folders: Strings | None = None
    challenges: str | None = None
    solutions: str | None = None
    extra_folders: Strings | None = None

    def move(self, config: DataConfig) -> DataConfig:
        """Return the data's configuration with these paths.

        Raises:
            ValueError: if the run's data has no such paths.
        """
        given = {name: value for name, value in dict(self).items() if value is not None}
        return validate(DataConfig, {**dict(config), **given})


class EvaluateOptions(Choices):
    """Keys of ``configs/evaluate.yaml``."""

    run: Annotated[str, Field(min_length=1)]
    checkpoint: int | str = "last"
    attempts: Annotated[tuple[PositiveInt, ...], Field(strict=False, min_length=1)] | None = None
    batch_size: PositiveInt | None = None
    new_puzzles: NewPuzzles | None = None
    attention: AttentionName | None = None
    data: DataPaths = DataPaths()
    out: Annotated[str, Field(min_length=1)] | None = None  # None: a folder of the run's
    device: DeviceName = "auto"


class VoteOptions(StrictConfig):
    """Keys of ``configs/vote.yaml``."""

    predictions: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | None
    submission: str | None
    pool: bool
    votes: PositiveInt | None
    attempts: Annotated[tuple[PositiveInt, ...], Field(strict=False, min_length=1)]
    out: Annotated[str, Field(min_length=1)] | None
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
