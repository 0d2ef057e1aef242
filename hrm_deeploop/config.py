"""The meaning of a model's and a training run's settings: frozen, strict, checked once.

Values live in ``configs/*.yaml``; keys keep HRM's names where the concept is HRM's. An unknown key
is an error, and so is a value of another type than the one asked for.
"""

from typing import Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    model_serializer,
    model_validator,
)

from hrm_deeploop.scaling import RULES, Count, Rule, RuleName

# Far beyond sense, so that a slip of the keyboard is refused instead of computed.
MAX_COUNT, MAX_WIDTH, MAX_RATE = 1000, 2**16, 1e30


class StrictConfig(BaseModel):
    """Base of every configuration: immutable, no unknown keys, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ReasonerConfig(StrictConfig):
    """Width, embeddings and halting: what every network here has."""

    hidden_size: int = Field(ge=1, le=MAX_WIDTH)
    num_heads: int = Field(ge=1, le=MAX_WIDTH)
    # The MLP is 2/3 of expansion * hidden_size wide, rounded up to a multiple (of 256 in HRM).
    expansion: float = Field(ge=0.01, le=100)
    mlp_multiple_of: int = Field(ge=1, le=MAX_WIDTH)
    pos_encodings: Literal["rope", "learned"]
    rope_theta: float = Field(ge=1, le=1e12)
    rms_norm_eps: float = Field(gt=0, le=1)
    puzzle_emb_ndim: int = Field(ge=0, le=MAX_WIDTH)  # 0: no puzzle embedding
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
    def num_puzzle_tokens(self) -> int:
        """Positions that the puzzle embedding takes in front of the canvas."""
        return -(-self.puzzle_emb_ndim // self.hidden_size)

    @property
    def num_q_values(self) -> int:
        """Outputs of the Q head: halt, and under ``bootstrap`` continue."""
        return 2 if self.q_target == "bootstrap" else 1


class HRMConfig(ReasonerConfig):
    """Architecture of one HRM."""

    name: Literal["hrm"] = "hrm"
    H_cycles: int = Field(ge=1, le=MAX_COUNT)  # C: cycles of a forward
    L_cycles: int = Field(ge=1, le=MAX_COUNT)  # C_L: updates of z_L in a cycle
    H_layers: int = Field(ge=1, le=MAX_COUNT)  # K_H: physical blocks of H
    L_layers: int = Field(ge=1, le=MAX_COUNT)  # K_L


class LoopedConfig(ReasonerConfig):
    """Architecture of one looped Transformer (DeepLoop, arXiv:2607.13491, sec. 3)."""

    name: Literal["looped"]
    prelude_layers: int = Field(ge=0, le=MAX_COUNT)  # i: blocks before the loop
    layers: int = Field(ge=1, le=MAX_COUNT)  # K: physical blocks of the loop
    rounds: int = Field(ge=1, le=MAX_COUNT)  # R
    coda_layers: int = Field(ge=0, le=MAX_COUNT)  # j: blocks behind it
    tie_embeddings: bool  # read tokens out with the embedding
    embedding_norm: bool  # RMSNorm of the embedded input


Model = HRMConfig | LoopedConfig

Step = Literal["causal", "noncausal", "unit"]
Objective = Literal["delta", "inner"]
TransitionName = Literal[
    "huginn",
    "vanilla",
    "parcae",
    "parcae_aligned",
    "hyperloop",
    "hyperloop_aligned",
    "operloop",
    "recurrent_gpt",
    "recirculation",
]
# Options of the transitions that have any, and their defaults.
TRANSITION_OPTIONS: dict[str, dict[str, Any]] = {
    "hyperloop": {"streams": 4},
    "hyperloop_aligned": {"streams": 4},
    "operloop": {"streams": 4, "step": "causal", "objective": "delta"},
    "recurrent_gpt": {"noise": 0.1},
}


class TransitionConfig(StrictConfig):
    """How a loop reads and writes its state: a name, or a name and its options."""

    name: TransitionName
    streams: int | None = Field(default=None, ge=2, le=MAX_COUNT)
    step: Step | None = None
    objective: Objective | None = None
    noise: float | None = Field(default=None, ge=0, le=MAX_RATE)  # standard deviation

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        if isinstance(given, str):
            given = {"name": given}
        if not isinstance(given, dict):
            if isinstance(given, cls):
                return given
            raise ValueError(
                f"{given}: expected one of {', '.join(get_args(TransitionName))}, or a name with "
                "options, {name: operloop, step: unit}"
            )
        said = {  # null is the default of an option, and no excuse for a key that is none
            key: value
            for key, value in given.items()
            if value is not None or key not in cls.model_fields
        }
        return {**TRANSITION_OPTIONS.get(str(given.get("name")), {}), **said}

    @model_validator(mode="after")
    def _options_are_its_own(self) -> "TransitionConfig":
        allowed = TRANSITION_OPTIONS.get(self.name, {})
        for option in ("streams", "step", "objective", "noise"):
            value = getattr(self, option)
            if value is not None and option not in allowed:
                raise ValueError(
                    f"{option}={value}: {self.name} has {', '.join(allowed) or 'no options'}"
                )
        return self

    @model_serializer
    def _write_briefly(self) -> Any:
        options = TRANSITION_OPTIONS.get(self.name, {})
        own = {option: getattr(self, option) for option in options}
        return self.name if own == options else {"name": self.name, **own}

    def __str__(self) -> str:
        options = {
            option: getattr(self, option) for option in TRANSITION_OPTIONS.get(self.name, {})
        }
        listed = ", ".join(f"{option} {value}" for option, value in options.items())
        return f"{self.name} ({listed})" if listed else self.name

    @property
    def enters_once(self) -> bool:
        """Whether the injection enters at the first update of a cycle (or first round) alone.

        All that have parameters of single updates are among them.
        """
        return self.streams is not None or self.name in ("vanilla", "recirculation")

    @property
    def grows_with_input(self) -> bool:
        """Whether a longer injection makes the state longer: no norm is between them."""
        return self.streams is not None or self.name == "recirculation"


HUGINN = TransitionConfig(name="huginn")


class ScalingConfig(StrictConfig):
    """Which residual scaling; exponents and count belong to ``rule: custom`` alone."""

    rule: RuleName
    p_H: float | None = Field(default=None, ge=0, le=4)
    p_L: float | None = Field(default=None, ge=0, le=4)
    count: Count | None = None

    @model_validator(mode="after")
    def _custom_has_all_three(self) -> "ScalingConfig":
        given = {"p_H": self.p_H, "p_L": self.p_L, "count": self.count}
        if self.rule == "custom":
            missing = [name for name, value in given.items() if value is None]
            if missing and missing != ["p_H"]:  # which a model without H does not have
                keys = " and ".join(f"scaling.{name}" for name in missing if name != "p_H")
                also = ", and with model=hrm scaling.p_H" if "p_H" in missing else ""
                raise ValueError(f"rule=custom needs {keys}{also}")
        else:
            extra = [f"{name}={value}" for name, value in given.items() if value is not None]
            if extra:
                raise ValueError(
                    f"rule={self.rule} fixes its own values; {', '.join(extra)} "
                    "is allowed with rule=custom only"
                )
        return self

    def resolve(self) -> Rule:
        """The rule's exponents and count."""
        if self.p_L is not None and self.count is not None:
            return Rule(p_H=self.p_H or 0.0, p_L=self.p_L, count=self.count)
        return RULES[self.rule]


class OptimConfig(StrictConfig):
    """Optimisers, learning-rate schedule and weight averaging."""

    optimizer: Literal["adam_atan2", "adamw"]
    global_batch_size: int = Field(ge=1, le=2**24)
    lr: float = Field(gt=0, le=MAX_RATE)
    lr_warmup_steps: int = Field(ge=0)
    lr_min_ratio: float = Field(ge=0, le=1)  # where the decay ends, as a share of lr
    lr_decay_fraction: float = Field(gt=0, le=1)  # cosine over this last share of the run
    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    weight_decay: float = Field(ge=0, le=MAX_RATE)
    puzzle_emb_lr: float = Field(ge=0, le=MAX_RATE)
    puzzle_emb_weight_decay: float = Field(ge=0, le=MAX_RATE)
    ema_rate: float | None = Field(gt=0, lt=1)  # null: evaluate the raw weights
