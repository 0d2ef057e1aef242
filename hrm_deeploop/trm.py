"""The Tiny Recursive Model: one module that updates both states (Jolicoeur-Martineau, 2510.04871).

    z_L <- f(z_L + z_H + e)    L_cycles times
    z_H <- f(z_H + z_L)        once a cycle; no e here

The gradient goes through the whole last cycle, so f carries it in C_L + 1 visits of each sublayer:
N_g = K (C_L + 1). The sums are TRM's own; transitions are for models that have a loop of their own.
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
from hrm_deeploop.recurrence import State, run_shared_cycles
from hrm_deeploop.scaling import ModuleVisits, VisitCounts
from hrm_deeploop.transitions import Transition

Gradient = Literal["last_cycle", "full"]


class TRMConfig(ReasonerConfig):
    """Architecture of one TRM."""

    name: Literal["trm"] = "trm"  # pyright: ignore[reportIncompatibleVariableOverride]
    H_cycles: int = Field(ge=1, le=MAX_COUNT)  # C: cycles of a forward
    L_cycles: int = Field(ge=1, le=MAX_COUNT)  # C_L: updates of z_L in a cycle
    L_layers: int = Field(ge=1, le=MAX_COUNT)  # K: physical blocks of the one module


@model("trm")
class TRM(Reasoner):
    """One TRM.

    Args:
        config: architecture.
        gradient: which cycles carry gradient; with the rule it decides (alpha, beta).
        generator: source of the initial values.
        common: see :class:`CommonOptions`.
    """

    Config = TRMConfig
    gradients: ClassVar[tuple[str, ...]] = get_args(Gradient)
    loops: ClassVar[Mapping[str, str]] = {}
    depth_key = "L_cycles"
    revisited = "L"

    @classmethod
    def count_visits(cls, config: TRMConfig, gradient: str) -> VisitCounts:
        """Count ``H_cycles`` cycles, each ``L_cycles`` updates of z_L and one of z_H."""
        cycles, updates = config.H_cycles, config.L_cycles + 1
        visible = cycles if gradient == "full" else 1
        return VisitCounts(
            {"L": ModuleVisits(config.L_layers, visible * updates, cycles * updates)}
        )

    @classmethod
    def facts(cls, config: TRMConfig) -> dict[str, str]:
        return {"H_cycles, L_cycles": f"{config.H_cycles}, {config.L_cycles}"}

    @classmethod
    def describe(cls, config: TRMConfig) -> str:
        return (
            f"trm: {config.L_layers} blocks, {config.H_cycles} cycles of {config.L_cycles} updates "
            "of z_L and one of z_H"
        )

    def __init__(
        self,
        config: TRMConfig,
        *,
        gradient: Gradient,
        generator: torch.Generator,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(config, self.count_visits(config, gradient), **common)
        self.L = self._stack("L")
        self._heads(common["vocab_size"])
        self._run = partial(
            run_shared_cycles,
            H_cycles=config.H_cycles,
            L_cycles=config.L_cycles,
            visible_cycles=config.H_cycles if gradient == "full" else 1,
        )
        self.register_buffer("H_init", torch.empty(config.hidden_size))
        self.register_buffer("L_init", torch.empty(config.hidden_size))
        self.H_init: Tensor
        self.L_init: Tensor
        initialize(self, generator)

    @property
    def transitions(self) -> dict[str, Transition]:
        return {}

    @property
    def initial_vectors(self) -> dict[str, Tensor]:
        return {"z_H": self.H_init, "z_L": self.L_init}

    def recur(self, state: State, embedded: Embedded, visit: Visit) -> tuple[State, Latent]:
        """C cycles of the one module; the heads read z_H."""
        state = self._run(state, embedded.tokens, lambda x: visit("L", x))
        return state, state["z_H"]
