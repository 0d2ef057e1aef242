"""Initial values: HRM's, and beta exactly where DeepLoop puts it."""

import math

import pytest
import torch

from hrm_deeploop.init import Q_BIAS, truncated_normal_

SHAPE = dict(H_layers=2, L_layers=1, L_cycles=3)


def rows(name, tensor):
    """The parts of a fused matrix that are initialised alike."""
    if name.endswith("qkv_proj.weight"):
        return dict(zip(("query", "key", "value"), tensor.chunk(3), strict=True))
    return {"all": tensor}


@pytest.mark.parametrize("rule", ["deepnorm", "deeploop", "deeploop_asymmetric"])
def test_deeploop_scales_residual_branch_matrices_alone_and_by_beta(make_network, rule):
    vanilla, scaled = make_network(rule="vanilla", **SHAPE), make_network(rule=rule, **SHAPE)
    changed = set()
    plain = vanilla.state_dict()
    for name, tensor in scaled.state_dict().items():
        for part, values in rows(name, tensor).items():
            original = rows(name, plain[name])[part]
            if torch.equal(values, original):
                continue
            changed.add((name, part))
            beta = scaled.scaling[name[0]][0].beta
            assert torch.equal(values, original * beta), name
    assert changed == {
        (f"{module}.blocks.{i}.{matrix}.weight", part)
        for module, i in (("H", 0), ("H", 1), ("L", 0))
        for matrix, part in (
            ("attention.qkv_proj", "value"),
            ("attention.o_proj", "all"),
            ("mlp.gate_up_proj", "all"),
            ("mlp.down_proj", "all"),
        )
    }


def test_beta_is_not_applied_at_run_time(make_network, make_batch):
    """A DeepLoop model given vanilla's weights differs from vanilla by alpha alone."""
    inputs, _, _ = make_batch()
    vanilla, scaled = make_network(rule="vanilla"), make_network(rule="deeploop")
    scaled.load_state_dict(vanilla.state_dict())
    for block in (*scaled.H, *scaled.L):
        assert block.alpha > 1
        block.alpha = 1.0
    logits = [
        network(network.initial_state(4), inputs, torch.zeros(4, 16)).logits
        for network in (vanilla, scaled)
    ]
    assert torch.equal(*logits)


def test_the_usual_initial_values(make_network):
    network = make_network(rule="vanilla", hidden_size=64, mlp_multiple_of=64)
    hidden = 64
    for linear in (network.H.blocks[0].mlp.down_proj, network.L.blocks[0].attention.qkv_proj):
        std = 1 / math.sqrt(linear.weight.shape[1])
        assert linear.weight.std().item() == pytest.approx(std, rel=0.05)
        assert linear.weight.abs().max() <= 2 * std / 0.8796 + 1e-6
    assert network.embed_tokens.weight.std().item() == pytest.approx(hidden**-0.5, rel=0.1)
    assert network.lm_head.weight.std().item() == pytest.approx(hidden**-0.5, rel=0.1)
    assert (network.q_head.weight == 0).all()
    assert (network.q_head.bias == Q_BIAS).all()
    for state in (network.H_init, network.L_init):
        assert state.std().item() == pytest.approx(1, rel=0.3)
        assert not state.requires_grad
    assert not torch.equal(network.H_init, network.L_init)


def test_the_cut_normal_keeps_its_deviation():
    drawn = truncated_normal_(torch.empty(200_000), 0.5, torch.Generator().manual_seed(0))
    assert drawn.std().item() == pytest.approx(0.5, rel=5e-3)
    assert drawn.abs().max().item() <= 2 * 0.5 / 0.87962566103423978 + 1e-6


def test_equal_seeds_give_equal_networks(make_network):
    first, again, other = make_network(seed=1), make_network(seed=1), make_network(seed=2)
    assert torch.equal(first.lm_head.weight, again.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_the_input_is_multiplied_by_the_root_of_hidden(make_network, make_batch):
    network = make_network()
    inputs, _, _ = make_batch()
    vectors = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    embedded = network.embed(inputs, vectors).tokens
    assert embedded.shape == (4, 1 + 9, 16)
    torch.testing.assert_close(embedded[:, 0], 4 * vectors)
    torch.testing.assert_close(embedded[:, 1:], 4 * network.embed_tokens.weight[inputs])


def test_a_puzzle_vector_may_take_two_positions_or_none(make_network, make_batch):
    inputs, _, _ = make_batch()
    wide = make_network(puzzle_emb_ndim=24)
    assert wide.embed(inputs, torch.ones(4, 24)).tokens.shape == (4, 2 + 9, 16)
    assert (wide.embed(inputs, torch.ones(4, 24)).tokens[:, 1, 8:] == 0).all()
    none = make_network(puzzle_emb_ndim=0)
    assert none.embed(inputs, torch.zeros(4, 0)).tokens.shape == (4, 9, 16)
    assert none(none.initial_state(4), inputs, torch.zeros(4, 0)).logits.shape == (4, 9, 12)


def test_learned_positions_keep_the_variance(make_network, make_batch):
    network = make_network(pos_encodings="learned", hidden_size=64)
    inputs, _, _ = make_batch(64)
    embedded = network.embed(inputs, torch.zeros(64, 16)).tokens[:, 1:]
    assert embedded.std().item() == pytest.approx(1, rel=0.1)
