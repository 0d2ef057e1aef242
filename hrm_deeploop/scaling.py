"""Residual scaling of the H and L modules, sized from the visits that carry gradient.

A sublayer computes ``x <- rms_norm(alpha * x + f(x))``, and its residual-branch matrices start with
gain ``beta``. For each module m in {H, L}, with exponent p_m (DeepLoop [1, eq. 7 and 18]):

    alpha_m = (2 N_g)^(p_m)        beta_m = (8 N_g)^(-p_m)        N_g = M_g / 2

M_g counts the sublayer visits through which a gradient flows. The one-step gradient runs C cycles
forward and one backward, so M_g = 2 (K_H + C_L K_L) although the forward makes C times as many.

This file holds the numbers only. ``block.py`` reads alpha, ``init.py`` reads beta.

[1] Li et al. 2026, "DeepLoop: Depth Scaling for Looped Transformers", arXiv:2607.13491
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Gradient = Literal["last_cycle", "last_update", "full"]
Count = Literal["gradient", "forward"]
RuleName = Literal[
    "vanilla", "deepnorm", "deeploop", "deeploop_asymmetric", "deeploop_forward", "custom"
]

SUBLAYERS_PER_BLOCK = 2  # attention and MLP
C_ALPHA, D_BETA = 2.0, 8.0  # DeepNorm's constants for a two-sublayer block; DeepLoop keeps them


class ResidualScaling(NamedTuple):
    """Gains of one module's sublayers; unitless, (1.0, 1.0) is the plain residual."""

    alpha: float
    beta: float


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Exponents of the two modules, and which visits size them."""

    p_H: float
    p_L: float
    count: Count = "gradient"


RULES: dict[str, Rule] = {
    "vanilla": Rule(p_H=0.0, p_L=0.0),
    "deepnorm": Rule(p_H=0.25, p_L=0.25),
    "deeploop": Rule(p_H=0.5, p_L=0.5),
    "deeploop_asymmetric": Rule(p_H=0.25, p_L=0.5),
    "deeploop_forward": Rule(p_H=0.5, p_L=0.5, count="forward"),
}


@dataclass(frozen=True, kw_only=True)
class VisitCounts:
    """How often one segment visits its sublayers, forward and with gradient [1, eq. 17 to 19].

    ``M`` counts single sublayers, ``N = M / 2`` blocks, ``R`` the visits of each physical sublayer.
    """

    M_g: int
    M_forward: int
    R_g_H: int
    R_g_L: int

    @property
    def N_g(self) -> int:
        return self.M_g // SUBLAYERS_PER_BLOCK

    @property
    def N_forward(self) -> int:
        return self.M_forward // SUBLAYERS_PER_BLOCK


def count_visits(
    *, H_layers: int, L_layers: int, H_cycles: int, L_cycles: int, gradient: Gradient
) -> VisitCounts:
    """Visits of a segment of ``H_cycles`` cycles, each ``L_cycles`` updates of L and one of H.

    Raises:
        ValueError: if a count is less than 1.
    """
    counts = dict(H_layers=H_layers, L_layers=L_layers, H_cycles=H_cycles, L_cycles=L_cycles)
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    R_g_H, R_g_L = {
        "last_cycle": (1, L_cycles),
        "last_update": (1, 1),
        "full": (H_cycles, H_cycles * L_cycles),
    }[gradient]
    return VisitCounts(
        M_g=SUBLAYERS_PER_BLOCK * (R_g_H * H_layers + R_g_L * L_layers),
        M_forward=SUBLAYERS_PER_BLOCK * H_cycles * (H_layers + L_cycles * L_layers),
        R_g_H=R_g_H,
        R_g_L=R_g_L,
    )


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


class ModuleScaling(NamedTuple):
    """The gains of both modules."""

    H: ResidualScaling
    L: ResidualScaling


def module_scaling(rule: Rule, visits: VisitCounts) -> ModuleScaling:
    """(alpha_H, beta_H) and (alpha_L, beta_L) of ``rule``, sized from the visits it counts."""
    depth = visits.N_g if rule.count == "gradient" else visits.N_forward
    return ModuleScaling(H=power_law(depth, rule.p_H), L=power_law(depth, rule.p_L))


class StabilityBound(NamedTuple):
    """The two terms of [1, eq. 20] at one assumption about kappa; their sum is to stay O(1)."""

    H: float
    L: float

    @property
    def total(self) -> float:
        return self.H + self.L


def stability_bound(
    scaling: ModuleScaling,
    visits: VisitCounts,
    *,
    H_layers: int,
    L_layers: int,
    kappa_H: float | int,
    kappa_L: float | int,
) -> StabilityBound:
    """J R_g kappa (beta / alpha)^2 of each module, J = 2 K sublayers [1, eq. 20].

    kappa is 1 if visits are unrelated (as in a stack without weight sharing), R_g at most, if all
    push the same way; ``alignment.py`` measures it.
    """

    def term(gains: ResidualScaling, layers: int, rounds: int, kappa: float | int) -> float:
        return SUBLAYERS_PER_BLOCK * layers * rounds * kappa * (gains.beta / gains.alpha) ** 2

    return StabilityBound(
        H=term(scaling.H, H_layers, visits.R_g_H, kappa_H),
        L=term(scaling.L, L_layers, visits.R_g_L, kappa_L),
    )
