"""The single-module looped Transformer (DeepLoop, arXiv:2607.13491, sec. 3).

    e <- Prelude(embedded)           i blocks, once
    z <- Blocks(z + e)               K blocks, R rounds (or another transition)
    tokens, halt <- Coda(z)          j blocks, once

The state z goes from segment to segment, as z_H and z_L do in HRM; prelude and coda run in each.
With the transition ``vanilla`` e enters at the first round alone, as in that paper's eq. 1.
"""

from functools import partial
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from hrm_deeploop.config import HUGINN, LoopedConfig, TransitionConfig
from hrm_deeploop.init import initialize
from hrm_deeploop.layers import Latent
from hrm_deeploop.model import CommonOptions, Embedded, Reasoner, Visit
from hrm_deeploop.recurrence import Loop, State, run_rounds
from hrm_deeploop.scaling import LoopedGradient, count_looped_visits
from hrm_deeploop.transition import Transition, build_transition


class Looped(Reasoner):
    """One looped Transformer.

    Args:
        config: architecture.
        gradient: which rounds carry gradient; with the rule it decides (alpha, beta).
        transition: of the loop.
        generator: source of the initial values.
        common: see :class:`CommonOptions`.
    """

    def __init__(
        self,
        config: LoopedConfig,
        *,
        gradient: LoopedGradient,
        transition: TransitionConfig = HUGINN,
        generator: torch.Generator,
        **common: Unpack[CommonOptions],
    ) -> None:
        visits = count_looped_visits(
            prelude_layers=config.prelude_layers,
            layers=config.layers,
            rounds=config.rounds,
            coda_layers=config.coda_layers,
            gradient=gradient,
        )
        super().__init__(config, visits, **common)
        dim = config.hidden_size
        self.prelude = self._stack("prelude") if config.prelude_layers else None
        self.loop = self._stack("loop")
        self.coda = self._stack("coda") if config.coda_layers else None
        self._run = partial(run_rounds, rounds=config.rounds, gradient=gradient)
        self._norms_embedding = config.embedding_norm
        self._heads(common["vocab_size"], tied=config.tie_embeddings)
        self.transition = build_transition(
            transition, dim=dim, num_loops=config.rounds, eps=config.rms_norm_eps
        )
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
        """Prelude, R rounds of the loop, coda; the heads read the coda."""
        injection = embedded.tokens
        if self._norms_embedding:
            eps = self.config.rms_norm_eps
            injection = F.rms_norm(injection, injection.shape[-1:], eps=eps)
        if self.prelude is not None:
            injection = visit("prelude", injection)
        loop = Loop(self.transition, lambda x: visit("loop", x), embedded.noise_by_update())
        z = self._run(state["z"], injection, loop)
        latent = loop.read(z)
        if self.coda is not None:
            latent = visit("coda", latent)
        return {"z": z}, latent
