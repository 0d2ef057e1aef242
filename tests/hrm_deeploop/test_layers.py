"""Attention backends agree, positions are relative, and unusable choices are refused."""

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
    monkeypatch.setitem(__import__("sys").modules, "flash_attn", None)
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
    monkeypatch.setitem(__import__("sys").modules, "flash_attn", module)
    query, key, value = torch.randn(3, 2, 4, 7, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        attention_function("flash")(query, key, value), sdpa(query, key, value)
    )


def test_rotary_products_depend_on_the_distance_alone():
    rotary = Rotary(head_dim=8, num_positions=16, theta=10000.0)
    query, key = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    turned_query, turned_key = (
        rotary(vector.expand(1, 16, 1, 1, 8))[0, :, 0, 0] for vector in (query, key)
    )
    products = turned_query @ turned_key.T
    for distance in range(-15, 16):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-5)
    torch.testing.assert_close(turned_query[0], query)  # position 0 does not turn


def test_bfloat16_logits_are_close_to_float32(make_network, make_batch):
    inputs, _, _ = make_batch()
    vectors = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    wide, narrow = make_network(), make_network(dtype=torch.bfloat16)
    out = [n(n.initial_state(4), inputs, vectors) for n in (wide, narrow)]
    assert out[1].logits.dtype == torch.bfloat16
    assert out[1].q_halt.dtype == torch.float32
    torch.testing.assert_close(out[1].logits.float(), out[0].logits, rtol=0, atol=3e-2)


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
