"""The gains of every rule, against numbers worked by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm_deeploop.config import ScalingConfig
from hrm_deeploop.hrm import HRM, HRMConfig
from hrm_deeploop.registry import UnknownNameError
from hrm_deeploop.scaling import (
    RULES,
    ModuleVisits,
    ResidualScaling,
    VisitCounts,
    module_scaling,
    power_law,
    scaling_rule,
    stability_bound,
)

HRM_SHAPE = dict(H_layers=4, L_layers=4, H_cycles=2, L_cycles=2)
DEEPLOOP_12, DEEPNORM_12 = (4.898979, 0.102062), (2.213364, 0.319472)


def count_visits(*, gradient, **shape):
    """Visits of an HRM of this shape."""
    return HRM.count_visits(HRMConfig.model_construct(**shape), gradient)


def gains(rule, visits):
    """Gains of modules whose layers all have the same."""
    found = module_scaling(rule, visits)
    assert all(len(set(layers)) == 1 for layers in found.values())
    assert {name: len(layers) for name, layers in found.items()} == {
        name: module.layers for name, module in visits.modules.items()
    }
    return {name: layers[0] for name, layers in found.items()}


@pytest.mark.parametrize(
    ("rule", "gradient", "H", "L"),
    [
        ("vanilla", "last_cycle", (1.0, 1.0), (1.0, 1.0)),
        ("deepnorm", "last_cycle", DEEPNORM_12, DEEPNORM_12),
        ("deeploop", "last_cycle", DEEPLOOP_12, DEEPLOOP_12),
        ("deeploop_asymmetric", "last_cycle", DEEPNORM_12, DEEPLOOP_12),
        ("deeploop_forward", "last_cycle", (6.928203, 0.072169), (6.928203, 0.072169)),
        ("deeploop", "last_update", (4.0, 0.125), (4.0, 0.125)),
        ("deeploop", "full", (6.928203, 0.072169), (6.928203, 0.072169)),
        ("deeploop_forward", "last_update", (6.928203, 0.072169), (6.928203, 0.072169)),
    ],
)
def test_the_worked_gains_of_each_module(rule, gradient, H, L):
    scaling = gains(RULES[rule], count_visits(**HRM_SHAPE, gradient=gradient))
    assert scaling["H"] == pytest.approx(H, abs=5e-7)
    assert scaling["L"] == pytest.approx(L, abs=5e-7)


@pytest.mark.parametrize(
    ("gradient", "M_g", "R_g_H", "R_g_L"),
    [("last_cycle", 24, 1, 2), ("last_update", 16, 1, 1), ("full", 48, 2, 4)],
)
def test_the_worked_counts(gradient, M_g, R_g_H, R_g_L):
    visits = count_visits(**HRM_SHAPE, gradient=gradient)
    assert (visits.M_g, visits["H"].rounds, visits["L"].rounds) == (M_g, R_g_H, R_g_L)
    assert visits.N_g == M_g // 2
    assert (visits.M_forward, visits.N_forward) == (48, 24)


@given(K_H=st.integers(1, 9), K_L=st.integers(1, 9), C=st.integers(1, 9), C_L=st.integers(1, 9))
def test_deeploop_has_beta_over_alpha_of_one_over_4_N_g(K_H, K_L, C, C_L):
    visits = count_visits(
        H_layers=K_H, L_layers=K_L, H_cycles=C, L_cycles=C_L, gradient="last_cycle"
    )
    assert visits.M_g == 2 * (K_H + C_L * K_L)  # whatever C is
    for own in gains(RULES["deeploop"], visits).values():
        assert own.beta / own.alpha == pytest.approx(1 / (4 * visits.N_g))


def test_a_custom_rule_scales_the_modules_apart():
    visits = count_visits(**HRM_SHAPE, gradient="last_cycle")
    rule = ScalingConfig(rule="custom", p_H=0.0, p_L=0.75, count="forward").resolve()
    scaling = gains(rule, visits)
    assert scaling["H"] == (1.0, 1.0)
    assert scaling["L"] == pytest.approx((48**0.75, 192**-0.75))


def test_the_bound_of_deepnorm_without_sharing_is_one_half():
    """M (beta / alpha)^2 = 2 N / (4 N), the value DeepNorm's constants were chosen for."""
    visits = count_visits(H_layers=3, L_layers=5, H_cycles=1, L_cycles=1, gradient="last_cycle")
    scaling = module_scaling(RULES["deepnorm"], visits)
    bound = stability_bound(scaling, visits, {"H": 1, "L": 1})
    assert sum(bound.values()) == pytest.approx(0.5)


def test_the_bound_of_vanilla_hrm_counts_its_visits():
    visits = count_visits(**HRM_SHAPE, gradient="last_cycle")
    scaling = module_scaling(RULES["vanilla"], visits)
    aligned = {name: module.rounds for name, module in visits.modules.items()}
    assert stability_bound(scaling, visits, {"H": 1, "L": 1}) == {"H": 8, "L": 16}
    # H is visited once and can't align.
    assert stability_bound(scaling, visits, aligned) == {"H": 8, "L": 32}


def test_the_exponent_one_half_bounds_the_aligned_loop_at_any_depth():
    """At fixed layers the aligned bound of deeploop stays O(1) in L_cycles; deepnorm's grows."""

    def aligned_bound(rule: str, L_cycles: int) -> float:
        visits = count_visits(
            H_layers=2, L_layers=2, H_cycles=2, L_cycles=L_cycles, gradient="last_cycle"
        )
        kappa = {name: module.rounds for name, module in visits.modules.items()}
        return sum(stability_bound(module_scaling(RULES[rule], visits), visits, kappa).values())

    assert aligned_bound("deeploop", 1000) < 1 / (8 * 2) + 1e-3
    assert aligned_bound("deepnorm", 1000) > 400


def test_a_rule_of_ones_own_has_options_and_gains_a_layer():
    visits = count_visits(**{**HRM_SHAPE, "L_layers": 2}, gradient="last_cycle")

    @scaling_rule("rising")
    def rising(visits, *, start: float = 1.0):
        return {
            "H": power_law(visits.N_g, 0.25),
            "L": [ResidualScaling(start + i, 0.5) for i in range(visits["L"].layers)],
        }

    found = module_scaling(ScalingConfig(rule="rising", start=3.0).resolve(), visits)
    assert found["L"] == ((3.0, 0.5), (4.0, 0.5))
    assert found["H"] == (power_law(8, 0.25),) * 4  # N_g = 4 + 2 * 2
    # J R kappa (beta / alpha)^2 with a term a layer: 2 * 2 * (1/36 + 1/64)
    bound = stability_bound(found, visits, {"H": 1, "L": 1})
    assert bound["L"] == pytest.approx(4 * (1 / 36 + 1 / 64))
    assert ScalingConfig(rule="rising").model_dump() == {"rule": "rising", "start": 1.0}
    with pytest.raises(ValueError, match="stat=1: rule=rising has start"):
        ScalingConfig(rule="rising", stat=1)
    with pytest.raises(ValueError, match="start=x: Input should be a valid number"):
        ScalingConfig(rule="rising", start="x")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"H": ResidualScaling(1, 1)}, "must return gains of H, L by name, got H"),
        (None, "must return gains of H, L by name, got NoneType"),
        ({"H": ResidualScaling(1, 1), "L": ResidualScaling(1, 0)}, "L: expected .* above 0"),
        ({"H": ResidualScaling(1, 1), "L": [ResidualScaling(1, 1)]}, "gains of 4 layers, got 1"),
        ({"H": ResidualScaling(1, 1), "L": [1.0] * 4}, r"\(alpha, beta\) above 0, got 1.0"),
        ({"H": ResidualScaling(math.inf, 1), "L": ResidualScaling(1, 1)}, "H: expected"),
    ],
)
def test_what_a_rule_returns_is_checked(given, message):
    visits = count_visits(**HRM_SHAPE, gradient="last_cycle")
    with pytest.raises(ValueError, match=message):
        module_scaling(lambda _: given, visits)


def test_rules_about_h_and_l_are_refused_without_h():
    without_H = VisitCounts({"loop": ModuleVisits(2, 3, 3)})
    with pytest.raises(ValueError, match="is about H and L: this model has loop"):
        module_scaling(RULES["deeploop_asymmetric"], without_H)
    custom = ScalingConfig(rule="custom", p_L=0.5, count="gradient").resolve()
    assert gains(custom, without_H)["loop"] == power_law(6, 0.5)
    with pytest.raises(ValueError, match=r"custom needs scaling\.p_H"):
        module_scaling(custom, count_visits(**HRM_SHAPE, gradient="full"))


def test_an_unknown_rule_is_answered_with_those_near_it():
    with pytest.raises(UnknownNameError, match=r"scaling=deeplop: .* did you mean deeploop"):
        RULES["deeplop"]


def test_rejects_a_depth_below_one_and_a_negative_exponent():
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        power_law(0, 0.5)
    with pytest.raises(ValueError, match=r"exponent must not be negative, got -0\.5"):
        power_law(1, -0.5)
    assert power_law(2, 0.5) == (2.0, 0.25)
    assert math.isclose(power_law(32, 0.25).beta, 0.25)
