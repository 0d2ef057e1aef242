"""FLOPs and memory of ``describe`` against what torch counts."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hrm_deeploop.cost import count_flops, estimate_memory, saved_bytes
from hrm_deeploop.hrm import HRM, HRMConfig
from hrm_deeploop.losses import token_loss
from hrm_deeploop.scaling import RULES


def build(config: HRMConfig, gradient, device="cpu"):
    # The fused CPU kernel counts as no FLOPs, so attention is written out.
    network = HRM(
        config,
        vocab_size=12,
        seq_len=9,
        rule=RULES["deeploop"],
        gradient=gradient,
        attention="matmul",
        generator=torch.Generator().manual_seed(0),
    )
    return network.to(device)


@pytest.mark.parametrize("gradient", ["last_cycle", "last_update", "full"])
@pytest.mark.parametrize("q_target", ["halt_only", "bootstrap"])
def test_the_count_is_torchs(model_config, make_batch, gradient, q_target):
    config = model_config(H_layers=2, L_layers=1, H_cycles=2, L_cycles=3, q_target=q_target)
    network = build(config, gradient)
    inputs, labels, _ = make_batch(2)
    counts = count_flops(network, seq_len=9)
    with FlopCounterMode(display=False) as forward:
        out = network(network.initial_state(2), inputs, torch.zeros(2, 16, requires_grad=True))
    assert forward.get_total_flops() == 2 * counts.forward
    q_sum = out.q_halt.sum() if out.q_continue is None else (out.q_halt + out.q_continue).sum()
    with FlopCounterMode(display=False) as backward:
        (token_loss(out.logits, labels).sum() + q_sum).backward()
    assert backward.get_total_flops() == 2 * counts.backward
    assert counts.target == (counts.forward if q_target == "bootstrap" else 0)


def test_halt_only_saves_the_forward_of_the_bootstrap(model_config):
    """What counting visits gives: 64 to 40 under last_update, 72 to 48 under last_cycle."""
    for gradient, expected in (("last_update", 64 / 40), ("last_cycle", 72 / 48)):
        trains = []
        for q_target in ("bootstrap", "halt_only"):
            config = model_config(
                H_layers=4, L_layers=4, hidden_size=512, num_heads=8, q_target=q_target
            )
            trains.append(count_flops(build(config, gradient, "meta"), seq_len=900).train)
        assert trains[0] / trains[1] == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize("gradient", ["last_cycle", "last_update"])
def test_a_dry_run_counts_the_bytes_of_a_real_one(model_config, gradient):
    config = model_config(H_layers=2)
    assert saved_bytes(build(config, gradient, "meta"), 3) == saved_bytes(
        build(config, gradient), 3
    )


def test_memory_adds_up(model_config):
    network = build(model_config(), "last_cycle", "meta")
    memory = estimate_memory(network, num_puzzles=10, rank_rows=8, micro_rows=2, averaged=True)
    num_core = sum(p.numel() for p in network.parameters())
    assert memory.weights_and_optimizer == 4 * 5 * num_core
    assert memory.puzzle_embedding == 4 * 10 * 16
    assert memory.carry == 2 * 2 * 8 * 10 * 16 * 4
    assert memory.total == sum(memory)
    whole = estimate_memory(network, num_puzzles=10, rank_rows=8, micro_rows=8, averaged=True)
    assert whole.activations > 3 * memory.activations
