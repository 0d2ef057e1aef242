"""The one-step gradient: by hand on scalars, by hooks on a model, and its memory."""

import itertools

import pytest
import torch

from hrm_deeploop.block import Stack
from hrm_deeploop.recurrence import Loop, run_cycles
from hrm_deeploop.transitions.huginn import Huginn


@pytest.mark.parametrize(
    ("gradient", "d_a", "d_b"),
    [
        # H(x) = a x, L(x) = b x, z_H = z_L = e = 1, C = C_L = 2, a = 2, b = 3. The states are
        #   cycle 1:  z_L = 3 (1 + 1 + 1) = 9, then 3 (9 + 1 + 1) = 33;   z_H = 2 (1 + 33) = 68
        #   cycle 2:  z_L = 3 (33 + 69) = 306, then 3 (306 + 69) = 1125;  z_H = 2 (68 + 1125) = 2386
        # last_update: z_H = a (68 + b (306 + 69)):            d_a = 1193, d_b = 2 * 375
        ("last_update", 1193, 750),
        # last_cycle: z_H = a (68 + b (b (33 + 69) + 69)):     d_b = 2 (2 * 3 * 102 + 69)
        ("last_cycle", 1193, 2 * (2 * 3 * 102 + 69)),
        # full: with u = z_H after cycle 1 = a (1 + w), w = b (b (1 + 2) + 2) = 3 b^2 + 2 b, and
        #   z_H = a (u + b^2 (w + u + 1) + b (u + 1))
        #   du/da = 34, du/db = 2 (6 b + 2) = 40, dw/db = 20
        #   d_a = 1193 + 2 (34 + 9 * 34 + 3 * 34) = 1193 + 884
        #   d_b = 2 (40 + 2 * 3 * 102 + 9 (20 + 40) + 69 + 3 * 40)
        ("full", 1193 + 884, 2 * (40 + 612 + 540 + 69 + 120)),
    ],
)
def test_the_gradient_by_hand(gradient, d_a, d_b):
    a, b = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (2.0, 3.0))
    one = torch.ones((1, 1, 1), dtype=torch.float64)
    state = run_cycles(
        {"z_H": one, "z_L": one},
        one,
        Loop(Huginn(1, num_loops=1, eps=1e-5), lambda x: a * x),
        Loop(Huginn(1, num_loops=1, eps=1e-5), lambda x: b * x),
        H_cycles=2,
        L_cycles=2,
        gradient=gradient,
    )
    # The truncation does not change the values.
    assert (state["z_H"].item(), state["z_L"].item()) == (2386, 1125)
    state["z_H"].backward()
    assert (a.grad.item(), b.grad.item()) == (d_a, d_b)


SHAPES = [(1, 1, 1, 1), (2, 1, 2, 3), (1, 3, 3, 2), (2, 2, 2, 1)]


@pytest.mark.parametrize("gradient", ["last_cycle", "last_update", "full"])
@pytest.mark.parametrize(("K_H", "K_L", "C", "C_L"), SHAPES)
def test_the_counts_are_what_hooks_see(make_network, check_visits, K_H, K_L, C, C_L, gradient):
    """M_g sublayer visits carry gradient, and each physical sublayer R_g of them."""
    network = make_network(H_layers=K_H, L_layers=K_L, H_cycles=C, L_cycles=C_L, gradient=gradient)
    check_visits(network)


def saved_bytes(network, inputs) -> int:
    """Bytes that one forward keeps for its backward."""
    total = 0

    def pack(tensor):
        nonlocal total
        total += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        network(network.initial_state(4), inputs, torch.zeros(4, 16, requires_grad=True))
    return total


def test_memory_for_the_backward_does_not_depend_on_the_cycles(make_network, make_batch):
    inputs, _, _ = make_batch()

    def measure(gradient, C):
        return saved_bytes(make_network(H_cycles=C, gradient=gradient), inputs)

    for gradient in ("last_cycle", "last_update"):
        assert measure(gradient, 1) == measure(gradient, 2) == measure(gradient, 5) > 0
    assert measure("full", 5) > 4 * measure("last_cycle", 5)
    assert measure("last_update", 2) < measure("last_cycle", 2)


def test_nothing_carries_gradient_when_grad_is_off(make_network, make_batch):
    inputs, _, _ = make_batch()
    for gradient in ("last_cycle", "full"):
        network = make_network(gradient=gradient)
        with torch.no_grad():
            out = network(network.initial_state(4), inputs, torch.zeros(4, 16))
        assert not out.logits.requires_grad
        assert not out.state["z_L"].requires_grad


def test_the_truncation_leaves_the_forward_values_as_they_are(make_network, make_batch):
    inputs, _, _ = make_batch()
    outputs = []
    for gradient in ("last_cycle", "last_update", "full"):
        network = make_network(rule="vanilla", gradient=gradient)
        outputs.append(network(network.initial_state(4), inputs, torch.zeros(4, 16)).logits)
    for one, other in itertools.pairwise(outputs):
        assert torch.equal(one, other)


def test_every_parameter_gets_a_gradient_under_last_cycle(make_network, make_batch):
    network = make_network(gradient="last_cycle", q_target="bootstrap", H_layers=2, L_layers=2)
    inputs, _, _ = make_batch()
    # q_head starts at 0, which hides the states from it, not from the logits
    out = network(network.initial_state(4), inputs, torch.zeros(4, 16))
    (out.logits.square().sum() + out.q_halt.sum() + 2 * out.q_continue.sum()).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_a_stack_applies_its_blocks_in_order(make_network):
    network = make_network(H_layers=2)
    x = torch.randn(2, 10, 16, generator=torch.Generator().manual_seed(0))
    first, second = network.H
    rotation = network.rotary()
    by_hand = second(first(x, rotation), rotation)
    assert torch.equal(network.H(x, rotation), by_hand)
    assert isinstance(network.H, Stack)
