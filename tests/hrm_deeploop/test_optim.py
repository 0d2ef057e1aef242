"""Optimisers, schedule and averaging against hand-computed numbers."""

import math

import pytest
import torch

from hrm_deeploop.optim import (
    average_weights,
    build_optimizer,
    build_scheduler,
    lr_ratio,
    parameter_groups,
)
from hrm_deeploop.puzzle_embedding import PuzzleEmbedding
from hrm_deeploop.transitions import TRANSITIONS


def one_parameter(value=1.0):
    return torch.nn.Parameter(torch.tensor([value]))


def test_adam_atan2_moves_by_a_quarter_turn_times_lr_at_first(optim_config):
    """atan2(g, |g|) = pi / 4 whatever the gradient: a = b = 1, where the package has a = 1.27."""
    for grad in (1e-6, 300.0):
        parameter = one_parameter()
        config = optim_config(optimizer="adam_atan2", lr=0.1, weight_decay=0.0)
        optimizer = build_optimizer([parameter], config)
        parameter.grad = torch.tensor([grad])
        optimizer.step()
        assert parameter.item() == pytest.approx(1 - 0.1 * math.pi / 4, abs=1e-6)


def test_weight_decay_is_decoupled(optim_config):
    for name in ("adam_atan2", "adamw"):
        parameter = one_parameter()
        optimizer = build_optimizer(
            [parameter], optim_config(optimizer=name, lr=0.1, weight_decay=0.5)
        )
        parameter.grad = torch.tensor([0.0])
        optimizer.step()
        assert parameter.item() == pytest.approx(1 - 0.1 * 0.5)


def test_the_schedule_warms_up_holds_and_decays(optim_config):
    config = optim_config(lr_warmup_steps=4, lr_min_ratio=0.1, lr_decay_fraction=0.5)

    def ratio(step):
        return lr_ratio(step, total_steps=20, config=config)

    assert [ratio(s) for s in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert [ratio(s) for s in (4, 9, 10)] == [1.0, 1.0, 1.0]
    assert ratio(15) == pytest.approx(0.1 + 0.9 / 2)
    assert ratio(20) == pytest.approx(0.1)
    assert ratio(99) == pytest.approx(0.1)


def test_hrms_schedule_is_constant_after_its_warm_up(optim_config):
    config = optim_config(lr_warmup_steps=2000, lr_min_ratio=1.0, lr_decay_fraction=1.0)
    ratios = [lr_ratio(step, total_steps=10_000, config=config) for step in (0, 1999, 2000, 9999)]
    assert ratios == [1 / 2000, 1.0, 1.0, 1.0]


def test_the_scheduler_sets_the_rate_of_the_coming_step(optim_config):
    config = optim_config(lr=0.4, lr_warmup_steps=4)
    optimizer = build_optimizer([one_parameter()], config)
    scheduler = build_scheduler(optimizer, total_steps=10, config=config)
    rates = []
    for _ in range(5):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])


def test_averaging_starts_short_and_ends_at_its_rate():
    network = torch.nn.Linear(1, 1, bias=False)
    averaged = average_weights(network, 0.5)
    expected = None
    for n, value in enumerate([1.0, 2.0, 4.0, 8.0]):
        with torch.no_grad():
            network.weight.fill_(value)
        averaged.update_parameters(network)
        rate = min(0.5, (1 + n) / (10 + n))  # 0.1, 0.18, 0.25, ...
        expected = value if n == 0 else rate * expected + (1 - rate) * value
        assert averaged.module.weight.item() == pytest.approx(expected)


def test_sign_sgd_sums_a_repeated_row_before_the_sign():
    table = PuzzleEmbedding(4, 2)
    table.weight.copy_(torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]]))
    puzzle_ids = torch.tensor([1, 3, 1])
    grad = torch.tensor([[3.0, -1.0], [0.0, 5.0], [-1.0, -1.0]])
    table.sign_sgd_step(puzzle_ids, grad, lr=0.1, weight_decay=0.5)
    kept = 1 - 0.1 * 0.5
    expected = [
        [1.0, 1.0],
        [2 * kept - 0.1, 2 * kept + 0.1],  # 3 - 1 > 0, -1 - 1 < 0
        [3.0, 3.0],
        [4 * kept, 4 * kept - 0.1],
    ]
    torch.testing.assert_close(table.weight, torch.tensor(expected))


def test_a_lookup_is_a_leaf_and_leaves_the_table_alone():
    table = PuzzleEmbedding(3, 2)
    rows = table.lookup(torch.tensor([2, 0]))
    rows.sum().backward()
    assert rows.grad is not None
    assert table.weight.grad is None
    assert list(table.parameters()) == []
    with torch.no_grad():
        assert not table.lookup(torch.tensor([1])).requires_grad


@pytest.mark.parametrize("transition", list(TRANSITIONS))
def test_every_parameter_is_in_exactly_one_group(make_network, optim_config, transition):
    network = make_network(transition=transition)
    for name in ("adamw", "adam_atan2"):
        optimizer = build_optimizer(parameter_groups(network), optim_config(optimizer=name))
        grouped = [p for group in optimizer.param_groups for p in group["params"]]
        assert len(grouped) == len({id(p) for p in grouped})
        assert {id(p) for p in grouped} == {id(p) for p in network.parameters()}


def test_gates_do_not_decay_and_all_of_hrm_does(make_network, optim_config):
    gates = {"parcae": {"log_decay", "log_step"}, "recurrent_gpt": {"gate"}, "huginn": set()}
    gates["operloop"] = {"gates.gain", "gates.bias", "bias"}
    for transition, expected in gates.items():
        network = make_network(transition=transition)
        before = {name: p.detach().clone() for name, p in network.named_parameters()}
        config = optim_config(lr=0.5, weight_decay=0.5, optimizer="adamw")
        optimizer = build_optimizer(parameter_groups(network), config)
        for parameter in network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        own = {f"transition_L.{name}" for name in expected}
        for name, parameter in network.named_parameters():
            kept = 1.0 if name in own else 0.75
            torch.testing.assert_close(parameter.detach(), kept * before.pop(name))
        assert not before
