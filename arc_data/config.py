"""Which tasks, how they are laid out and how often they are augmented: frozen and strict."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from arc_data.grid import MAX_SIDE

SourceName = Literal["arc1", "arc1-mini", "arc2"]


class DataConfig(BaseModel):
    """The data of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    source: SourceName
    canvas: int = Field(ge=1, le=MAX_SIDE)
    num_aug: int = Field(ge=0)  # augmentations of a task beside the identity, as in HRM
    seed: int = Field(ge=0)  # of the augmentations; the order of examples has the run's seed
    # Restricts the source to these ids; null takes all of its tasks.
    tasks: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | None
