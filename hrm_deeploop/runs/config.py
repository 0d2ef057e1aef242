"""The whole configuration of a run, and its file."""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from arc_data.atomic import write_atomically
from arc_data.config import DataConfig
from eval.compare import flatten
from eval.questions import Window
from eval.record import FORMAT, check_format
from hrm_deeploop import hrm, looped, trm, urm
from hrm_deeploop.attention import AttentionName
from hrm_deeploop.config import MAX_STEPS, ReasonerConfig, ScalingConfig, StrictConfig
from hrm_deeploop.device import DeviceName, DtypeName
from hrm_deeploop.loggers import LOGGERS
from hrm_deeploop.model import MODELS, Reasoner
from hrm_deeploop.optim import OPTIMIZERS, OptimConfig
from hrm_deeploop.registry import NOTEBOOK, Registry, load_plugins
from hrm_deeploop.runs.checking import WHOLE_LINE, one_line, read_yaml, to_yaml, validate
from hrm_deeploop.scaling import RULES, LayerGains, module_scaling
from hrm_deeploop.transitions import HUGINN, TRANSITIONS, TransitionConfig

__all__ = ["hrm", "looped", "trm", "urm"]  # imported for their models
TRANSITION_KEYS = ("transition", "transition_H")
CONFIG_FILE = "config.yaml"
Count = Annotated[int, Field(ge=1, le=MAX_STEPS)]
NewPuzzles = Literal["refuse", "init"]


class EvaluationConfig(StrictConfig):
    """How a run is evaluated."""

    votes: int | None = Field(
        ge=1, le=MAX_STEPS
    )  # A, identity included; null: every augmentation there is
    validation_votes: Count  # A of the evaluations during training
    attempts: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)]
    batch_size: Count


class AlignmentConfig(StrictConfig):
    """Visit alignment during training (see hrm_deeploop/alignment.py)."""

    every: Count | None  # measure every so many steps; null: never
    rows: Count  # training examples, the same each time
    segment: Count  # of deep supervision


def _named_kinds(values: Mapping[str, Any]) -> Iterator[tuple[Registry[Any], str]]:
    """List the kinds that a run's values name, each with its registry."""
    for registry, key, inner in (
        (MODELS, "model", "name"),
        (RULES, "scaling", "rule"),
        (TRANSITIONS, "transition", "name"),
        (TRANSITIONS, "transition_H", "name"),
        (OPTIMIZERS, "optim", "optimizer"),
        (LOGGERS, "logger", ""),
    ):
        value = values.get(key)
        name = value.get(inner) if isinstance(value, Mapping) else getattr(value, inner, value)
        if isinstance(name, str):
            yield registry, name


def parse_model(given: Any) -> Any:
    """Read the architecture of the registered model that ``name`` names."""
    if not isinstance(given, Mapping):
        return given
    if not isinstance(given.get("name"), str):
        raise PydanticCustomError(
            WHOLE_LINE, "model.name: a value is required; a kind of model is chosen by model=FILE"
        )
    try:
        return MODELS[given["name"]].Config(**given)
    except ValidationError as error:
        raise PydanticCustomError(
            WHOLE_LINE, "{line}", {"line": one_line(error, "model")}
        ) from error


class RunConfig(StrictConfig):
    """One training run; every key is in ``configs/train.yaml``."""

    data: DataConfig
    plugins: Annotated[tuple[str, ...], Field(strict=False)]  # modules that register kinds
    model: Annotated[SerializeAsAny[ReasonerConfig], BeforeValidator(parse_model)]
    scaling: ScalingConfig
    gradient: str
    transition: TransitionConfig  # of L, or of a looped model's loop
    transition_H: TransitionConfig
    window: Window
    optim: OptimConfig
    evaluation: EvaluationConfig
    alignment: AlignmentConfig
    seed: int = Field(ge=0, lt=2**63)
    epochs: Count
    total_steps: Count | None  # overrides epochs
    run_dir: str = Field(min_length=1)
    resume: Literal["never", "auto"]
    stop_after: Count | None  # stop cleanly after this step
    checkpoint_every: Count | None  # null: at the end alone
    keep_last: Count  # checkpoints to keep, newest first ...
    keep_every: int | None = Field(
        ge=1, le=MAX_STEPS
    )  # ... and those of steps that this divides; and the best
    eval_interval: Count | None  # validate, and save, every so many steps
    new_puzzles: NewPuzzles
    micro_batch_size: Count | None  # null: a rank's whole batch at once
    log_every: Count
    logger: str
    device: DeviceName
    dtype: DtypeName
    attention: AttentionName
    compile: bool

    @model_validator(mode="before")
    @classmethod
    def _record_plugins(cls, values: Any) -> Any:
        """Add the modules that define kinds which the values name, so that a file has them."""
        if not isinstance(values, dict) or not isinstance(values.get("plugins"), list | tuple):
            return values
        origins = [registry.origin(name) for registry, name in _named_kinds(values)]
        found = [origin for origin in origins if origin is not None]
        return {**values, "plugins": list(dict.fromkeys([*values["plugins"], *found]))}

    @field_validator("logger")
    @classmethod
    def _logger_is_registered(cls, name: str) -> str:
        LOGGERS[name]
        return name

    @model_validator(mode="after")
    def _votes_exist(self) -> "RunConfig":
        if self.evaluation.votes is not None:
            self.data.check_votes(self.evaluation.votes, "evaluation.votes")
        return self

    @model_validator(mode="after")
    def _evaluation_has_pairs(self) -> "RunConfig":
        if self.eval_interval is not None and not self.data.validation:
            raise ValueError(
                f"eval_interval={self.eval_interval} needs data.validation above 0: what is chosen "
                "during training is chosen on held-out demonstrations, never on test pairs"
            )
        return self

    @model_validator(mode="after")
    def _attention_and_alignment_can_be_computed(self) -> "RunConfig":
        if self.attention == "flash" and self.dtype in ("float32", "float64"):
            raise ValueError(
                f"attention=flash computes in bfloat16, not in dtype={self.dtype}; sdpa does in all"
            )
        segment, max_steps = self.alignment.segment, self.model.halt_max_steps
        if segment > max_steps:
            raise ValueError(
                f"alignment.segment={segment}: allowed are 1 to {max_steps}, model.halt_max_steps"
            )
        if self.alignment.every is not None and self.attention == "flash":
            raise ValueError(
                f"alignment.every={self.alignment.every}: attention=flash has no forward-mode "
                "derivatives; allowed are auto, sdpa and matmul"
            )
        return self

    @model_validator(mode="after")
    def _kinds_fit_each_other(self) -> "RunConfig":
        kind, gradient = self.kind, self.gradient
        if gradient not in kind.gradients:
            raise ValueError(
                f"gradient={gradient}: with model.name={self.model.name} allowed are "
                f"{', '.join(kind.gradients)}"
            )
        for key in TRANSITION_KEYS:
            if key not in kind.loops and getattr(self, key) != HUGINN:
                module = key.rpartition("_")[2]
                raise ValueError(f"{key}={getattr(self, key)}: {self.model.name} has no {module}")
        hidden = kind.hides_first_update(self.model, gradient)
        for key, first in hidden.items():
            if self.transitions[key].kind.enters_once:
                allowed = [g for g in kind.gradients if not kind.hides_first_update(self.model, g)]
                raise ValueError(
                    f"gradient={gradient}: {key}={self.transitions[key].name} takes the input in "
                    f"at the first {first}, which must carry gradient; allowed: "
                    f"{', '.join(allowed)}"
                )
        kind.check_transitions(self.transitions)
        try:
            _ = self.gains
        except ValueError as error:
            raise ValueError(f"scaling={self.scaling.rule}: {error}") from error
        return self

    @property
    def gains(self) -> dict[str, LayerGains]:
        """(alpha, beta) of every layer of every module; what the scaling rule comes to."""
        visits = self.kind.count_visits(self.model, self.gradient)
        return module_scaling(self.scaling.resolve(), visits)

    @property
    def kind(self) -> type[Reasoner]:
        """The registered model."""
        return MODELS[self.model.name]

    @property
    def transitions(self) -> dict[str, TransitionConfig]:
        """The transitions that the model has, by their keys."""
        return {key: getattr(self, key) for key in self.kind.loops}

    @property
    def digest(self) -> str:
        """SHA-256 of what decides the answers of given weights and the course of the training.

        That is every key but those that a continuation may change and those that name the tasks,
        which are compared by their content; and the gains that the scaling rule gives.
        """
        values = flatten(self.model_dump(mode="json"))
        left_out = RESUMABLE_KEYS | TASK_KEYS
        kept = {key: value for key, value in values.items() if key not in left_out}
        kept["gains"] = self.gains
        return sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()

    def num_steps(self, examples_per_epoch: int) -> int:
        """Length of the run in optimiser steps."""
        if self.total_steps is not None:
            return self.total_steps
        return max(1, self.epochs * examples_per_epoch // self.optim.global_batch_size)


# Where the data lies: its content is what is compared.
DATA_PATHS = ("data.folders", "data.challenges", "data.solutions", "data.extra_folders")
# Which tasks there are and which are held out: what new_puzzles=init lets change.
TASK_KEYS = frozenset(
    (*DATA_PATHS, "data.source", "data.splits", "data.tasks", "data.extra_sources", "data.evaluate")
)
# What may differ between a run and its continuation.
RESUMABLE_KEYS = frozenset(
    (
        *DATA_PATHS,
        *("plugins", "run_dir", "resume", "stop_after", "checkpoint_every", "logger", "device"),
        *("keep_last", "keep_every", "new_puzzles", "micro_batch_size", "compile"),
        "attention",
        *("evaluation.votes", "evaluation.attempts", "evaluation.batch_size"),
        *("evaluation.validation_votes", "eval_interval", "alignment.every", "alignment.rows"),
        "alignment.segment",
    )
)


def save_config(config: RunConfig, directory: Path) -> None:
    """Write ``config.yaml``."""
    write_atomically(directory / CONFIG_FILE, f"format: {FORMAT}\n{to_yaml(config)}")


def load_config(directory: Path) -> RunConfig:
    """The configuration of a run directory.

    Raises:
        ValueError: if there is none or it is not valid.
    """
    path = directory / CONFIG_FILE
    if not path.is_file():
        raise ValueError(f"{directory}: not a run directory, it has no {CONFIG_FILE}")
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected keys and values, got a {type(values).__name__}")
    try:
        given = {str(key): value for key, value in values.items()}
        check_format(given.pop("format", None))
        load_plugins(_listed(given.get("plugins")))
        return validate(RunConfig, given)
    except ValueError as error:
        again = ""
        if NOTEBOOK in _listed(values.get("plugins")):
            again = " (a notebook or script defined kinds of its own: define them again first)"
        raise ValueError(f"{path}: {error}{again}") from error


def _listed(plugins: Any) -> list[str]:
    return [name for name in plugins if isinstance(name, str)] if isinstance(plugins, list) else []
