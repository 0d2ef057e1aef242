"""The Hierarchical Reasoning Model: two modules at two rates (Wang et al., arXiv:2506.21734)."""

from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from hrm_deeploop.config import HUGINN, HRMConfig, TransitionConfig
from hrm_deeploop.init import initialize
from hrm_deeploop.layers import Latent
from hrm_deeploop.model import CommonOptions, Embedded, Reasoner, Visit
from hrm_deeploop.recurrence import Loop, State, run_cycles
from hrm_deeploop.scaling import HRMGradient, count_visits
from hrm_deeploop.transition import Transition, build_transition


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

    def __init__(
        self,
        config: HRMConfig,
        *,
        gradient: HRMGradient,
        transition: TransitionConfig = HUGINN,
        transition_H: TransitionConfig = HUGINN,
        generator: torch.Generator,
        **common: Unpack[CommonOptions],
    ) -> None:
        visits = count_visits(
            H_layers=config.H_layers,
            L_layers=config.L_layers,
            H_cycles=config.H_cycles,
            L_cycles=config.L_cycles,
            gradient=gradient,
        )
        super().__init__(config, visits, **common)
        dim = config.hidden_size
        self.H = self._stack("H")
        self.L = self._stack("L")
        self._heads(common["vocab_size"])
        self._run = partial(
            run_cycles, H_cycles=config.H_cycles, L_cycles=config.L_cycles, gradient=gradient
        )
        build = partial(build_transition, dim=dim, eps=config.rms_norm_eps)
        self.transition_H = build(transition_H, num_loops=1)
        self.transition_L = build(transition, num_loops=config.L_cycles)
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
