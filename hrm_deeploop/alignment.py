"""Visit alignment kappa: how much the visits of one sublayer push the same way.

Of module m, sublayer j has the residual-branch matrices phi_j (those that take beta) and is visited
R times with gradient. G_(r,j) is the gradient of the loss with respect to phi_j that visit r alone
contributes; F are the token logits at labelled positions; U_(r,j) is the derivative of F when phi_j
moves, at visit r alone, along the unit vector of sum_r G_(r,j) [1, eq. 12]:

    kappa_m = max_j |sum_r U_(r,j)| |sum_r G_(r,j)| / (R max_(r,j) |U_(r,j)| max_(r,j) |G_(r,j)|)

0 <= kappa_m <= R: R if all visits push the same way and equally strongly, about 1 if they are
unrelated and equally strong, and at most 1 where R = 1, by construction. Visits of unequal strength
make it smaller, for it divides by the largest. Two numbers that tell these apart are reported
beside it per sublayer: the mean cosine between the G of two visits (1 aligned, 0 unrelated,
whatever their lengths), and |sum_r G| / sum_r |G|, which is 1 for aligned visits and, for unrelated
ones, 1 / sqrt(R) if they are equally long and more if they are not.

Every visit gets a copy of the module's parameters, so that one backward yields all G_(r,j); U is a
forward-mode derivative, one forward per visit and sublayer. Both run in float32.

[1] Li et al. 2026, "DeepLoop: Depth Scaling for Looped Transformers", arXiv:2607.13491
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from hrm_deeploop.block import Stack
from hrm_deeploop.halting import Batch
from hrm_deeploop.layers import Latent
from hrm_deeploop.losses import PAD, correctness, segment_loss
from hrm_deeploop.model import Reasoner
from hrm_deeploop.recurrence import State

Parameters = dict[str, Tensor]
LOG_PREFIX = "alignment/"


class SublayerAlignment(NamedTuple):
    """One physical sublayer; lengths of vectors over its residual-branch matrices or logits."""

    name: str
    kappa: float  # its term of the module's maximum
    cosine: float  # mean over pairs of visits, of their G; 1 where there is one visit
    gradient: float  # |sum_r G| / sum_r |G|
    response: float  # |sum_r U| / sum_r |U|


class ModuleAlignment(NamedTuple):
    """One module: its kappa, between 0 and ``rounds``."""

    kappa: float
    rounds: int
    sublayers: tuple[SublayerAlignment, ...]

    @property
    def cosine(self) -> float:
        """Mean of the sublayers' cosines."""
        return float(np.mean([sublayer.cosine for sublayer in self.sublayers]))

    @property
    def gradient(self) -> float:
        """Mean of the sublayers' |sum_r G| / sum_r |G|."""
        return float(np.mean([sublayer.gradient for sublayer in self.sublayers]))


def measure_alignment(
    network: Reasoner, batch: Batch, puzzle_vectors: Tensor, state: State
) -> dict[str, ModuleAlignment]:
    """kappa of every module, on the segment that starts from ``state``, by module name.

    The network's attention must have forward-mode derivatives: sdpa's math kernel, which is taken,
    and matmul do, flash does not.
    """
    segment = _Segment(network, batch, puzzle_vectors, state)
    with _in_float32(network), sdpa_kernel(SDPBackend.MATH):
        copies = segment.visit_gradients()
        return {name: _align_module(segment, copies, name) for name in network.stacks}


def align_segment(
    network: Reasoner, batch: Batch, puzzle_vectors: Tensor, segment: int
) -> dict[str, ModuleAlignment]:
    """kappa of every module on a segment of deep supervision (1: the first), by module name.

    The segments before it start from the initial state, and pass theirs on.
    """
    state = network.initial_state(*batch.inputs.shape)
    with torch.no_grad(), _in_float32(network):
        for _ in range(segment - 1):
            state = network(state, batch.inputs, puzzle_vectors, batch.positions).state
    return measure_alignment(network, batch, puzzle_vectors, state)


def log_alignment(found: dict[str, ModuleAlignment]) -> dict[str, float]:
    """What is logged of it during training."""
    return {
        f"{LOG_PREFIX}{name}_{module}": getattr(one, name)
        for module, one in found.items()
        for name in ("kappa", "cosine", "gradient")
    }


def residual_matrices(stack: Stack) -> dict[str, dict[str, slice]]:
    """Names of the residual-branch matrices of each sublayer, and which of their rows take beta."""
    everything = slice(None)
    found = {}
    for i, block in enumerate(stack):
        value = slice(2 * block.attention.qkv_proj.weight.shape[0] // 3, None)
        prefix = f"blocks.{i}"
        found[f"{i}.attention"] = {
            f"{prefix}.attention.qkv_proj.weight": value,
            f"{prefix}.attention.o_proj.weight": everything,
        }
        found[f"{i}.mlp"] = {
            f"{prefix}.mlp.gate_up_proj.weight": everything,
            f"{prefix}.mlp.down_proj.weight": everything,
        }
    return found


class _Visit(NamedTuple):
    """A visit's own copy of its module's parameters, and their gradient."""

    parameters: Parameters
    gradients: Parameters


class _Segment:
    """One segment of a batch, as a function of what each visit has for parameters."""

    def __init__(
        self, network: Reasoner, batch: Batch, puzzle_vectors: Tensor, state: State
    ) -> None:
        self.network = network
        self.batch = batch
        self.puzzle_vectors = _widen(puzzle_vectors)
        self.state = {name: _widen(z) for name, z in state.items()}

    def run(self, choose: Callable[[str, int], Parameters]) -> Latent:
        """What the heads read; ``choose`` gives the parameters of a module's visit r."""
        network = self.network
        embedded = network.embed(self.batch.inputs, self.puzzle_vectors, self.batch.positions)
        stacks = network.stacks
        visits = dict.fromkeys(stacks, 0)

        def visit(name: str, x: Latent) -> Latent:
            stack = stacks[name]
            if not torch.is_grad_enabled():
                return stack(x, embedded.rotation)
            parameters = choose(name, visits[name])
            visits[name] += 1
            return functional_call(stack, parameters, (x, embedded.rotation))

        return network.recur(self.state, embedded, visit)[1]

    def logits(self, latent: Latent) -> Tensor:
        """F: the logits at labelled positions, one vector."""
        return self.network.token_logits(latent)[self.batch.labels != PAD].reshape(-1)

    def loss(self, latent: Latent) -> Tensor:
        """The training loss of the segment, per row; without the bootstrapped continue value."""
        logits = self.network.token_logits(latent)
        exact = correctness(logits.detach(), self.batch.labels).exact
        q_halt = self.network.q_values(latent)[:, 0]
        return segment_loss(logits, self.batch.labels, exact, q_halt).total / len(logits)

    def visit_gradients(self) -> dict[str, list[_Visit]]:
        """Every visit's parameters and their gradients, by module, in one backward."""
        copies: dict[str, list[Parameters]] = {name: [] for name in self.network.stacks}

        def copy(name: str, visit: int) -> Parameters:
            stack = self.network.stacks[name]
            own = {k: p.detach().clone().requires_grad_() for k, p in stack.named_parameters()}
            assert visit == len(copies[name])
            copies[name].append(own)
            return own

        with torch.enable_grad():
            loss = self.loss(self.run(copy))
        leaves = [p for visits in copies.values() for own in visits for p in own.values()]
        gradients = iter(torch.autograd.grad(loss, leaves))
        return {
            name: [
                _Visit({k: p.detach() for k, p in own.items()}, {k: next(gradients) for k in own})
                for own in visits
            ]
            for name, visits in copies.items()
        }


def _align_module(
    segment: _Segment, copies: dict[str, list[_Visit]], module: str
) -> ModuleAlignment:
    visits = copies[module]
    sums: dict[str, tuple[float, ...]] = {}  # cosine, |sum G|, sum |G|, |sum U|, sum |U|
    largest_G = largest_U = 0.0
    for name, matrices in residual_matrices(segment.network.stacks[module]).items():
        gradients = [
            {key: visit.gradients[key][rows] for key, rows in matrices.items()} for visit in visits
        ]
        total = {key: torch.stack([g[key] for g in gradients]).sum(0) for key in matrices}
        norms_G, norm_of_sum = [_norm(g.values()) for g in gradients], _norm(total.values())
        if norm_of_sum == 0:
            sums[name] = (0.0, 0.0, 1.0, 0.0, 1.0)
            continue
        direction = {key: part / norm_of_sum for key, part in total.items()}
        responses = [
            _response(segment, copies, module, number, matrices, direction)
            for number in range(len(visits))
        ]
        norms_U = [float(response.norm()) for response in responses]
        sums[name] = (
            _mean_cosine(gradients, norms_G),
            norm_of_sum,
            sum(norms_G),
            float(torch.stack(responses).sum(0).norm()),
            sum(norms_U),
        )
        largest_G, largest_U = max(largest_G, *norms_G), max(largest_U, *norms_U)
    scale = len(visits) * largest_G * largest_U or 1.0
    sublayers = tuple(
        SublayerAlignment(
            name=name,
            kappa=norm_U * norm_G / scale,
            cosine=cosine,
            gradient=norm_G / sum_G,
            response=norm_U / (sum_U or 1.0),
        )
        for name, (cosine, norm_G, sum_G, norm_U, sum_U) in sums.items()
    )
    return ModuleAlignment(max(s.kappa for s in sublayers), len(visits), sublayers)


def _response(
    segment: _Segment,
    copies: dict[str, list[_Visit]],
    module: str,
    number: int,
    matrices: dict[str, slice],
    direction: Parameters,
) -> Tensor:
    """U: the derivative of F when one sublayer moves along ``direction`` at one visit alone."""
    moved = {key: copies[module][number].parameters[key] for key in matrices}
    tangent = {key: torch.zeros_like(parameter) for key, parameter in moved.items()}
    for key, rows in matrices.items():
        tangent[key][rows] = direction[key]

    def logits(own: Parameters) -> Tensor:
        def choose(name: str, visit: int) -> Parameters:
            parameters = copies[name][visit].parameters
            return {**parameters, **own} if (name, visit) == (module, number) else parameters

        return segment.logits(segment.run(choose))

    with torch.enable_grad():  # tells visits that carry gradient from those that do not
        response = jvp(logits, (moved,), (tangent,))[1]
    return response.detach()


def _mean_cosine(gradients: Sequence[Parameters], norms: Sequence[float]) -> float:
    """Over pairs of visits: |sum of unit vectors|^2 is R + R (R - 1) times their mean cosine."""
    num_visits = len(gradients)
    if num_visits == 1:
        return 1.0
    units = [
        torch.stack([g[key] / (norm or 1.0) for g, norm in zip(gradients, norms, strict=True)])
        for key in gradients[0]
    ]
    total = _norm(unit.sum(0) for unit in units)
    return (total**2 - num_visits) / (num_visits * (num_visits - 1))


def _norm(parts: Iterable[Tensor]) -> float:
    """Length of all parts as one vector."""
    return float(torch.stack([part.norm() for part in parts]).norm())


def _widen(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))


@contextmanager
def _in_float32(network: Reasoner) -> Iterator[None]:
    """Activations in float32 (or wider) for a while, and parameters that ask for no gradient."""
    dtype, network.dtype = network.dtype, torch.promote_types(network.dtype, torch.float32)
    parameters = list(network.parameters())
    wanted = [parameter.requires_grad for parameter in parameters]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        network.dtype = dtype
        for parameter, value in zip(parameters, wanted, strict=True):
            parameter.requires_grad_(value)


def fit_exponent(rounds: Sequence[int], kappas: Sequence[float]) -> tuple[float, float]:
    """gamma of kappa ~ R^gamma by least squares in logarithms, and p* = (1 + gamma) / 4.

    Raises:
        ValueError: if there are not two different numbers of rounds.
    """
    if len(set(rounds)) < 2:
        raise ValueError(f"an exponent needs two numbers of rounds, got {sorted(set(rounds))}")
    gamma = float(np.polyfit(np.log(rounds), np.log(kappas), 1)[0])
    return gamma, (1 + gamma) / 4
