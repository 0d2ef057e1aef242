"""stablemax against its definition in float64, and finite where the naive form is not."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hrm_deeploop.losses import PAD, correctness, log_stablemax, segment_loss, token_loss

logit_rows = st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=12)


def by_definition(logits):
    s = [x + 1 if x >= 0 else 1 / (1 - x) for x in logits]
    return [math.log(value / sum(s)) for value in s]


@given(logit_rows)
def test_log_stablemax_is_the_definition(logits):
    computed = log_stablemax(torch.tensor(logits, dtype=torch.float64))
    assert computed.tolist() == pytest.approx(by_definition(logits), rel=1e-9, abs=1e-9)


@given(logit_rows)
def test_loss_and_gradient_are_finite_in_float32(logits):
    x = torch.tensor(logits, dtype=torch.float32, requires_grad=True)
    loss = -log_stablemax(x)[0]
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("value", [1.0, -1.0, 0.0, 1e30, -1e30])
def test_finite_where_a_naive_stablemax_is_not(value):
    x = torch.tensor([value, 0.5], dtype=torch.float32, requires_grad=True)
    (-log_stablemax(x)[1]).backward()
    assert torch.isfinite(x.grad).all()


def test_the_slope_at_zero_is_one():
    """d log s / dx = 1 from both sides; a cut at 0 could make it 0 or 2."""
    x = torch.zeros(2, requires_grad=True)
    log_stablemax(x)[0].backward()
    assert x.grad.tolist() == [0.5, -0.5]


def test_float32_agrees_with_float64():
    generator = torch.Generator().manual_seed(0)
    x = 30 * torch.randn(1000, 12, generator=generator, dtype=torch.float64)
    grads = []
    for dtype in (torch.float64, torch.float32):
        leaf = x.to(dtype, copy=True).requires_grad_()
        loss = -log_stablemax(leaf)[:, 3]
        loss.sum().backward()
        grads.append((loss.detach().double(), leaf.grad.double()))
    torch.testing.assert_close(grads[1][0], grads[0][0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(grads[1][1], grads[0][1], rtol=1e-4, atol=1e-7)


def test_the_token_loss_is_a_mean_over_labelled_tokens():
    logits = torch.zeros(2, 3, 12)
    logits[0, 0, 5] = 1.0  # s = 2 against eleven ones
    labels = torch.tensor([[5, 7, PAD], [PAD, PAD, PAD]])
    expected = (math.log(13 / 2) + math.log(12)) / 2
    assert token_loss(logits, labels).tolist() == pytest.approx([expected, 0.0])


def test_pad_labels_carry_no_gradient():
    logits = torch.randn(1, 3, 12, generator=torch.Generator().manual_seed(0), requires_grad=True)
    token_loss(logits, torch.tensor([[5, PAD, 7]])).sum().backward()
    assert (logits.grad[0, 1] == 0).all()
    assert (logits.grad[0, [0, 2]] != 0).any()


def test_an_example_is_exact_if_every_labelled_token_is_right():
    labels = torch.tensor([[2, 3, PAD], [2, 3, PAD]])
    logits = torch.nn.functional.one_hot(torch.tensor([[2, 3, 9], [2, 4, 9]]), 12).float()
    right = correctness(logits, labels)
    assert right.exact.tolist() == [True, False]
    assert right.token_accuracy.tolist() == [1.0, 0.5]


def test_the_total_weighs_both_q_losses_by_a_half():
    logits, labels = torch.zeros(1, 1, 12), torch.tensor([[4]])
    q_halt, q_continue = torch.tensor([0.0]), torch.tensor([0.0])
    loss = segment_loss(
        logits, labels, torch.tensor([True]), q_halt, q_continue, torch.tensor([1.0])
    )
    assert loss.total.item() == pytest.approx(math.log(12) + 0.5 * (math.log(2) + math.log(2)))
    alone = segment_loss(logits, labels, torch.tensor([True]), q_halt)
    assert alone.total.item() == pytest.approx(math.log(12) + 0.5 * math.log(2))
