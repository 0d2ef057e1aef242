"""The single-module looped Transformer (DeepLoop, arXiv:2607.13491, sec. 3).

    e <- Prelude(embedded)           i blocks, once
    z <- Blocks(z + e)               K blocks, R rounds (or another transition)
    tokens, halt <- Coda(z)          j blocks, once

The state z goes from segment to segment, as z_H and z_L do in HRM; prelude and coda run in each.
With the transition ``once_a_cycle`` e enters at the first round alone, as in that paper's eq. 1.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal, Unpack, get_args

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from hrm_deeploop.config import MAX_COUNT, ReasonerConfig
from hrm_deeploop.init import initialize
from hrm_deeploop.layers import Latent
from hrm_deeploop.model import CommonOptions, Embedded, Reasoner, Visit, model
from hrm_deeploop.recurrence import Loop, State, run_rounds
from hrm_deeploop.scaling import ModuleVisits, VisitCounts
from hrm_deeploop.transitions import HUGINN, Transition, TransitionConfig

Gradient = Literal["all_rounds", "last_round"]


class LoopedConfig(ReasonerConfig):
    """Architecture of one looped Transformer (DeepLoop, arXiv:2607.13491, sec. 3)."""

    name: Literal["looped"] = "looped"  # pyright: ignore[reportIncompatibleVariableOverride]
    prelude_layers: int = Field(ge=0, le=MAX_COUNT)  # i: blocks before the loop
    layers: int = Field(ge=1, le=MAX_COUNT)  # K: physical blocks of the loop
    rounds: int = Field(ge=1, le=MAX_COUNT)  # R
    coda_layers: int = Field(ge=0, le=MAX_COUNT)  # j: blocks behind it
    tie_embeddings: bool  # read tokens out with the embedding
    embedding_norm: bool  # RMSNorm of the embedded input


@model("looped")
class Looped(Reasoner):
    """One looped Transformer.

    Args:
        config: architecture.
        gradient: which rounds carry gradient; with the rule it decides (alpha, beta).
        transition: of the loop.
        generator: source of the initial values.
        common: see :class:`CommonOptions`.
    """

    Config = LoopedConfig
    gradients: ClassVar[tuple[str, ...]] = get_args(Gradient)
    loops: ClassVar[Mapping[str, str]] = {"transition": "loop"}
    depth_key = "rounds"
    revisited = "loop"

    @classmethod
    def count_visits(cls, config: LoopedConfig, gradient: str) -> VisitCounts:
        """Count R rounds of the loop; prelude and coda are visited once: N = i + K R + j."""
        rounds = config.rounds
        modules = {
            "prelude": ModuleVisits(config.prelude_layers, 1, 1, in_loop=False),
            "loop": ModuleVisits(config.layers, 1 if gradient == "last_round" else rounds, rounds),
            "coda": ModuleVisits(config.coda_layers, 1, 1, in_loop=False),
        }
        return VisitCounts({name: module for name, module in modules.items() if module.layers})

    @classmethod
    def hides_first_update(cls, config: LoopedConfig, gradient: str) -> dict[str, str]:
        return {"transition": "round"} if gradient == "last_round" and config.rounds > 1 else {}

    @classmethod
    def facts(cls, config: LoopedConfig) -> dict[str, str]:
        return {"layers, rounds": f"{config.layers}, {config.rounds}"}

    @classmethod
    def describe(cls, config: LoopedConfig) -> str:
        around = f"prelude {config.prelude_layers}, coda {config.coda_layers}"
        return f"looped: {config.layers} blocks, {config.rounds} rounds, {around}"

    @classmethod
    def short_name(cls, values: Mapping[str, Any]) -> str:
        return f"looped-r{values['rounds']}"

    def __init__(
        self,
        config: LoopedConfig,
        *,
        gradient: Gradient,
        transition: TransitionConfig = HUGINN,
        generator: torch.Generator,
        **common: Unpack[CommonOptions],
    ) -> None:
        visits = self.count_visits(config, gradient)
        super().__init__(config, visits, **common)
        dim = config.hidden_size
        self.prelude = self._stack("prelude") if config.prelude_layers else None
        self.loop = self._stack("loop")
        self.coda = self._stack("coda") if config.coda_layers else None
        self._run = partial(run_rounds, rounds=config.rounds, visible=visits["loop"].rounds)
        self._norms_embedding = config.embedding_norm
        self._heads(common["vocab_size"], tied=config.tie_embeddings)
        self.transition = transition.build(
            dim=dim, num_loops=config.rounds, eps=config.rms_norm_eps
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
