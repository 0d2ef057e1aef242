"""The meaning of a model's and a training run's settings: frozen, strict, checked once.

Values live in ``configs/*.yaml``; keys keep HRM's names where the concept is HRM's. An unknown key
is an error, and so is a value of another type than the one asked for.
"""

from functools import cache, partial, update_wrapper
from inspect import signature
from typing import Any, Literal, TypeVar, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from hrm_deeploop.scaling import RULES, Rule

Config = TypeVar("Config", bound="StrictConfig")
# Far beyond sense, so that a slip of the keyboard is refused instead of computed.
MAX_COUNT, MAX_WIDTH, MAX_RATE = 1000, 2**16, 1e30
MAX_STEPS = 10**9


class StrictConfig(BaseModel):
    """Base of every configuration: immutable, no unknown keys, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def changed(self: Config, **values: Any) -> Config:
        """Return this configuration with other values, checked as it was itself.

        Raises:
            ValueError: if the values do not go together.
        """
        return type(self).model_validate({**dict(self), **(self.model_extra or {}), **values})


class ReasonerConfig(StrictConfig):
    """Width, embeddings and halting: what every network here has."""

    name: str  # of the registered model
    hidden_size: int = Field(ge=1, le=MAX_WIDTH)
    num_heads: int = Field(ge=1, le=MAX_WIDTH)
    # The MLP is 2/3 of expansion * hidden_size wide, rounded up to a multiple (of 256 in HRM).
    expansion: float = Field(ge=0.01, le=100)
    mlp_multiple_of: int = Field(ge=1, le=MAX_WIDTH)
    pos_encodings: Literal["rope", "learned"]
    rope_theta: float = Field(ge=1, le=1e12)
    rms_norm_eps: float = Field(gt=0, le=1)
    mlp: Literal["swiglu", "conv_swiglu"] = "swiglu"  # of every block; layers.py says what each is
    puzzle_emb_ndim: int = Field(ge=0, le=MAX_WIDTH)  # 0: no puzzle embedding
    # Positions in front of the canvas, on which the puzzle vector lies; null: as many as it fills.
    num_puzzle_tokens: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    halt_max_steps: int = Field(ge=1, le=MAX_COUNT)  # segments an example may run
    halt_exploration_prob: float = Field(ge=0, le=1)
    q_target: Literal["halt_only", "bootstrap"]

    @model_validator(mode="after")
    def _heads_fit(self) -> "ReasonerConfig":
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} must be a multiple of num_heads={self.num_heads}"
            )
        if self.pos_encodings == "rope" and self.head_dim % 2:
            raise ValueError(
                f"hidden_size={self.hidden_size} with num_heads={self.num_heads} gives an odd head "
                f"size of {self.head_dim}; pos_encodings=rope turns pairs and needs an even one"
            )
        if self.num_puzzle_tokens is not None and (
            self.puzzle_emb_ndim > self.num_puzzle_tokens * self.hidden_size
            or self.puzzle_emb_ndim == 0
        ):
            raise ValueError(
                f"num_puzzle_tokens={self.num_puzzle_tokens}: puzzle_emb_ndim="
                f"{self.puzzle_emb_ndim} needs {-(-self.puzzle_emb_ndim // self.hidden_size)}"
            )
        return self

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def mlp_width(self) -> int:
        """Inner width of the MLP: 2/3 of expansion * hidden_size, rounded up (HRM)."""
        wanted = max(1, round(self.expansion * self.hidden_size * 2 / 3))
        return -(-wanted // self.mlp_multiple_of) * self.mlp_multiple_of

    @property
    def prefix_len(self) -> int:
        """Positions that the puzzle embedding takes in front of the canvas."""
        if self.num_puzzle_tokens is not None:
            return self.num_puzzle_tokens
        return -(-self.puzzle_emb_ndim // self.hidden_size)

    @property
    def num_q_values(self) -> int:
        """Outputs of the Q head: halt, and under ``bootstrap`` continue."""
        return 2 if self.q_target == "bootstrap" else 1


class ScalingConfig(StrictConfig):
    """Which residual scaling: the name of a rule, and its options."""

    model_config = ConfigDict(extra="allow")

    rule: str

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        if isinstance(given, str):
            given = {"rule": given}
        if not isinstance(given, dict) or not isinstance(given.get("rule"), str):
            return given
        name, known = given["rule"], options_of(given["rule"]).model_fields
        said = {key: value for key, value in given.items() if key != "rule" and value is not None}
        missing = [o for o, field in known.items() if field.is_required() and o not in said]
        if missing:
            keys = " and ".join(f"scaling.{option}" for option in missing)
            raise ValueError(f"rule={name} needs {keys}")
        unknown = [f"{key}={value}" for key, value in said.items() if key not in known]
        if unknown:
            raise ValueError(
                f"{', '.join(unknown)}: rule={name} has {', '.join(known) or 'no options'}"
            )
        return {"rule": name, **fill_in_options(options_of(name), said)}

    @property
    def options(self) -> dict[str, Any]:
        """The rule's options by name, defaults included."""
        return dict(self.model_extra or {})

    def resolve(self) -> Rule:
        """Return the rule with its options, a function of visits alone."""
        rule, options = RULES[self.rule], self.options
        return update_wrapper(partial(rule, **options), rule) if options else rule


def fill_in_options(options: type[StrictConfig], said: dict[str, Any]) -> dict[str, Any]:
    """Return a kind's options with their defaults.

    Raises:
        ValueError: naming the first value that is not allowed, in one line.
    """
    try:
        return options(**said).model_dump()
    except ValidationError as error:
        problem = error.errors()[0]
        option = ".".join(map(str, problem["loc"]))
        raise ValueError(f"{option}={problem['input']}: {problem['msg']}") from error


def options_of(rule: str) -> type[StrictConfig]:
    """Return the options of a scaling rule, its keyword-only parameters, as a configuration.

    Raises:
        ValueError: if there is no such rule.
    """
    return _options_of(RULES[rule])


@cache
def _options_of(function: Rule) -> type[StrictConfig]:
    hints = get_type_hints(function, include_extras=True)
    options = {
        name: (
            hints.get(name, Any),
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for name, parameter in signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    fields: dict[str, Any] = options
    return create_model("RuleOptions", __base__=StrictConfig, **fields)
