"""The gains of every rule, against numbers worked by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm_deeploop.scaling import (
    RULES,
    Rule,
    count_visits,
    module_scaling,
    power_law,
    stability_bound,
)

HRM_SHAPE = dict(H_layers=4, L_layers=4, H_cycles=2, L_cycles=2)
DEEPLOOP_12, DEEPNORM_12 = (4.898979, 0.102062), (2.213364, 0.319472)


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
    scaling = module_scaling(RULES[rule], count_visits(**HRM_SHAPE, gradient=gradient))
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
    for gains in module_scaling(RULES["deeploop"], visits).values():
        assert gains.beta / gains.alpha == pytest.approx(1 / (4 * visits.N_g))


def test_a_custom_rule_scales_the_modules_apart():
    visits = count_visits(**HRM_SHAPE, gradient="last_cycle")
    scaling = module_scaling(Rule(p_H=0.0, p_L=0.75, count="forward"), visits)
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"L_cycles": 0}, "L_cycles must be at least 1, got 0"),
        ({"H_layers": -1}, "H_layers must be at least 1, got -1"),
    ],
)
def test_rejects_a_count_below_one(change, message):
    with pytest.raises(ValueError, match=message):
        count_visits(**{**HRM_SHAPE, "gradient": "full", **change})


def test_rejects_a_depth_below_one_and_a_negative_exponent():
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        power_law(0, 0.5)
    with pytest.raises(ValueError, match=r"exponent must not be negative, got -0\.5"):
        power_law(1, -0.5)
    assert power_law(2, 0.5) == (2.0, 0.25)
    assert math.isclose(power_law(32, 0.25).beta, 0.25)
