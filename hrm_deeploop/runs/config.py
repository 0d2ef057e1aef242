"""The whole configuration of a run, and its file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from arc_data.config import DataConfig
from eval.questions import Window
from hrm_deeploop.attention import AttentionName
from hrm_deeploop.config import (
    HRMConfig,
    Model,
    OptimConfig,
    ScalingConfig,
    StrictConfig,
    TransitionConfig,
    TransitionName,
)
from hrm_deeploop.device import DeviceName, DtypeName
from hrm_deeploop.runs.metrics import LoggerName
from hrm_deeploop.scaling import Gradient, HRMGradient, LoopedGradient

CONFIG_FILE = "config.yaml"
NewPuzzles = Literal["refuse", "init"]


class EvaluationConfig(StrictConfig):
    """How a run is evaluated."""

    votes: int | None = Field(ge=1)  # A, identity included; null: every augmentation there is
    validation_votes: int = Field(ge=1)  # A of the evaluations during training
    attempts: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False, min_length=1)]
    batch_size: int = Field(ge=1)


class AlignmentConfig(StrictConfig):
    """Visit alignment during training (see hrm_deeploop/alignment.py)."""

    every: int | None = Field(ge=1)  # measure every so many steps; null: never
    rows: int = Field(ge=1)  # training examples, the same each time
    segment: int = Field(ge=1)  # of deep supervision


class RunConfig(StrictConfig):
    """One training run; every key is in ``configs/train.yaml``."""

    data: DataConfig
    model: Annotated[Model, Field(discriminator="name")]
    scaling: ScalingConfig
    gradient: Gradient
    transition: TransitionConfig  # of L, or of a looped model's loop
    transition_H: TransitionConfig
    window: Window
    optim: OptimConfig
    evaluation: EvaluationConfig
    alignment: AlignmentConfig
    seed: int = Field(ge=0, lt=2**63)
    epochs: int = Field(ge=1, le=10**9)
    total_steps: int | None = Field(ge=1, le=10**9)  # overrides epochs
    run_dir: str = Field(min_length=1)
    resume: Literal["never", "auto"]
    stop_after: int | None = Field(ge=1)  # stop cleanly after this step
    checkpoint_every: int | None = Field(ge=1)  # null: at the end alone
    keep_last: int = Field(ge=1)  # checkpoints to keep, newest first ...
    keep_every: int | None = Field(ge=1)  # ... and those of steps that this divides; and the best
    eval_interval: int | None = Field(ge=1)  # validate, and save, every so many steps
    new_puzzles: NewPuzzles
    micro_batch_size: int | None = Field(ge=1)  # null: a rank's whole batch at once
    log_every: int = Field(ge=1)
    logger: LoggerName
    device: DeviceName
    dtype: DtypeName
    attention: AttentionName
    compile: bool

    @model_validator(mode="after")
    def _votes_exist(self) -> "RunConfig":
        if self.evaluation.votes is not None and self.evaluation.votes > self.data.num_aug + 1:
            raise ValueError(
                f"evaluation.votes={self.evaluation.votes}: there are {self.data.num_aug + 1} "
                f"puzzles of a task (data.num_aug={self.data.num_aug} and the identity)"
            )
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
    def _parts_fit_the_model(self) -> "RunConfig":
        model, name = self.model, self.model.name
        allowed = get_args(HRMGradient if isinstance(model, HRMConfig) else LoopedGradient)
        if self.gradient not in allowed:
            raise ValueError(
                f"gradient={self.gradient}: with model.name={name} allowed are {', '.join(allowed)}"
            )
        if isinstance(model, HRMConfig):
            updates, truncated = model.L_cycles, self.gradient == "last_update"
        else:
            updates, truncated = model.rounds, self.gradient == "last_round"
            if self.transition_H.name != "huginn":
                raise ValueError(f"transition_H={self.transition_H.name}: {name} has no H")
            if self.scaling.rule == "deeploop_asymmetric":
                raise ValueError(f"scaling=deeploop_asymmetric is about H and L: {name} has no H")
        if self.transition.enters_once and truncated and updates > 1:
            first = "update of a cycle" if isinstance(model, HRMConfig) else "round"
            raise ValueError(
                f"gradient={self.gradient}: transition={self.transition.name} takes the input in "
                f"at the first {first}, which must carry gradient; allowed: "
                f"{', '.join(g for g in allowed if g != self.gradient)}"
            )
        L, H = self.transition, self.transition_H
        if "recirculation" in (L.name, H.name) and L.grows_with_input and H.grows_with_input:
            bounded = [
                name
                for name in get_args(TransitionName)
                if not TransitionConfig(name=name).grows_with_input
            ]
            raise ValueError(
                f"transition_H={H.name}: with transition={L.name} each module would add the "
                "other's state to its own, and both grow without bound; beside recirculation "
                f"allowed are {', '.join(bounded)}"
            )
        return self

    @model_validator(mode="after")
    def _exponents_fit_the_model(self) -> "RunConfig":
        is_hrm, p_H = isinstance(self.model, HRMConfig), self.scaling.p_H
        if is_hrm and self.scaling.rule == "custom" and p_H is None:
            raise ValueError("scaling: rule=custom needs scaling.p_H")
        if not is_hrm and p_H is not None:
            raise ValueError(f"scaling.p_H={p_H}: {self.model.name} has no H")
        return self

    def num_steps(self, examples_per_epoch: int) -> int:
        """Length of the run in optimiser steps."""
        if self.total_steps is not None:
            return self.total_steps
        return max(1, self.epochs * examples_per_epoch // self.optim.global_batch_size)


# Keys that runs of earlier versions do not have, and what these runs did.
ADDED_KEYS: dict[str, Any] = {
    "window": "full",
    "alignment": {"every": None, "rows": 16},
    "alignment.segment": 1,
    "transition": "huginn",
    "transition_H": "huginn",
    "model.name": "hrm",
}
LATER_KEYS = ("transition", "transition_H", "model.name")  # than cell.json and predictions.npz


def without_later_keys(config: "RunConfig") -> dict[str, Any]:
    """The configuration without keys that are younger than the files that are compared by it.

    Such a key is left out where it says what was done before there was the key.
    """
    values = config.model_dump(mode="json")
    for key in LATER_KEYS:
        group, _, inner = key.rpartition(".")
        place = values[group] if group else values
        if place[inner] == ADDED_KEYS[key]:
            del place[inner]
    return values


# What may differ between a run and its continuation.
RESUMABLE_KEYS = frozenset(
    (
        *("run_dir", "resume", "stop_after", "checkpoint_every", "logger", "device"),
        *("keep_last", "keep_every", "new_puzzles", "micro_batch_size", "compile"),
        "attention",
        *("evaluation.votes", "evaluation.attempts", "evaluation.batch_size"),
        *("evaluation.validation_votes", "eval_interval", "alignment.every", "alignment.rows"),
        "alignment.segment",
    )
)


def validate(kind: type[BaseModel], values: dict[str, Any]) -> Any:
    """``kind(**values)``, whose first problem is one line with key, value and what is allowed."""
    try:
        return kind(**values)
    except ValidationError as error:
        problems = [p for p in error.errors() if not _only_follows(p, error.errors())]
        raise ValueError(
            _describe(problems[0]) + (f" (and {len(problems) - 1} more)" if problems[1:] else "")
        ) from error


def _only_follows(problem: Any, problems: Sequence[Any]) -> bool:
    """Whether a list is too short because of a wrong element, which has a problem of its own."""
    place = problem["loc"]
    return problem["type"] == "too_short" and any(
        len(other["loc"]) > len(place) and other["loc"][: len(place)] == place for other in problems
    )


def _describe(problem: Any) -> str:
    loc = problem["loc"]  # behind `model` stands which kind of model it was taken for
    if loc[:1] == ("model",) and loc[1:2] and loc[1] in ("hrm", "looped"):
        loc = (loc[0], *loc[2:])
    if loc in (("transition", "name"), ("transition_H", "name")):
        loc = loc[:1]  # which is given as the name
    key = ".".join(map(str, loc))
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "union_tag_invalid":
        context = problem["ctx"]
        name = context["discriminator"].strip("'")
        return f"{key}.{name}={context['tag']}: allowed are {context['expected_tags']}"
    if problem["type"] == "value_error":  # our own validators name the values themselves
        return f"{key}: {message}" if key else message
    if problem["type"] == "extra_forbidden":
        return f"{key}={problem['input']}: there is no such key"
    if problem["type"] == "missing":
        hint = "; a kind of model is chosen by model=FILE" if loc[:1] == ("model",) else ""
        return f"{key}: a value is required{hint}"
    if problem["type"] == "tuple_type":
        given = problem["input"]
        return f"{key}={given}: expected a list" + ("" if given is None else f", {key}=[{given}]")
    if problem["type"] == "too_short":
        return f"{key}={list(problem['input'])}: expected at least {problem['ctx']['min_length']}"
    return f"{key}={problem['input']}: {message[0].lower()}{message[1:]}"


def save_config(config: RunConfig, directory: Path) -> None:
    """Write ``config.yaml``."""
    (directory / CONFIG_FILE).write_text(to_yaml(config), encoding="utf-8")


def to_yaml(config: StrictConfig) -> str:
    """The values as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


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
        for key, value in ADDED_KEYS.items():
            group, _, inner = key.rpartition(".")
            place = given.get(group) if group else given
            if isinstance(place, dict):
                place.setdefault(inner, value)
        return validate(RunConfig, given)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read_yaml(path: Path) -> Any:
    """The plain containers of a YAML file.

    Raises:
        ValueError: if it can't be read or is not YAML.
    """
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a readable YAML file ({error})") from error
