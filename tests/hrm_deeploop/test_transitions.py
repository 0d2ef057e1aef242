"""Transitions: their identities, what they learn, and that huginn is HRM's own update."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hrm_deeploop.alignment import measure_alignment
from hrm_deeploop.halting import Batch
from hrm_deeploop.losses import token_loss
from hrm_deeploop.transitions import TRANSITIONS, TransitionConfig
from hrm_deeploop.transitions.base import Update
from hrm_deeploop.transitions.operloop import optimizer_step
from hrm_deeploop.transitions.parcae import Parcae

NAMES = list(TRANSITIONS)
DIM = 6


def grows(name):
    return TRANSITIONS[name].growth != "none"


def make(given, *, num_loops=3, seed=0):
    """A transition with random parameters, in float64."""
    config = TransitionConfig.model_validate(given)
    transition = config.build(dim=DIM, num_loops=num_loops).double()
    generator = torch.Generator().manual_seed(seed)
    for parameter in transition.parameters():
        parameter.data.normal_(generator=generator)
    return transition


def draw(*shape, seed=1):
    return torch.randn(
        *shape, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def blocks(x):
    """Stands for the blocks: anything that is not linear."""
    return torch.tanh(x.roll(1, dims=-1)) + 0.5 * x.cos()


def written_out_gates(transition, Y, number):
    """s(a W Z + b) of Z = RMSNorm(flatten Y), a kind after the other, from the parameters."""
    gates, flat = transition.gates, Y.flatten(-2)
    Z = flat / (flat.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    logits = Z @ gates.W[number].weight.T
    found, start = {}, 0
    for kind, (name, size) in enumerate(gates.sizes.items()):
        rows = slice(start, start + size)
        logit = gates.gain[number, kind] * logits[..., rows] + gates.bias[number, rows]
        found[name] = 1 / (1 + (-logit).exp())
        start += size
    return found


def test_huginn_is_the_general_form_with_unit_maps_and_the_inner_objective():
    y, e = draw(2, 3), draw(2, 3, seed=2)
    after, _ = make("huginn")(y, Update(e, blocks, 0))
    one = torch.ones(2, 3, 1, dtype=torch.float64)
    general = optimizer_step(y.unsqueeze(-2), -blocks(y + e), write=one, decay=one)
    torch.testing.assert_close(after, general.squeeze(-2), rtol=0, atol=1e-12)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("step", ["causal", "noncausal", "unit"])
def test_operloop_is_hyperloop_with_the_maps_of_equation_16(number, step):
    """H_pre = H_in, H_post = eta H_in, H_res = I - eta (Lambda + H_in^T H_in)."""
    operloop = make({"name": "operloop", "streams": 3, "step": step})
    Y, e = draw(2, 4, 3), draw(2, 4, seed=2)
    memory = None if number == 0 else torch.full((2, 4, 1), 0.25, dtype=torch.float64)
    after, left = operloop(Y, Update(e, blocks, number, memory))
    entered = Y + e.unsqueeze(-2) if number == 0 else Y
    gates = written_out_gates(operloop, entered, number)
    eta = torch.ones(2, 4, 1, dtype=torch.float64)
    if step != "unit":
        own = 0.25 if number and step == "causal" else 1.0
        eta = gates["step"] * own
        torch.testing.assert_close(left, eta)
    H_in = gates["in"].unsqueeze(-2)  # (batch, seq, 1, r)
    identity = torch.eye(3, dtype=torch.float64)
    H_res = identity - eta[..., None] * (torch.diag_embed(gates["decay"]) + H_in.mT @ H_in)
    target = blocks((H_in @ entered).squeeze(-2)) + operloop.bias[number]
    hyperloop = H_res @ entered + eta[..., None] * H_in.mT @ target.unsqueeze(-2)
    torch.testing.assert_close(after, hyperloop, rtol=0, atol=1e-6)


def test_the_inner_objective_leaves_out_the_block_input():
    Y, e = draw(2, 4, 3), draw(2, 4, seed=2)
    options = {"name": "operloop", "streams": 3, "step": "unit"}
    delta, inner = (make({**options, "objective": o}) for o in ("delta", "inner"))
    gates = delta.gates(Y, 1)
    read = torch.einsum("bsr,bsrd->bsd", gates["in"], Y)
    difference = inner(Y, Update(e, blocks, 1))[0] - delta(Y, Update(e, blocks, 1))[0]
    torch.testing.assert_close(difference, gates["in"].unsqueeze(-1) * read.unsqueeze(-2))


def test_the_causal_step_size_decreases_within_a_cycle():
    operloop, Y, e = make("operloop", num_loops=5), draw(2, 4, 4), draw(2, 4, seed=2)
    sizes, memory = [torch.ones(2, 4, 1, dtype=torch.float64)], None
    for number in range(5):
        Y, memory = operloop(Y, Update(e, blocks, number, memory))
        sizes.append(memory)
    assert all(bool((after < before).all()) for before, after in pairwise(sizes))
    assert bool((sizes[-1] > 0).all())


@pytest.mark.parametrize(
    ("plain", "aligned", "fewer"),
    # A gate for every stream less: its row of W, its bias, and the gain of its kind, per update.
    [
        ("parcae", "parcae_aligned", 0),
        ("hyperloop", "hyperloop_aligned", 3 * (4 * (4 * DIM + 1) + 1)),
    ],
)
def test_aligned_variants_have_the_stated_parameters(plain, aligned, fewer):
    counts = [sum(p.numel() for p in make(name).parameters()) for name in (plain, aligned)]
    assert counts[0] - counts[1] == fewer


def test_the_aligned_variants_write_through_the_map_that_they_read_through():
    y, e = draw(2, 3), draw(2, 3, seed=2)
    plain, aligned = make("parcae"), make("parcae_aligned")
    A, _ = plain.system()
    update = Update(e, blocks, 1)
    torch.testing.assert_close(aligned(y, update)[0], A * plain(y, update)[0])
    Y, hyperloop = draw(2, 4, 4), make("hyperloop_aligned")
    gates = written_out_gates(hyperloop, Y, 1)
    read = torch.einsum("bsr,bsrd->bsd", gates["pre"], Y)
    target = blocks(read) + hyperloop.bias[1]
    expected = gates["res"][..., None] * Y + gates["pre"][..., None] * target.unsqueeze(-2)
    torch.testing.assert_close(hyperloop(Y, Update(draw(2, 4, seed=2), blocks, 1))[0], expected)


@pytest.mark.parametrize("number", [0, 2])
def test_hyperloop_by_its_equations(number):
    hyperloop, Y, e = make({"name": "hyperloop", "streams": 3}), draw(2, 4, 3), draw(2, 4, seed=2)
    after, memory = hyperloop(Y, Update(e, blocks, number))
    entered = Y + e.unsqueeze(-2) if number == 0 else Y
    gates = written_out_gates(hyperloop, entered, number)
    H_pre, H_post = gates["pre"].unsqueeze(-2), 2 * gates["post"].unsqueeze(-2)
    target = blocks((H_pre @ entered).squeeze(-2)) + hyperloop.bias[number]
    expected = torch.diag_embed(gates["res"]) @ entered + H_post.mT @ target.unsqueeze(-2)
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-6)
    assert memory is None


def test_parcae_by_its_equations():
    parcae, y, e = make("parcae"), draw(2, 3), draw(2, 3, seed=2)
    a, delta = parcae.log_decay.exp(), parcae.log_step.exp()
    A = torch.diag((-delta * a).exp())
    B = torch.diag((1 - (-delta * a).exp()) / a) @ parcae.B_0.weight
    after, _ = parcae(y, Update(e, blocks, 1))
    torch.testing.assert_close(after, blocks(y @ A.T + e @ B.T))


@given(decay=st.floats(-20, 8), step=st.floats(-20, 8))
@settings(max_examples=50, deadline=None)
def test_parcaes_spectral_radius_stays_below_1(decay, step):
    parcae = Parcae(DIM, num_loops=1, eps=1e-5)  # in float32, as it runs
    parcae.log_decay.data.fill_(decay)
    parcae.log_step.data.fill_(step)
    A, B = parcae.system()
    assert 0 <= A.max().item() < 1
    # The exact integral over the step, where a quotient in float32 would have lost its digits too.
    a, delta = torch.tensor(decay).double().exp(), torch.tensor(step).double().exp()
    exact = -torch.expm1(-delta * a) / a
    torch.testing.assert_close(B.double(), exact.expand(DIM), rtol=1e-5, atol=0)


def test_recurrent_gpt_starts_as_the_mean_of_huginn_and_the_state():
    config = TransitionConfig.model_validate({"name": "recurrent_gpt", "noise": 0.5})
    transition = config.build(dim=DIM, num_loops=1).double()
    with torch.no_grad():
        transition.initialize(lambda tensor, _: tensor)
    y, e, noise = draw(2, 3), draw(2, 3, seed=2), draw(2, 3, seed=3)
    after, _ = transition(y, Update(e, blocks, 0))
    torch.testing.assert_close(after, (y + blocks(y + e)) / 2)
    after, _ = transition(y, Update(e, blocks, 0, None, noise))
    torch.testing.assert_close(after, (y + blocks(y + 0.5 * noise + e)) / 2)


def test_recirculation_by_hand():
    y = torch.tensor([[[3.0, 4.0]]])
    after, _ = make("recirculation")(
        y, Update(torch.zeros(1, 1, 2), lambda _: torch.tensor([[[0.0, 2.0]]]), 1)
    )
    torch.testing.assert_close(after, torch.tensor([[[1.5, 2.0 + 2.5]]]))  # |y| = 5


@pytest.mark.parametrize("name", ["once_a_cycle", "recirculation", "hyperloop", "operloop"])
def test_the_injection_enters_at_the_first_update_alone(name):
    transition = make(name)
    state = transition.expand(draw(2, 4))
    e, other = draw(2, 4, seed=2), draw(2, 4, seed=3)
    first, again = (transition(state, Update(given, blocks, 0))[0] for given in (e, other))
    assert not torch.equal(first, again)
    first, again = (transition(state, Update(given, blocks, 1))[0] for given in (e, other))
    assert torch.equal(first, again)


def start(given, *, gain=0.0):
    """A transition as it starts, with gates that are the same for every token."""
    transition = make(given)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        transition.initialize(lambda tensor, sd: tensor.normal_(0, sd, generator=generator))
        if hasattr(transition, "gates"):
            torch.testing.assert_close(
                transition.gates.gain, torch.full_like(transition.gates.gain, 0.01)
            )
            transition.gates.gain.fill_(gain)
    return transition


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"name": "hyperloop", "streams": 5}, {"pre": 0.2, "res": 0.5, "post": 0.5}),
        ({"name": "hyperloop_aligned", "streams": 5}, {"pre": 0.2, "res": 0.5}),
        ({"name": "operloop", "streams": 4}, {"in": 0.5, "decay": 0.02, "step": 0.9}),
        ({"name": "operloop", "streams": 4, "step": "unit"}, {"in": 0.5, "decay": 0.02}),
        (
            {"name": "operloop", "streams": 4, "objective": "inner"},
            {"in": 0.5, "decay": 0.98, "step": 0.9},
        ),
    ],
    ids=str,
)
def test_gates_start_from_the_values_that_are_documented(given, expected):
    transition = start(given)
    for number in range(3):
        gates = transition.gates(draw(2, 4, given["streams"]), number)
        assert gates.keys() == expected.keys()
        for name, gate in gates.items():
            torch.testing.assert_close(gate, torch.full_like(gate, expected[name]))
        assert (transition.bias[number] == 0).all()


def test_a_hyperloop_starts_by_reading_the_mean_and_writing_to_every_stream():
    transition, Y = start({"name": "hyperloop", "streams": 3}), draw(2, 4, 3)
    after, _ = transition(Y, Update(draw(2, 4, seed=2), blocks, 1))
    expected = Y / 2 + blocks(Y.mean(dim=2)).unsqueeze(2)
    torch.testing.assert_close(after, expected)


def test_an_operloop_starts_by_bringing_its_reading_to_the_target():
    """H_in H_in^T = 1: o' = H_in y' = (1 - eta) o + eta t, but for the little that decays."""
    transition, Y = start("operloop"), draw(2, 4, 4)
    read = Y.sum(dim=2) / 2
    after, _ = transition(Y, Update(draw(2, 4, seed=2), blocks, 1))
    kept = 1 - 0.9 * 0.02
    torch.testing.assert_close(after.sum(dim=2) / 2, (kept - 0.9) * read + 0.9 * blocks(read))


@pytest.mark.parametrize("aligned", [False, True])
def test_a_parcae_starts_from_one_over_e(aligned):
    transition, y, e = start(f"parcae{'_aligned' * aligned}"), draw(2, 4), draw(2, 4, seed=2)
    A = math.exp(-1)
    target = blocks(A * y + (1 - A) * e)
    after, _ = transition(y, Update(e, blocks, 1))
    torch.testing.assert_close(after, A * target if aligned else target)


@pytest.mark.parametrize("given", ["hyperloop", "operloop"])
def test_gates_are_computed_in_float32(given):
    """A bias of 8 is s = 0.99966, which bfloat16, with steps of 0.004 there, would round to 1."""
    transition = start(given).to(torch.bfloat16)
    transition.gates.bias.data.fill_(8)
    for gate in transition.gates(draw(2, 4, 4).bfloat16(), 0).values():
        torch.testing.assert_close(gate, torch.full_like(gate, 1 / (1 + math.exp(-8))))
        assert gate.dtype == torch.float32


def test_streams_start_as_copies_and_leave_as_their_mean():
    transition = make({"name": "hyperloop", "streams": 3})
    y = draw(2, 4)
    assert transition.expand(y).shape == (2, 4, 3, DIM)
    torch.testing.assert_close(transition.read(transition.expand(y)), y)
    Y = draw(2, 4, 3)
    torch.testing.assert_close(transition.read(Y), (Y[:, :, 0] + Y[:, :, 1] + Y[:, :, 2]) / 3)


@pytest.mark.parametrize("gradient", ["last_cycle", "full"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_every_parameter(make_network, make_batch, name, gradient):
    network = make_network(transition=name, transition_H=name, L_cycles=3, gradient=gradient)
    inputs, labels, _ = make_batch()
    out = network(network.initial_state(4), inputs, torch.zeros(4, 16))
    (token_loss(out.logits, labels).sum() + out.q_halt.sum()).backward()
    for key, parameter in network.named_parameters():
        if key.startswith("transition"):
            assert parameter.grad is not None, key
            assert parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize("name", NAMES)
def test_alignment_goes_through_every_transition(
    make_network, make_batch, assert_visits_add_up, name
):
    """The visits' gradients add up to the ordinary one, and U has a derivative to be taken."""
    other = "huginn" if name == "recirculation" else name
    network = make_network(transition=name, transition_H=other, L_cycles=3, attention="matmul")
    batch = Batch(*make_batch())
    vectors = torch.zeros(4, 16)
    state = network.initial_state(4)
    assert assert_visits_add_up(network, batch, vectors, state)["L"] == 3
    found = measure_alignment(network, batch, vectors, state)["L"]
    assert found.rounds == 3
    assert 0 < found.kappa <= 3 + 1e-6
    assert all(0 < sublayer.response <= 1 + 1e-6 for sublayer in found.sublayers)


def test_the_default_adds_no_parameter_and_changes_no_draw(make_network):
    plain = make_network()
    assert not [key for key in plain.state_dict() if "transition" in key]
    other = make_network(transition="operloop").state_dict()
    for key, tensor in plain.state_dict().items():
        assert torch.equal(tensor, other[key]), key


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_states_stay_so(make_network, make_batch, name):
    network = make_network(transition=name, transition_H=name, dtype=torch.bfloat16)
    inputs, _, _ = make_batch()
    state = network.initial_state(4)
    out = network(state, inputs, torch.zeros(4, 16))
    for key, tensor in out.state.items():
        assert tensor.dtype == torch.bfloat16
        assert tensor.shape == state[key].shape
        assert tensor.isfinite().all()


def lengths_of_states(network, inputs, segments):
    """The greater rms of z_H and z_L after each segment."""
    state, found = network.initial_state(4), []
    with torch.no_grad():
        for _ in range(segments):
            state = network(state, inputs, torch.zeros(4, 16)).state
            found.append(max(z.square().mean().sqrt().item() for z in state.values()))
    return found


@pytest.mark.parametrize(
    ("L", "H"),
    [
        *((name, name) for name in NAMES if name != "recirculation"),
        ({"name": "operloop", "objective": "inner"},) * 2,
        *(("recirculation", name) for name in NAMES if not grows(name)),
        *((name, "recirculation") for name in NAMES if not grows(name)),
    ],
    ids=str,
)
def test_states_grow_linearly_at_most_as_they_start(make_network, make_batch, L, H):
    inputs, _, _ = make_batch()
    lengths = lengths_of_states(make_network(transition=L, transition_H=H), inputs, 16)
    assert lengths[-1] < 100
    assert lengths[-1] / lengths[7] <= 2.1


@pytest.mark.parametrize("name", [name for name in NAMES if grows(name)])
def test_beside_recirculation_what_is_refused_grows_faster_than_linearly(
    make_network, make_batch, name
):
    inputs, _, _ = make_batch()
    for L, H in ((name, "recirculation"), ("recirculation", name)):
        lengths = lengths_of_states(make_network(transition=L, transition_H=H), inputs, 16)
        assert lengths[-1] / lengths[7] > 2.1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "huginn", "streams": 2}, "streams=2: huginn has no options"),
        ({"name": "hyperloop", "step": "unit"}, "step=unit: hyperloop has streams"),
        ({"name": "operloop", "streams": 1}, "greater than or equal to 2"),
        ("operlop", "there is no such transition; did you mean operloop"),
        ({"name": "huginn", "stpe": None}, "stpe=None: huginn has no options"),
    ],
)
def test_a_wrong_option_is_refused(given, message):
    with pytest.raises(ValidationError, match=message):
        TransitionConfig.model_validate(given)


def test_a_configuration_is_written_as_briefly_as_it_can_be():
    for brief in (
        "huginn",
        "operloop",
        {"name": "operloop", "streams": 2, "step": "unit", "objective": "delta"},
    ):
        assert TransitionConfig.model_validate(brief).model_dump() == brief
    assert str(TransitionConfig(name="recurrent_gpt")) == "recurrent_gpt (noise 0.1)"
    for same in ({"name": "operloop"}, {"name": "operloop", "step": None, "streams": None}):
        assert TransitionConfig.model_validate(same).model_dump() == "operloop"
