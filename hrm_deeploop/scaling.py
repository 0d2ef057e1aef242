"""Residual scaling of each module, sized from the visits that carry gradient.

A sublayer computes ``x <- rms_norm(alpha * x + f(x))``, and its residual-branch matrices start with
gain ``beta``. For each module m, with exponent p_m (DeepLoop [1, eq. 7 and 18]):

    alpha_m = (2 N_g)^(p_m)        beta_m = (8 N_g)^(-p_m)        N_g = M_g / 2

M_g counts the sublayer visits through which a gradient flows. HRM's one-step gradient runs C cycles
forward and one backward, so M_g = 2 (K_H + C_L K_L) although the forward makes C times as many. A
single-module looped Transformer of K blocks and R rounds has N = K R [1, sec. 3].

A rule turns visits into gains, and :func:`scaling_rule` gives it a name:

    @scaling_rule("half_h")
    def half_h(visits):
        return {"H": power_law(visits.N_g, 0.25), "L": power_law(visits.N_g, 0.5)}

A module's gains are one :class:`ResidualScaling` for all its layers, or a sequence with one a
layer. Keyword-only parameters of the rule are its options, keys of ``scaling`` in a configuration.

This file holds the numbers only. ``block.py`` reads alpha, ``init.py`` reads beta.

[1] Li et al. 2026, "DeepLoop: Depth Scaling for Looped Transformers", arXiv:2607.13491
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from hrm_deeploop.registry import Registry

SUBLAYERS_PER_BLOCK = 2  # attention and MLP
C_ALPHA, D_BETA = 2.0, 8.0  # DeepNorm's constants for a two-sublayer block; DeepLoop keeps them
UNTIED_EXPONENT = 0.25  # DeepNorm's, enough for blocks that are visited once [1, eq. 6]


class ResidualScaling(NamedTuple):
    """Gains of a layer's sublayers; unitless, (1.0, 1.0) is the plain residual."""

    alpha: float
    beta: float


class ModuleVisits(NamedTuple):
    """One module: its physical blocks, and how often a segment visits each of them."""

    layers: int
    rounds: int  # R_g: with gradient
    rounds_forward: int  # in all
    in_loop: bool = True  # a module in front of the loop or behind it is visited once, by design


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


LayerGains = tuple[ResidualScaling, ...]
"""Gains of a module, one a layer."""
Rule = Callable[..., Mapping[str, ResidualScaling | Sequence[ResidualScaling]]]
"""Visits, and options by keyword -> gains of every module, by its name."""
RULES: Registry[Rule] = Registry("scaling", "scaling rule")


def scaling_rule(name: str) -> Callable[[Rule], Rule]:
    """Register a function of visits as the scaling rule ``name``."""
    return RULES.register(name)


def power_law(depth: int, exponent: float) -> ResidualScaling:
    """Return alpha = (2 N)^p and beta = (8 N)^-p for ``depth`` N blocks and ``exponent`` p.

    DeepLoop [1, eq. 15].

    Raises:
        ValueError: if ``depth`` is less than 1 or ``exponent`` is negative.
    """
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")
    if exponent < 0:
        raise ValueError(f"exponent must not be negative, got {exponent}")
    return ResidualScaling(alpha=(C_ALPHA * depth) ** exponent, beta=(D_BETA * depth) ** -exponent)


def power_laws(
    visits: VisitCounts, exponent: float, *, depth: int | None = None
) -> dict[str, ResidualScaling]:
    """Return the power law of every module at one exponent; ``depth`` is N_g if it is None.

    Modules outside the loop are visited once and take at most 1/4 [1, eq. 6].
    """
    depth = visits.N_g if depth is None else depth
    once = min(exponent, UNTIED_EXPONENT)
    return {
        name: power_law(depth, exponent if module.in_loop else once)
        for name, module in visits.modules.items()
    }


@scaling_rule("vanilla")
def vanilla(visits: VisitCounts) -> dict[str, ResidualScaling]:
    """alpha = beta = 1: the baseline, HRM itself."""
    return power_laws(visits, 0.0)


@scaling_rule("deepnorm")
def deepnorm(visits: VisitCounts) -> dict[str, ResidualScaling]:
    """p = 1/4, exact where visits decorrelate (Wang et al. 2022, arXiv:2203.00555)."""
    return power_laws(visits, UNTIED_EXPONENT)


@scaling_rule("deeploop")
def deeploop(visits: VisitCounts) -> dict[str, ResidualScaling]:
    """p = 1/2, the paper's choice for HRM on ARC-AGI."""
    return power_laws(visits, 0.5)


@scaling_rule("deeploop_asymmetric")
def deeploop_asymmetric(visits: VisitCounts) -> dict[str, ResidualScaling]:
    """p_H = 1/4, p_L = 1/2: under the truncation H is visited once."""
    _need_H(visits, "deeploop_asymmetric is about H and L")
    return {**power_laws(visits, 0.5), "H": power_law(visits.N_g, UNTIED_EXPONENT)}


@scaling_rule("deeploop_forward")
def deeploop_forward(visits: VisitCounts) -> dict[str, ResidualScaling]:
    """p = 1/2, sized from all M = C M_g forward visits: the control."""
    return power_laws(visits, 0.5, depth=visits.N_forward)


Exponent = Annotated[float, Field(ge=0, le=4)]


@scaling_rule("custom")
def custom(
    visits: VisitCounts,
    *,
    p_L: Exponent,
    count: Literal["gradient", "forward"],
    p_H: Exponent | None = None,
) -> dict[str, ResidualScaling]:
    """Any exponents: p_L of L or of a looped model's loop, p_H of H; sized from either count."""
    depth = visits.N_g if count == "gradient" else visits.N_forward
    gains = power_laws(visits, p_L, depth=depth)
    if p_H is not None:
        _need_H(visits, f"p_H={p_H} is of H")
        return {**gains, "H": power_law(depth, p_H)}
    if "H" in visits.modules:
        raise ValueError("custom needs scaling.p_H for a model with H")
    return gains


def _need_H(visits: VisitCounts, why: str) -> None:
    if "H" not in visits.modules:
        raise ValueError(f"{why}: this model has {', '.join(visits.modules)}")


def module_scaling(rule: Rule, visits: VisitCounts) -> dict[str, LayerGains]:
    """Return (alpha, beta) of every module's layers under ``rule``.

    Raises:
        ValueError: if the rule does not give every module positive, finite gains, for all its
            layers at once or for each.
    """
    given = rule(visits)
    name = getattr(rule, "__name__", "the rule")
    if not isinstance(given, Mapping) or set(given) != set(visits.modules):
        found = ", ".join(map(str, given)) if isinstance(given, Mapping) else type(given).__name__
        raise ValueError(
            f"{name} must return gains of {', '.join(visits.modules)} by name, got {found}"
        )
    return {
        module: _layer_gains(given[module], f"{name}, {module}", counted.layers)
        for module, counted in visits.modules.items()
    }


def _layer_gains(given: Any, where: str, layers: int) -> LayerGains:
    one = isinstance(given, tuple) and len(given) == 2 and not isinstance(given[0], tuple)
    gains = [given] * layers if one else list(given)
    if len(gains) != layers:
        raise ValueError(f"{where}: expected gains of {layers} layers, got {len(gains)}")
    found = []
    for entry in gains:
        pair = entry if isinstance(entry, tuple) and len(entry) == 2 else (math.nan, math.nan)
        if not all(isinstance(g, int | float) and 0 < g < math.inf for g in pair):
            raise ValueError(f"{where}: expected (alpha, beta) above 0, got {entry}")
        found.append(ResidualScaling(float(pair[0]), float(pair[1])))
    return tuple(found)


def stability_bound(
    scaling: Mapping[str, LayerGains], visits: VisitCounts, kappa: Mapping[str, float | int]
) -> dict[str, float]:
    """Return J R_g kappa (beta / alpha)^2 of each module, J = 2 K sublayers [1, eq. 20].

    Where layers differ, their ratios add up. The modules' sum is to stay O(1). kappa is 1 if visits
    are unrelated (as in a stack without weight sharing), R_g at most, if all push the same way;
    ``alignment.py`` measures it.
    """
    return {
        name: SUBLAYERS_PER_BLOCK
        * module.rounds
        * kappa[name]
        * sum((gains.beta / gains.alpha) ** 2 for gains in scaling[name])
        for name, module in visits.modules.items()
    }
