"""The single-module looped model: its visits, gains, costs and memory."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hrm_deeploop.alignment import measure_alignment
from hrm_deeploop.config import ScalingConfig
from hrm_deeploop.cost import count_flops, saved_bytes
from hrm_deeploop.halting import Batch
from hrm_deeploop.looped import Looped, LoopedConfig
from hrm_deeploop.losses import token_loss
from hrm_deeploop.scaling import RULES
from hrm_deeploop.scaling import module_scaling as layer_scaling
from hrm_deeploop.transitions import TRANSITIONS

SHAPE = dict(prelude_layers=1, layers=2, rounds=3, coda_layers=1)


def count_looped_visits(*, gradient, **shape):
    """Visits of a looped model of this shape."""
    return Looped.count_visits(LoopedConfig.model_construct(**shape), gradient)


def module_scaling(rule, visits):
    """Gains of modules, whose layers all have the same."""
    return {name: layers[0] for name, layers in layer_scaling(rule, visits).items()}


def test_the_worked_counts_and_gains():
    """N = i + K R + j = 1 + 2 * 3 + 1 = 8; one round alone carries gradient: 1 + 2 + 1 = 4."""
    visits = count_looped_visits(**SHAPE, gradient="all_rounds")
    assert (visits.N_g, visits.N_forward, visits.M_g) == (8, 8, 16)
    scaling = module_scaling(RULES["deeploop"], visits)
    assert scaling["loop"] == pytest.approx((4.0, 0.125))  # (2 * 8)^(1/2), (8 * 8)^(-1/2)
    for name in ("prelude", "coda"):  # visited once: p = 1/4
        assert scaling[name] == pytest.approx((2.0, 64**-0.25))
    visits = count_looped_visits(**SHAPE, gradient="last_round")
    assert (visits.N_g, visits.N_forward) == (4, 8)
    assert module_scaling(RULES["deeploop"], visits)["loop"] == pytest.approx((8**0.5, 32**-0.5))
    for gains in module_scaling(RULES["vanilla"], visits).values():
        assert gains == (1, 1)
    for gains in module_scaling(RULES["deepnorm"], visits).values():  # visited once or not
        assert gains == pytest.approx((8**0.25, 32**-0.25))
    forward = module_scaling(RULES["deeploop_forward"], visits)  # sized from N = 8
    assert forward["loop"] == pytest.approx((4.0, 0.125))
    assert forward["coda"] == pytest.approx((2.0, 64**-0.25))
    flat = module_scaling(
        ScalingConfig(rule="custom", p_L=0.125, count="gradient").resolve(), visits
    )
    assert flat["prelude"] == flat["loop"] == pytest.approx((8**0.125, 32**-0.125))


def test_without_prelude_and_coda_the_depth_is_that_of_the_paper():
    visits = count_looped_visits(
        prelude_layers=0, layers=4, rounds=7, coda_layers=0, gradient="all_rounds"
    )
    assert list(visits.modules) == ["loop"]
    gains = module_scaling(RULES["deeploop"], visits)["loop"]
    assert gains.beta / gains.alpha == pytest.approx(1 / (4 * 4 * 7))


@pytest.mark.parametrize("gradient", ["all_rounds", "last_round"])
def test_the_counts_are_what_hooks_see(make_looped, check_visits, gradient):
    check_visits(make_looped(**SHAPE, gradient=gradient))


def test_one_segment_by_its_definition(make_looped, make_batch):
    network = make_looped(**SHAPE, embedding_norm=True)
    inputs, _, _ = make_batch()
    vectors = torch.randn(4, 16, generator=torch.Generator().manual_seed(3))
    out = network(network.initial_state(4), inputs, vectors)
    embedded = network.embed(inputs, vectors)
    stacks, rotation = network.stacks, embedded.rotation
    tokens = embedded.tokens
    e = stacks["prelude"](tokens / (tokens.square().mean(-1, keepdim=True) + 1e-5).sqrt(), rotation)
    z = network.z_init.expand(4, 10, 16)
    for _ in range(3):
        z = stacks["loop"](z + e, rotation)
    torch.testing.assert_close(out.state["z"], z)
    logits = network.lm_head(stacks["coda"](z, rotation)[:, 1:])
    torch.testing.assert_close(out.logits, logits)


def test_tied_embeddings_read_out_with_the_embedding(make_looped, make_batch):
    tied, free = make_looped(tie_embeddings=True), make_looped()
    num_params = [sum(p.numel() for p in network.parameters()) for network in (tied, free)]
    assert num_params[1] - num_params[0] == 12 * 16
    inputs, labels, _ = make_batch()
    out = tied(tied.initial_state(4), inputs, torch.zeros(4, 16))
    torch.testing.assert_close(out.logits, out.state["z"][:, 1:] @ tied.embed_tokens.weight.T)
    token_loss(out.logits, labels).sum().backward()
    unread = sorted(set(range(12)) - set(inputs.flatten().tolist()))
    grad = tied.embed_tokens.weight.grad
    assert (grad[unread].abs().sum(1) > 0).all()  # as an output every token has gradient


def test_memory_for_the_backward_of_the_last_round_does_not_depend_on_the_rounds(make_looped):
    def measure(gradient, rounds):
        return saved_bytes(make_looped(rounds=rounds, gradient=gradient).to("meta"), 4)

    assert measure("last_round", 1) == measure("last_round", 5)
    assert measure("all_rounds", 5) > 3 * measure("last_round", 5)


@pytest.mark.parametrize(
    ("gradient", "transition"),
    [
        *(("last_round", name) for name in ("huginn", "parcae", "recurrent_gpt")),
        *(("all_rounds", name) for name in ("parcae", "hyperloop", "operloop")),
    ],
)
def test_flops_are_torchs(make_looped, make_batch, gradient, transition):
    network = make_looped(**SHAPE, gradient=gradient, transition=transition, attention="matmul")
    inputs, labels, _ = make_batch(2)
    counts = count_flops(network, seq_len=9)
    vectors = torch.zeros(2, 16, requires_grad=True)
    with FlopCounterMode(display=False) as forward:
        out = network(network.initial_state(2), inputs, vectors)
    assert forward.get_total_flops() == 2 * counts.forward
    with FlopCounterMode(display=False) as backward:
        (token_loss(out.logits, labels).sum() + out.q_halt.sum()).backward()
    assert backward.get_total_flops() == pytest.approx(2 * counts.backward, rel=0.02)


@pytest.mark.parametrize("transition", list(TRANSITIONS))
def test_alignment_takes_every_module(make_looped, make_batch, assert_visits_add_up, transition):
    network = make_looped(**SHAPE, transition=transition, attention="matmul")
    network.q_head.weight.data.normal_(generator=torch.Generator().manual_seed(1))
    batch = Batch(*make_batch())
    vectors = torch.randn(4, 16, generator=torch.Generator().manual_seed(2))
    state = network.initial_state(4)
    num_visits = assert_visits_add_up(network, batch, vectors, state)
    assert num_visits == {"prelude": 1, "loop": 3, "coda": 1}
    found = measure_alignment(network, batch, vectors, state)
    assert 0 < found["loop"].kappa <= 3 + 1e-6
    assert found["prelude"].kappa <= 1 + 1e-6
