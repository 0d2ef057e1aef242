"""Alignment: visits' gradients add up to the ordinary one, and kappa keeps its bounds."""

import copy
import itertools

import pytest
import torch

from hrm_deeploop.alignment import (
    _in_float32,
    _response,
    _Segment,
    align_segment,
    fit_exponent,
    measure_alignment,
    residual_matrices,
)
from hrm_deeploop.halting import Batch
from hrm_deeploop.hrm import HRM
from hrm_deeploop.losses import correctness, segment_loss


@pytest.fixture
def setting(make_network, make_batch):
    def make(**options):
        network = make_network(attention="matmul", **options)
        network.q_head.weight.data.normal_(generator=torch.Generator().manual_seed(1))
        inputs, labels, puzzle_ids = make_batch()
        labels[:, ::4] = 0  # PAD, which is not in F
        batch = Batch(inputs, labels, puzzle_ids)
        vectors = torch.randn(4, 16, generator=torch.Generator().manual_seed(2))
        with torch.no_grad():  # a state on the way, not the first
            state = network(network.initial_state(4), batch.inputs, vectors).state
        return network, batch, vectors, state

    return make


@pytest.mark.parametrize("gradient", ["last_cycle", "last_update", "full"])
def test_gradients_of_the_visits_add_up_to_the_ordinary_gradient(
    setting, assert_visits_add_up, gradient
):
    network, *rest = setting(gradient=gradient, L_cycles=3, H_layers=2)
    rounds = {name: module.rounds for name, module in network.visits.modules.items()}
    assert assert_visits_add_up(network, *rest) == rounds


def test_responses_are_what_a_small_step_does_to_the_logits(setting):
    """All visits moved along the gradient: the sum of U is the derivative by finite differences."""
    network, batch, vectors, state = setting(L_cycles=2, dtype=torch.float64, gradient="full")
    network.double()
    segment = _Segment(network, batch, vectors.double(), state)
    segment.puzzle_vectors, segment.state = (
        vectors.double(),
        {name: z.double() for name, z in state.items()},
    )

    with _in_float32(network):
        copies = segment.visit_gradients()
        matrices = residual_matrices(network.L)["0.mlp"]
        total = {
            key: torch.stack([visit.gradients[key] for visit in copies["L"]]).sum(0)
            for key in matrices
        }
        norm = torch.stack([part.norm() for part in total.values()]).norm()
        direction = {key: part / norm for key, part in total.items()}
        summed = sum(
            _response(segment, copies, "L", r, matrices, direction) for r in range(len(copies["L"]))
        )
        logits = []
        for step in (1e-5, -1e-5):
            for key, part in direction.items():
                network.L.get_parameter(key).data += step * part
            with torch.no_grad():
                out = network(segment.state, batch.inputs, segment.puzzle_vectors)
            logits.append(out.logits[batch.labels != 0].reshape(-1))
            for key, part in direction.items():
                network.L.get_parameter(key).data -= step * part
    torch.testing.assert_close(summed, (logits[0] - logits[1]) / 2e-5, rtol=1e-5, atol=1e-6)


def written_out_alignment(network, batch, vectors, state, module):
    """kappa by its definition: a copy of the module per visit, U by central differences.

    Returns kappa, and (kappa, cosine, |sum G| / sum |G|, |sum U| / sum |U|) of every sublayer.
    """
    copies = {
        name: [copy.deepcopy(stack) for _ in range(network.visits[name].rounds)]
        for name, stack in network.stacks.items()
    }

    def forward():
        embedded = network.embed(batch.inputs, vectors)
        visits = dict.fromkeys(copies, 0)

        def visit(name, x):
            if not torch.is_grad_enabled():
                return network.stacks[name](x, embedded.rotation)
            visits[name] += 1
            return copies[name][visits[name] - 1](x, embedded.rotation)

        latent = network.recur(state, embedded, visit)[1]
        return network.token_logits(latent), network.q_values(latent)[:, 0]

    logits, q_halt = forward()
    exact = correctness(logits.detach(), batch.labels).exact
    (segment_loss(logits, batch.labels, exact, q_halt).total / 4).backward()
    labelled = batch.labels != 0

    def branch(stack, block, sublayer):
        """(matrix, gradient) views of a sublayer's rows that take beta."""
        part, first = getattr(stack.blocks[block], sublayer), 0
        matrices = [part.gate_up_proj, part.down_proj] if sublayer == "mlp" else []
        if sublayer == "attention":
            matrices = [part.qkv_proj, part.o_proj]
            first = 2 * part.qkv_proj.weight.shape[0] // 3  # behind query and key
        rows = [slice(first, None), slice(None)]
        weights = [linear.weight for linear in matrices]
        return [(w.data[of], w.grad[of]) for w, of in zip(weights, rows, strict=True)]

    rows, largest_U, largest_G = [], 0.0, 0.0
    for block, sublayer in itertools.product(
        range(len(network.stacks[module].blocks)), ("attention", "mlp")
    ):
        G = [
            torch.cat([gradient.reshape(-1) for _, gradient in branch(c, block, sublayer)])
            for c in copies[module]
        ]
        direction = sum(G) / sum(G).norm()
        U = []
        for visited in copies[module]:
            moved = []
            for step in (1e-5, -2e-5, 1e-5):  # there, to the other side, and back
                start = 0
                for matrix, _ in branch(visited, block, sublayer):
                    piece = direction[start : start + matrix.numel()]
                    matrix += step * piece.view_as(matrix)
                    start += matrix.numel()
                moved.append(forward()[0].detach()[labelled].reshape(-1))
            U.append((moved[0] - moved[1]) / 2e-5)
        largest_U = max(largest_U, *(float(u.norm()) for u in U))
        largest_G = max(largest_G, *(float(g.norm()) for g in G))
        cosines = [float(a @ b / (a.norm() * b.norm())) for a, b in itertools.combinations(G, 2)]
        product = float(sum(U).norm() * sum(G).norm())
        ratios = [float(sum(V).norm() / sum(v.norm() for v in V)) for V in (G, U)]
        rows.append((product, sum(cosines) / len(cosines) if cosines else 1.0, *ratios))
    scale = len(copies[module]) * largest_U * largest_G
    rows = [(product / scale, *others) for product, *others in rows]
    return max(row[0] for row in rows), rows


@pytest.mark.parametrize(
    ("gradient", "module"), [("last_cycle", "L"), ("full", "H"), ("last_cycle", "H")]
)
def test_kappa_by_its_definition(setting, gradient, module):
    network, batch, vectors, state = setting(
        gradient=gradient, L_cycles=3, H_layers=2, dtype=torch.float64
    )
    network, vectors = network.double(), vectors.double()
    state = {name: z.double() for name, z in state.items()}
    found = measure_alignment(network, batch, vectors, state)[module]
    kappa, rows = written_out_alignment(network, batch, vectors, state, module)
    assert found.kappa == pytest.approx(kappa, rel=1e-6)
    assert len(found.sublayers) == len(rows)
    for sublayer, row in zip(found.sublayers, rows, strict=True):
        assert tuple(sublayer[1:]) == pytest.approx(row, rel=1e-6)


@pytest.mark.parametrize("gradient", ["last_cycle", "full"])
def test_kappa_is_between_0_and_the_rounds_and_at_most_1_with_one(setting, gradient):
    network, *rest = setting(gradient=gradient, L_cycles=3)
    before = {name: p.clone() for name, p in network.named_parameters()}
    found = measure_alignment(network, *rest)
    assert found["L"].rounds == network.visits["L"].rounds
    assert found["H"].rounds == network.visits["H"].rounds
    for module in found.values():
        assert 0 < module.kappa <= module.rounds + 1e-6
        assert module.kappa == max(sublayer.kappa for sublayer in module.sublayers)
        for sublayer in module.sublayers:
            assert 0 < sublayer.gradient <= 1 + 1e-6
            assert 0 < sublayer.response <= 1 + 1e-6
    if gradient == "last_cycle":
        assert found["H"].kappa <= 1 + 1e-6
        assert all(sublayer.gradient == pytest.approx(1) for sublayer in found["H"].sublayers)
    for name, parameter in network.named_parameters():  # nothing was changed
        assert torch.equal(parameter, before[name])
        assert parameter.requires_grad
    assert network.dtype == torch.float32


def test_a_segment_starts_where_the_one_before_it_ends(setting):
    network, batch, vectors, second = setting(L_cycles=3)
    third = network(second, batch.inputs, vectors).state
    starts = {1: network.initial_state(4), 2: second, 3: third}
    kappas = set()
    for segment, state in starts.items():
        found = align_segment(network, batch, vectors, segment)
        expected = measure_alignment(network, batch, vectors, state)
        assert found["L"].kappa == pytest.approx(expected["L"].kappa, rel=1e-5)
        kappas.add(round(found["L"].kappa, 4))
    assert len(kappas) == 3


def test_the_exponent_is_the_slope_in_logarithms():
    gamma, threshold = fit_exponent([1, 2, 4, 8], [3 * r**0.3 for r in (1, 2, 4, 8)])
    assert gamma == pytest.approx(0.3)
    assert threshold == pytest.approx(1.3 / 4)
    with pytest.raises(ValueError, match="two numbers of rounds"):
        fit_exponent([2, 2], [1.0, 1.1])


def test_beta_and_alignment_agree_on_what_a_residual_branch_is(make_network):
    """The rows that alignment moves are exactly those that change between scaling rules."""
    plain, scaled = (make_network(rule=rule) for rule in ("vanilla", "deeploop"))
    assert isinstance(plain, HRM)
    for name in ("H", "L"):
        named = {}
        for matrices in residual_matrices(getattr(plain, name)).values():
            named |= matrices
        for key, parameter in getattr(plain, name).named_parameters():
            changed = (parameter != getattr(scaled, name).get_parameter(key)).any(dim=1)
            expected = torch.zeros(len(parameter), dtype=torch.bool)
            if key in named:
                expected[named[key]] = True
            assert torch.equal(changed, expected), key
