"""Residual scaling of each module, sized from the visits that carry gradient.

A sublayer computes ``x <- rms_norm(alpha * x + f(x))``, and its residual-branch matrices start with
gain ``beta``. For each module m, with exponent p_m (DeepLoop [1, eq. 7 and 18]):

    alpha_m = (2 N_g)^(p_m)        beta_m = (8 N_g)^(-p_m)        N_g = M_g / 2

M_g counts the sublayer visits through which a gradient flows. HRM's one-step gradient runs C cycles
forward and one backward, so M_g = 2 (K_H + C_L K_L) although the forward makes C times as many. A
single-module looped Transformer of K blocks and R rounds has N = K R [1, sec. 3].

This file holds the numbers only. ``block.py`` reads alpha, ``init.py`` reads beta.

[1] Li et al. 2026, "DeepLoop: Depth Scaling for Looped Transformers", arXiv:2607.13491
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

HRMGradient = Literal["last_cycle", "last_update", "full"]
LoopedGradient = Literal["all_rounds", "last_round"]
Gradient = Literal["last_cycle", "last_update", "full", "all_rounds", "last_round"]  # both
Count = Literal["gradient", "forward"]
RuleName = Literal[
    "vanilla", "deepnorm", "deeploop", "deeploop_asymmetric", "deeploop_forward", "custom"
]

SUBLAYERS_PER_BLOCK = 2  # attention and MLP
C_ALPHA, D_BETA = 2.0, 8.0  # DeepNorm's constants for a two-sublayer block; DeepLoop keeps them
UNTIED_EXPONENT = 0.25  # DeepNorm's, enough for blocks that are visited once [1, eq. 6]


class ResidualScaling(NamedTuple):
    """Gains of one module's sublayers; unitless, (1.0, 1.0) is the plain residual."""

    alpha: float
    beta: float


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Exponents of H and L, and which visits size them."""

    p_H: float
    p_L: float
    count: Count = "gradient"

    def exponent(self, module: str) -> float:
        """p of a module: of HRM's H and L, or of a looped model's loop, prelude and coda.

        The loop is revisited as L is; prelude and coda are visited once and take at most 1/4.
        """
        once = min(self.p_L, UNTIED_EXPONENT)
        return {
            "H": self.p_H,
            "L": self.p_L,
            "loop": self.p_L,
            "prelude": once,
            "coda": once,
        }[module]


RULES: dict[str, Rule] = {
    "vanilla": Rule(p_H=0.0, p_L=0.0),
    "deepnorm": Rule(p_H=0.25, p_L=0.25),
    "deeploop": Rule(p_H=0.5, p_L=0.5),
    "deeploop_asymmetric": Rule(p_H=0.25, p_L=0.5),
    "deeploop_forward": Rule(p_H=0.5, p_L=0.5, count="forward"),
}


class ModuleVisits(NamedTuple):
    """One module: its physical blocks, and how often a segment visits each of them."""

    layers: int
    rounds: int  # R_g: with gradient
    rounds_forward: int  # in all


@dataclass(frozen=True)
class VisitCounts:
    """How often one segment visits its sublayers, forward and with gradient [1, eq. 17 to 19].

    ``M`` counts single sublayers, ``N = M / 2`` blocks.
    """

    modules: Mapping[str, ModuleVisits]

    def __getitem__(self, module: str) -> ModuleVisits:
        return self.modules[module]

    @property
    def N_g(self) -> int:
        return sum(m.layers * m.rounds for m in self.modules.values())

    @property
    def N_forward(self) -> int:
        return sum(m.layers * m.rounds_forward for m in self.modules.values())

    @property
    def M_g(self) -> int:
        return SUBLAYERS_PER_BLOCK * self.N_g

    @property
    def M_forward(self) -> int:
        return SUBLAYERS_PER_BLOCK * self.N_forward


def count_visits(
    *, H_layers: int, L_layers: int, H_cycles: int, L_cycles: int, gradient: HRMGradient
) -> VisitCounts:
    """Visits of HRM's segment of ``H_cycles`` cycles, each ``L_cycles`` updates of L and one of H.

    Raises:
        ValueError: if a count is less than 1.
    """
    _check_positive(H_layers=H_layers, L_layers=L_layers, H_cycles=H_cycles, L_cycles=L_cycles)
    rounds_H, rounds_L = {
        "last_cycle": (1, L_cycles),
        "last_update": (1, 1),
        "full": (H_cycles, H_cycles * L_cycles),
    }[gradient]
    return VisitCounts(
        {
            "H": ModuleVisits(H_layers, rounds_H, H_cycles),
            "L": ModuleVisits(L_layers, rounds_L, H_cycles * L_cycles),
        }
    )


def count_looped_visits(
    *, prelude_layers: int, layers: int, rounds: int, coda_layers: int, gradient: LoopedGradient
) -> VisitCounts:
    """Visits of a looped model's segment: N = i + K R + j, its prelude and coda visited once.

    Raises:
        ValueError: if the loop has no block or no round.
    """
    _check_positive(layers=layers, rounds=rounds)
    modules = {
        "prelude": ModuleVisits(prelude_layers, 1, 1),
        "loop": ModuleVisits(layers, rounds if gradient == "all_rounds" else 1, rounds),
        "coda": ModuleVisits(coda_layers, 1, 1),
    }
    return VisitCounts({name: module for name, module in modules.items() if module.layers})


def _check_positive(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def power_law(depth: int, exponent: float) -> ResidualScaling:
    """alpha = (2 N)^p and beta = (8 N)^-p for ``depth`` N blocks and ``exponent`` p [1, eq. 15].

    Raises:
        ValueError: if ``depth`` is less than 1 or ``exponent`` is negative.
    """
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")
    if exponent < 0:
        raise ValueError(f"exponent must not be negative, got {exponent}")
    return ResidualScaling(alpha=(C_ALPHA * depth) ** exponent, beta=(D_BETA * depth) ** -exponent)


def module_scaling(rule: Rule, visits: VisitCounts) -> dict[str, ResidualScaling]:
    """(alpha, beta) of every module under ``rule``, sized from the visits it counts."""
    depth = visits.N_g if rule.count == "gradient" else visits.N_forward
    return {module: power_law(depth, rule.exponent(module)) for module in visits.modules}


def stability_bound(
    scaling: Mapping[str, ResidualScaling], visits: VisitCounts, kappa: Mapping[str, float | int]
) -> dict[str, float]:
    """J R_g kappa (beta / alpha)^2 of each module, J = 2 K sublayers [1, eq. 20].

    Their sum is to stay O(1). kappa is 1 if visits are unrelated (as in a stack without weight
    sharing), R_g at most, if all push the same way; ``alignment.py`` measures it.
    """
    return {
        name: SUBLAYERS_PER_BLOCK
        * module.layers
        * module.rounds
        * kappa[name]
        * (scaling[name].beta / scaling[name].alpha) ** 2
        for name, module in visits.modules.items()
    }
