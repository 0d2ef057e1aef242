"""Loop transitions: how a loop reads and writes its state around its blocks.

A loop is an optimiser on its state [1]: with the state y, an injection e, the blocks' input
o = H_in y + b and their output t = Blocks(o), which is the target that they predict,

    y' = (1 - eta lambda) y - eta H_in^T f'(o)        f' = -t (inner objective) or o - t (delta)

                     o                 y'
    huginn           y + e             t                                HRM's own, the default
    once_a_cycle     y                 t                                e enters at the first update
    parcae           A y + B e         t                                A diagonal, below 1
    parcae_aligned   A y + B e         A t
    hyperloop        H_pre Y           H_res Y + H_post^T (t + b_l)      r streams
    hyperloop_aligned  H_pre Y         H_res Y + H_pre^T (t + b_l)
    operloop         H_in Y            (I - eta Lambda) Y + eta H_in^T (t + b_l - o)
    recurrent_gpt    W [y + noise; e]  g y + (1 - g) t
    recirculation    y                 y / 2 + |y| t / (2 |t|)

Where o has no e, it is added to the state (to every stream) at the first update of a cycle. States
with r streams are (batch, seq, r, dim) and start as copies; what leaves the loop is their mean.
Parameters with an index l belong to one update of a cycle and are shared by cycles and segments.
A looped model's cycle is its rounds, an update one of them.
Each transition is a file of this package, which has its equation, options and facts; the table's
`vanilla` is called `once_a_cycle` here, for vanilla is a scaling.
Gates of streams are computed per token, and their sigmoids in float32. Initial values are ours: the
sources at hand give none.

[1] Huang et al. 2026, "Looped Transformers as Optimizers", arXiv:2609.37379, tables 1 and 7
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

from jaxtyping import Float
from pydantic import ConfigDict, model_serializer, model_validator
from torch import Tensor, nn

from hrm_deeploop.config import StrictConfig, fill_in_options
from hrm_deeploop.layers import Latent
from hrm_deeploop.registry import Registry

Apply = Callable[[Latent], Latent]
Memory = Tensor | None  # what an update leaves for the next of its cycle
Streams = Float[Tensor, "batch seq streams dim"]


class Update(NamedTuple):
    """What a transition is given beside its state."""

    injection: Latent
    blocks: Apply
    number: int  # 0 is the first update of a cycle
    memory: Memory = None  # None at the first
    noise: Latent | None = None  # standard normal, drawn for this update; in training alone


class Transition(nn.Module):
    """Base of all transitions.

    A subclass is registered by :func:`transition`, and built with the width of the state, how often
    it updates in a cycle, RMSNorm's eps, and its options by name.
    """

    Options: ClassVar[type[StrictConfig]] = StrictConfig  # what a configuration may choose
    # Whether the injection enters at the first update of a cycle (or first round) alone. All that
    # have parameters of single updates are among them.
    enters_once: ClassVar[bool] = False
    # Whether a longer injection makes the state longer: no norm is between them. Gates bound a
    # gated state as long as they keep little.
    growth: ClassVar[Literal["none", "gated", "free"]] = "none"

    streams = 1
    noise = 0.0  # standard deviation of what is added in training

    def __init__(self, dim: int, *, num_loops: int, eps: float) -> None:
        del dim, num_loops, eps
        super().__init__()

    def forward(self, state: Tensor, update: Update) -> tuple[Tensor, Memory]:
        """The state after an update, and what the next one of its cycle is to know."""
        raise NotImplementedError

    def expand(self, latent: Latent) -> Tensor:
        """The state that is a latent, or as many copies as there are streams."""
        if self.streams == 1:
            return latent
        return latent.unsqueeze(-2).expand(*latent.shape[:-1], self.streams, latent.shape[-1])

    def read(self, state: Tensor) -> Latent:
        """What leaves the loop: the state, or the mean of its streams."""
        return state if self.streams == 1 else state.mean(dim=-2)

    def initialize(self, normal_: Callable[[Tensor, float], Tensor]) -> None:
        """Set every parameter; ``normal_`` fills a tensor with draws of a standard deviation."""

    def flops(self, dim: int) -> int:
        """FLOPs of the matrix products that an update adds to its blocks', per token."""
        del dim
        return 0


def enter(state: Tensor, update: Update) -> Tensor:
    """The state, with the injection added (to every stream) at the first update of a cycle."""
    if update.number > 0:
        return state
    injection = update.injection
    return state + (injection if state.ndim == injection.ndim else injection.unsqueeze(-2))


TRANSITIONS: Registry[type[Transition]] = Registry("transition", "transition")


def transition(name: str) -> Callable[[type[Transition]], type[Transition]]:
    """Register a class as the transition ``name``."""
    return TRANSITIONS.register(name)


class TransitionConfig(StrictConfig):
    """How a loop reads and writes its state: a name, or a name and its options."""

    model_config = ConfigDict(extra="allow")

    name: str

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        if isinstance(given, str):
            given = {"name": given}
        if isinstance(given, cls):
            return given
        if not isinstance(given, dict) or not isinstance(given.get("name"), str):
            raise ValueError(
                f"{given}: expected one of {', '.join(TRANSITIONS)}, or a name with options, "
                "{name: operloop, step: unit}"
            )
        kind = TRANSITIONS[given["name"]]
        known = kind.Options.model_fields
        # null is the default of an option, and no excuse for a key that is none
        said = {
            key: value
            for key, value in given.items()
            if key != "name" and (value is not None or key not in known)
        }
        unknown = [key for key in said if key not in known]
        if unknown:
            raise ValueError(
                f"{unknown[0]}={said[unknown[0]]}: {given['name']} has "
                f"{', '.join(known) or 'no options'}"
            )
        return {"name": given["name"], **fill_in_options(kind.Options, said)}

    @property
    def kind(self) -> type[Transition]:
        """The registered class."""
        return TRANSITIONS[self.name]

    @property
    def options(self) -> dict[str, Any]:
        """The options by name, defaults included."""
        return dict(self.model_extra or {})

    @model_serializer
    def _write_briefly(self) -> Any:
        if self.options == self.kind.Options().model_dump():
            return self.name
        return {"name": self.name, **self.options}

    def __str__(self) -> str:
        listed = ", ".join(f"{option} {value}" for option, value in self.options.items())
        return f"{self.name} ({listed})" if listed else self.name

    def build(self, *, dim: int, num_loops: int, eps: float = 1e-5) -> Transition:
        """Build the transition of a loop that is updated ``num_loops`` times a cycle.

        ``eps`` is RMSNorm's.
        """
        return self.kind(dim, num_loops=num_loops, eps=eps, **self.options)
