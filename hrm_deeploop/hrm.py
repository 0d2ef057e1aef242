"""The Hierarchical Reasoning Model: two modules at two rates (Wang et al., arXiv:2506.21734)."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal, Unpack, get_args

import torch
from pydantic import Field
from torch import Tensor

from hrm_deeploop.config import MAX_COUNT, ReasonerConfig
from hrm_deeploop.init import initialize
from hrm_deeploop.layers import Latent
from hrm_deeploop.model import CommonOptions, Embedded, Reasoner, Visit, model
from hrm_deeploop.recurrence import Loop, State, run_cycles
from hrm_deeploop.scaling import ModuleVisits, VisitCounts
from hrm_deeploop.transitions import HUGINN, TRANSITIONS, Transition, TransitionConfig

Gradient = Literal["last_cycle", "last_update", "full"]


class HRMConfig(ReasonerConfig):
    """Architecture of one HRM."""

    name: Literal["hrm"] = "hrm"  # pyright: ignore[reportIncompatibleVariableOverride]
    H_cycles: int = Field(ge=1, le=MAX_COUNT)  # C: cycles of a forward
    L_cycles: int = Field(ge=1, le=MAX_COUNT)  # C_L: updates of z_L in a cycle
    H_layers: int = Field(ge=1, le=MAX_COUNT)  # K_H: physical blocks of H
    L_layers: int = Field(ge=1, le=MAX_COUNT)  # K_L


@model("hrm")
class HRM(Reasoner):
    """One HRM; scaling, gradient and transitions are all that distinguishes its variants.

    Args:
        config: architecture.
        gradient: which updates carry gradient; with the rule it decides (alpha, beta).
        transition: of L.
        transition_H: of H, which is updated once a cycle.
        generator: source of the initial values.
        common: see :class:`CommonOptions`.
    """

    Config = HRMConfig
    gradients: ClassVar[tuple[str, ...]] = get_args(Gradient)
    loops: ClassVar[Mapping[str, str]] = {"transition": "L", "transition_H": "H"}
    depth_key = "L_cycles"
    revisited = "L"

    @classmethod
    def count_visits(cls, config: HRMConfig, gradient: str) -> VisitCounts:
        """Count ``H_cycles`` cycles, each ``L_cycles`` updates of L and one of H.

        DeepLoop (arXiv:2607.13491, eq. 17 to 19): M_g = 2 (K_H + C_L K_L) under last_cycle.
        """
        cycles, updates = config.H_cycles, config.L_cycles
        rounds_H, rounds_L = {
            "last_cycle": (1, updates),
            "last_update": (1, 1),
            "full": (cycles, cycles * updates),
        }[gradient]
        return VisitCounts(
            {
                "H": ModuleVisits(config.H_layers, rounds_H, cycles),
                "L": ModuleVisits(config.L_layers, rounds_L, cycles * updates),
            }
        )

    @classmethod
    def hides_first_update(cls, config: HRMConfig, gradient: str) -> dict[str, str]:
        if gradient == "last_update" and config.L_cycles > 1:
            return {"transition": "update of a cycle"}
        return {}

    @classmethod
    def check_transitions(cls, transitions: Mapping[str, TransitionConfig]) -> None:
        """Refuse two modules of which each would add the other's state to its own.

        Raises:
            ValueError: naming what is allowed beside the one that no gate bounds.
        """
        L, H = transitions["transition"], transitions["transition_H"]
        growths = {L.kind.growth, H.kind.growth}
        if "free" in growths and "none" not in growths:
            free = L.name if L.kind.growth == "free" else H.name
            bounded = [name for name in TRANSITIONS if TRANSITIONS[name].growth == "none"]
            raise ValueError(
                f"transition_H={H.name}: with transition={L.name} each module would add the "
                f"other's state to its own, and both grow without bound; beside {free} "
                f"allowed are {', '.join(bounded)}"
            )

    @classmethod
    def facts(cls, config: HRMConfig) -> dict[str, str]:
        return {"H_cycles, L_cycles": f"{config.H_cycles}, {config.L_cycles}"}

    @classmethod
    def describe(cls, config: HRMConfig) -> str:
        return f"hrm: {config.H_cycles} cycles of {config.L_cycles} updates of L and one of H"

    @classmethod
    def short_name(cls, values: Mapping[str, Any]) -> str:
        """HRM is what a run is without a word about it."""
        del values
        return ""

    def __init__(
        self,
        config: HRMConfig,
        *,
        gradient: Gradient,
        transition: TransitionConfig = HUGINN,
        transition_H: TransitionConfig = HUGINN,
        generator: torch.Generator,
        **common: Unpack[CommonOptions],
    ) -> None:
        visits = self.count_visits(config, gradient)
        super().__init__(config, visits, **common)
        dim = config.hidden_size
        self.H = self._stack("H")
        self.L = self._stack("L")
        self._heads(common["vocab_size"])
        self._run = partial(
            run_cycles, H_cycles=config.H_cycles, L_cycles=config.L_cycles, gradient=gradient
        )
        sizes: dict[str, Any] = dict(dim=dim, eps=config.rms_norm_eps)
        self.transition_H = transition_H.build(num_loops=1, **sizes)
        self.transition_L = transition.build(num_loops=config.L_cycles, **sizes)
        self.register_buffer("H_init", torch.empty(dim))
        self.register_buffer("L_init", torch.empty(dim))
        self.H_init: Tensor
        self.L_init: Tensor
        initialize(self, generator)

    @property
    def transitions(self) -> dict[str, Transition]:
        return {"H": self.transition_H, "L": self.transition_L}

    @property
    def initial_vectors(self) -> dict[str, Tensor]:
        return {"z_H": self.H_init, "z_L": self.L_init}

    def recur(self, state: State, embedded: Embedded, visit: Visit) -> tuple[State, Latent]:
        """C cycles, each C_L updates of L and one of H; the heads read H."""
        noise = embedded.noise_by_update()
        H = Loop(self.transition_H, lambda x: visit("H", x), noise)
        L = Loop(self.transition_L, lambda x: visit("L", x), noise)
        state = self._run(state, embedded.tokens, H, L)
        return state, H.read(state["z_H"])
