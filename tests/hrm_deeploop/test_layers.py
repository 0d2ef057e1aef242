"""Attention backends agree, positions are relative, and unusable choices are refused."""

import shutil
import subprocess
import sys

import pytest
import torch
from pydantic import ValidationError

from hrm_deeploop.attention import attention_function, matmul, sdpa
from hrm_deeploop.layers import Rotary


def test_the_written_out_attention_equals_pytorchs_kernel():
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 7, 8, generator=generator)
    torch.testing.assert_close(matmul(query, key, value), sdpa(query, key, value))


def test_flash_is_refused_when_it_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(ValueError, match=r"attention=flash needs the package flash-attn"):
        attention_function("flash")


def test_flash_gets_its_own_axis_order(monkeypatch):
    """A stand-in with flash-attn's signature: (batch, seq, head, head_dim)."""
    import types

    def flash_attn_func(query, key, value, *, causal):
        assert not causal
        swapped = (x.transpose(1, 2) for x in (query, key, value))
        return sdpa(*swapped).transpose(1, 2)

    module = types.SimpleNamespace(flash_attn_func=flash_attn_func)
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    query, key, value = torch.randn(3, 2, 4, 7, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        attention_function("flash")(query, key, value), sdpa(query, key, value)
    )


def test_rotary_products_depend_on_the_distance_alone():
    rotation = Rotary(head_dim=8, num_positions=16, theta=10000.0)()
    query, key = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    turned_query, turned_key = (
        rotation.turn(vector.expand(1, 16, 1, 1, 8))[0, :, 0, 0] for vector in (query, key)
    )
    products = turned_query @ turned_key.T
    for distance in range(-15, 16):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-5)
    torch.testing.assert_close(turned_query[0], query)  # position 0 does not turn


def logits_of(network, inputs, vectors):
    with torch.no_grad():
        return network(network.initial_state(len(inputs)), inputs, vectors).logits


@pytest.fixture
def example(make_batch):
    inputs, _, _ = make_batch()
    return inputs, torch.randn(4, 16, generator=torch.Generator().manual_seed(1))


def test_bfloat16_logits_are_within_2e_2_of_float32(make_network, example):
    narrow = make_network(dtype=torch.bfloat16)
    logits = logits_of(narrow, *example)
    assert logits.dtype == torch.bfloat16
    plain = logits_of(make_network(), *example)
    torch.testing.assert_close(logits.float(), plain, rtol=2e-2, atol=2e-2)


def test_written_out_attention_is_within_1e_4_of_pytorchs_kernel(make_network, example):
    plain = logits_of(make_network(), *example)
    other = logits_of(make_network(attention="matmul"), *example)
    torch.testing.assert_close(other, plain, rtol=0, atol=1e-4)


COMPILED = """
import torch
from hrm_deeploop.hrm import HRM, HRMConfig
from hrm_deeploop.looped import Looped, LoopedConfig
from hrm_deeploop.scaling import RULES
from hrm_deeploop.trainer import compile_blocks
from hrm_deeploop.transitions import TransitionConfig

def build():
    return {model}(
        {model}Config.model_validate_json({config!r}), vocab_size=12, seq_len=9,
        rule=RULES["deeploop"], gradient={gradient!r},
        transition=TransitionConfig.model_validate({transition!r}),
        generator=torch.Generator().manual_seed(0),
    )

plain, twin = build(), build()
inputs = torch.randint(0, 12, (4, 9), generator=torch.Generator().manual_seed(0))
vectors = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
results = []
compile_blocks(twin, fullgraph=True)
for network, forward in ((plain, plain), (twin, twin)):
    num_noisy = network.num_noisy_updates
    noise = torch.ones(4, num_noisy, 10, 16) if num_noisy else None
    logits = forward(network.initial_state(4), inputs, vectors, None, noise).logits
    logits.square().sum().backward()
    stack = list(network.stacks.values())[-1]
    results.append((logits.detach(), stack.blocks[0].mlp.down_proj.weight.grad))
torch.testing.assert_close(results[1][0], results[0][0], rtol=0, atol=1e-4)
torch.testing.assert_close(results[1][1], results[0][1], rtol=1e-3, atol=1e-4)
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler on a CPU")
@pytest.mark.parametrize(
    ("model", "gradient", "transition"),
    [
        ("HRM", "last_cycle", "huginn"),
        ("HRM", "last_update", "huginn"),
        ("HRM", "last_cycle", "operloop"),
        ("Looped", "all_rounds", "recurrent_gpt"),
    ],
)
def test_a_compiled_network_has_the_same_logits_and_gradients(
    model_config, make_looped, model, gradient, transition
):
    """A block is one graph: fullgraph refuses a break in it.

    In a process of its own, because dynamo can't trace the type checks that tests add.
    """
    config = model_config() if model == "HRM" else make_looped(prelude_layers=1).config
    code = COMPILED.format(
        model=model, config=config.model_dump_json(), gradient=gradient, transition=transition
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(hidden_size=18, num_heads=4), "hidden_size=18 must be a multiple of num_heads=4"),
        (dict(hidden_size=6, num_heads=2), "odd head size of 3"),
        (dict(H_cycles=0), "greater than or equal to 1"),
        (dict(L_cycles=-1), "greater than or equal to 1"),
        (dict(halt_exploration_prob=1.5), "less than or equal to 1"),
        (dict(hidden_size="16"), "valid integer"),
        (dict(hiden_size=16), "hiden_size"),
    ],
)
def test_an_impossible_architecture_is_refused(model_config, changes, message):
    with pytest.raises(ValidationError, match=message):
        model_config(**changes)


def test_an_odd_head_size_is_fine_without_rotary(model_config):
    assert model_config(hidden_size=6, num_heads=2, pos_encodings="learned").head_dim == 3


def test_the_mlp_width_is_hrms(model_config):
    assert model_config(hidden_size=512, num_heads=8, mlp_multiple_of=256).mlp_width == 1536
    assert model_config(hidden_size=32, mlp_multiple_of=256).mlp_width == 256


@pytest.mark.parametrize("gradient", ["last_cycle", "last_update"])
def test_casting_a_weight_once_computes_what_casting_at_every_visit_does(make_network, gradient):
    from contextlib import nullcontext
    from unittest.mock import patch

    network = make_network(dtype=torch.bfloat16, gradient=gradient)
    inputs = torch.randint(0, 12, (4, 9), generator=torch.Generator().manual_seed(0))

    def run():
        network.zero_grad()
        out = network(network.initial_state(4), inputs, torch.zeros(4, 16))
        out.logits.float().square().mean().backward()
        return out.logits, [parameter.grad.clone() for parameter in network.L.parameters()]

    logits, grads = run()
    with patch("hrm_deeploop.model.cast_once", lambda *_: nullcontext()):
        expected, expected_grads = run()
    assert torch.equal(logits, expected)
    for grad, other in zip(grads, expected_grads, strict=True):
        if gradient == "last_update":  # each weight is visited once
            assert torch.equal(grad, other)
        torch.testing.assert_close(grad, other, rtol=0.02, atol=float(other.abs().max()) * 0.01)


@pytest.mark.parametrize("pos_encodings", ["rope", "learned"])
def test_a_window_of_all_positions_in_any_order_is_the_whole_canvas(make_network, pos_encodings):
    network = make_network(pos_encodings=pos_encodings)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 12, (2, 9), generator=generator)
    vectors = torch.randn(2, 16, generator=generator)
    positions = torch.stack([torch.randperm(9, generator=generator) for _ in range(2)])
    with torch.no_grad():
        whole = network(network.initial_state(2), inputs, vectors)
        state = network.initial_state(2, 9)
        window = network(state, inputs.gather(1, positions), vectors, positions)
    expected = whole.logits.gather(1, positions[..., None].expand(-1, -1, 12))
    torch.testing.assert_close(window.logits, expected)
    torch.testing.assert_close(window.q_halt, whole.q_halt)


def test_a_window_knows_where_it_is(make_network):
    """The same tokens at other places of the canvas are another input."""
    network = make_network()
    inputs = torch.randint(0, 12, (1, 4), generator=torch.Generator().manual_seed(0))
    vectors, state = torch.zeros(1, 16), network.initial_state(1, 4)
    with torch.no_grad():
        logits = [
            network(state, inputs, vectors, torch.tensor([places])).logits
            for places in ([0, 1, 3, 4], [0, 1, 2, 3])
        ]
    assert not torch.allclose(*logits)
