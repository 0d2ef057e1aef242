"""The Universal Reasoning Model: one state, blocks with a short convolution (arXiv:2512.14693).

    z <- Blocks(z + e)    H_cycles x L_cycles rounds, of which the last L_cycles carry gradient

N_g = K L_cycles. Its blocks have ``mlp=conv_swiglu`` (layers.py), which every model may have.
"""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal, Unpack, get_args

import torch
from pydantic import Field
from torch import Tensor

from hrm_deeploop.config import MAX_COUNT, ReasonerConfig
from hrm_deeploop.init import initialize
from hrm_deeploop.layers import Latent
from hrm_deeploop.model import CommonOptions, Embedded, Reasoner, Visit, model
from hrm_deeploop.recurrence import Loop, State, run_rounds
from hrm_deeploop.scaling import ModuleVisits, VisitCounts
from hrm_deeploop.transitions import HUGINN, Transition, TransitionConfig

Gradient = Literal["last_cycle", "full"]


class URMConfig(ReasonerConfig):
    """Architecture of one URM."""

    name: Literal["urm"] = "urm"  # pyright: ignore[reportIncompatibleVariableOverride]
    H_cycles: int = Field(ge=1, le=MAX_COUNT)  # of which the last carries gradient
    L_cycles: int = Field(ge=1, le=MAX_COUNT)  # rounds of a cycle
    num_layers: int = Field(ge=1, le=MAX_COUNT)  # K: physical blocks


@model("urm")
class URM(Reasoner):
    """One URM.

    Args:
        config: architecture.
        gradient: which rounds carry gradient; with the rule it decides (alpha, beta).
        transition: of the loop.
        generator: source of the initial values.
        common: see :class:`CommonOptions`.
    """

    Config = URMConfig
    gradients: ClassVar[tuple[str, ...]] = get_args(Gradient)
    loops: ClassVar[Mapping[str, str]] = {"transition": "loop"}
    depth_key = "L_cycles"
    revisited = "loop"

    @classmethod
    def count_visits(cls, config: URMConfig, gradient: str) -> VisitCounts:
        """Count the rounds of the loop."""
        rounds = config.H_cycles * config.L_cycles
        visible = rounds if gradient == "full" else config.L_cycles
        return VisitCounts({"loop": ModuleVisits(config.num_layers, visible, rounds)})

    @classmethod
    def hides_first_update(cls, config: URMConfig, gradient: str) -> dict[str, str]:
        hidden = gradient == "last_cycle" and config.H_cycles > 1
        return {"transition": "round"} if hidden else {}

    @classmethod
    def facts(cls, config: URMConfig) -> dict[str, str]:
        return {"H_cycles, L_cycles": f"{config.H_cycles}, {config.L_cycles}"}

    @classmethod
    def describe(cls, config: URMConfig) -> str:
        rounds = config.H_cycles * config.L_cycles
        return f"urm: {config.num_layers} blocks, {rounds} rounds, {config.mlp}"

    def __init__(
        self,
        config: URMConfig,
        *,
        gradient: Gradient,
        transition: TransitionConfig = HUGINN,
        generator: torch.Generator,
        **common: Unpack[CommonOptions],
    ) -> None:
        visits = self.count_visits(config, gradient)
        super().__init__(config, visits, **common)
        dim, rounds = config.hidden_size, visits["loop"].rounds_forward
        self.loop = self._stack("loop")
        self._heads(common["vocab_size"])
        self._run = partial(run_rounds, rounds=rounds, visible=visits["loop"].rounds)
        self.transition = transition.build(dim=dim, num_loops=rounds, eps=config.rms_norm_eps)
        self.register_buffer("z_init", torch.empty(dim))
        self.z_init: Tensor
        initialize(self, generator)

    @property
    def transitions(self) -> dict[str, Transition]:
        return {"loop": self.transition}

    @property
    def initial_vectors(self) -> dict[str, Tensor]:
        return {"z": self.z_init}

    def recur(self, state: State, embedded: Embedded, visit: Visit) -> tuple[State, Latent]:
        """All rounds of the loop; the heads read its state."""
        loop = Loop(self.transition, lambda x: visit("loop", x), embedded.noise_by_update())
        z = self._run(state["z"], embedded.tokens, loop)
        return {"z": z}, loop.read(z)
