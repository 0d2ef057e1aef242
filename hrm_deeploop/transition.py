"""Loop transitions: how a loop reads and writes its state around its blocks.

A loop is an optimiser on its state [1]: with the state y, an injection e, the blocks' input
o = H_in y + b and their output t = Blocks(o), which is the target that they predict,

    y' = (1 - eta lambda) y - eta H_in^T f'(o)        f' = -t (inner objective) or o - t (delta)

                     o                 y'
    vanilla          y                 t                                e enters at the first update
    huginn           y + e             t                                HRM's own, the default
    parcae           A y + B e         t                                A diagonal, below 1
    parcae_aligned   A y + B e         A t
    hyperloop        H_pre Y           H_res Y + H_post^T (t + b_l)      r streams
    hyperloop_aligned  H_pre Y         H_res Y + H_pre^T (t + b_l)
    operloop         H_in Y            (I - eta Lambda) Y + eta H_in^T (t + b_l - o)
    recurrent_gpt    W [y + noise; e]  g y + (1 - g) t
    recirculation    y                 y / 2 + |y| t / (2 |t|)

Where o has no e, it is added to the state (to every stream) at the first update of a cycle. States
with r streams are (batch, seq, r, dim) and start as copies; what leaves the loop is their mean.
Parameters with an index l belong to one update of a cycle and are shared by cycles and segments.
A looped model's cycle is its rounds, an update one of them.
Gates of streams are computed per token, and their sigmoids in float32. Initial values are ours: the
sources at hand give none.

[1] Huang et al. 2026, "Looped Transformers as Optimizers", arXiv:2609.37379, tables 1 and 7
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from hrm_deeploop.config import Objective, Step, TransitionConfig
from hrm_deeploop.layers import Latent, Linear

Apply = Callable[[Latent], Latent]
Memory = Tensor | None  # what an update leaves for the next of its cycle
Streams = Float[Tensor, "batch seq streams dim"]
Kinds = dict[str, tuple[int, float]]  # gates by name: how many, and the value they start from

SLOWEST_DECAY = 1e-6  # of parcae's state in an update: float32 tells 1 - 1e-6 from 1
GATE_GAIN = 0.01  # of a gate's dependence on the token at the start (hyper-connections' value)


class Update(NamedTuple):
    """What a transition is given beside its state."""

    injection: Latent
    blocks: Apply
    number: int  # 0 is the first update of a cycle
    memory: Memory = None  # None at the first
    noise: Latent | None = None  # standard normal, drawn for this update; in training alone


class Transition(nn.Module):
    """Base of all transitions."""

    streams = 1
    noise = 0.0  # standard deviation of what is added in training

    def forward(self, state: Tensor, update: Update) -> tuple[Tensor, Memory]:
        """The state after an update, and what the next one of its cycle is to know."""
        raise NotImplementedError

    def expand(self, latent: Latent) -> Tensor:
        """The state that is a latent, or as many copies as there are streams."""
        if self.streams == 1:
            return latent
        return latent.unsqueeze(-2).expand(*latent.shape[:-1], self.streams, latent.shape[-1])

    def read(self, state: Tensor) -> Latent:
        """What leaves the loop: the state, or the mean of its streams."""
        return state if self.streams == 1 else state.mean(dim=-2)

    def initialize(self, normal_: Callable[[Tensor, float], Tensor]) -> None:
        """Set every parameter; ``normal_`` fills a tensor with draws of a standard deviation."""

    def flops(self, dim: int) -> int:
        """FLOPs of the matrix products that an update adds to its blocks', per token."""
        del dim
        return 0


def enter(state: Tensor, update: Update) -> Tensor:
    """The state, with the injection added (to every stream) at the first update of a cycle."""
    if update.number > 0:
        return state
    injection = update.injection
    return state + (injection if state.ndim == injection.ndim else injection.unsqueeze(-2))


class Huginn(Transition):
    """o = y + e, y' = t (Geiping et al. 2025; [1, table 1]): the general form with
    H_in = I, lambda = eta = 1 and the inner objective."""

    def forward(self, state: Tensor, update: Update) -> tuple[Tensor, Memory]:
        return update.blocks(state + update.injection), None


class Vanilla(Transition):
    """o = y, y' = t (Universal Transformer, Ouro; [1, table 1]); e enters once a cycle."""

    def forward(self, state: Tensor, update: Update) -> tuple[Tensor, Memory]:
        return update.blocks(enter(state, update)), None


class Parcae(Transition):
    """o = A y + B e, y' = t, or A t where aligned (Prairie et al. 2026; [1, table 1 and sec. 5.1]).

    A = diag(exp(-Delta a)), B = diag((1 - exp(-Delta a)) / a) B_0: a linear system with decay a > 0
    held over a step Delta > 0. Both are kept as logarithms, and A is computed and applied in
    float32, of Delta a >= 1e-6, so it stays below 1. A starts at 1 / e, B_0 as the identity.
    """

    def __init__(self, dim: int, *, aligned: bool) -> None:
        super().__init__()
        self.aligned = aligned
        self.log_decay = nn.Parameter(torch.empty(dim))
        self.log_step = nn.Parameter(torch.empty(dim))
        self.B_0 = Linear(dim, dim)

    def system(self) -> tuple[Float[Tensor, " dim"], Float[Tensor, " dim"]]:
        """The diagonals of A and of B B_0^-1, in float32 or wider."""
        decay = self.log_decay.exp()
        exponent = self.log_step.exp() * decay
        return torch.exp(-exponent.clamp(min=SLOWEST_DECAY)), -torch.expm1(-exponent) / decay

    def forward(self, state: Tensor, update: Update) -> tuple[Tensor, Memory]:
        A, B = self.system()
        read = A * state + B * self.B_0(update.injection)
        target = update.blocks(read.to(state.dtype))
        return (A * target).to(state.dtype) if self.aligned else target, None

    def initialize(self, normal_: Callable[[Tensor, float], Tensor]) -> None:
        self.log_decay.zero_()
        self.log_step.zero_()
        nn.init.eye_(self.B_0.weight)

    def flops(self, dim: int) -> int:
        return 2 * dim * dim


class RecurrentGPT(Transition):
    """o = W [y + noise; e], y' = g y + (1 - g) t (Hegazy et al. 2026; [1, table 7]).

    The gate g is a sigmoid per channel, 1/2 at the start, and like W the same for all updates (in
    the table g has an index l). W starts as [I, I], which is huginn's o. The noise is drawn by the
    trainer for every update, and absent from evaluation; its standard deviation is an option, ours
    by default.
    """

    def __init__(self, dim: int, *, noise: float) -> None:
        super().__init__()
        self.noise = noise
        self.W = Linear(2 * dim, dim)
        self.gate = nn.Parameter(torch.empty(dim))

    def forward(self, state: Tensor, update: Update) -> tuple[Tensor, Memory]:
        gate = torch.sigmoid(self.gate).to(state.dtype)
        noisy = state if update.noise is None else state + self.noise * update.noise
        target = update.blocks(self.W(torch.cat((noisy, update.injection), dim=-1)))
        return gate * state + (1 - gate) * target, None

    def initialize(self, normal_: Callable[[Tensor, float], Tensor]) -> None:
        identity = torch.eye(len(self.gate), device=self.gate.device)
        self.W.weight.copy_(torch.cat((identity, identity), dim=1))
        self.gate.zero_()

    def flops(self, dim: int) -> int:
        return 4 * dim * dim


class Recirculation(Transition):
    """o = y, y' = (1 - alpha) y + alpha |y| t / |t|, alpha = 1/2 ([1]); e as in vanilla.

    The lengths are those of a token's vector, in float32; nothing is learnt. An update makes the
    state no longer, what enters once a cycle does: it grows linearly with cycles and segments, at
    most. Beside a module whose state grows with what enters it (any with streams, or another
    recirculation) both would grow exponentially, which is refused.
    """

    alpha = 0.5

    def forward(self, state: Tensor, update: Update) -> tuple[Tensor, Memory]:
        state = enter(state, update)
        target = update.blocks(state)
        wide = torch.promote_types(state.dtype, torch.float32)
        y, t = (x.norm(dim=-1, keepdim=True, dtype=wide) for x in (state, target))
        return (1 - self.alpha) * state + (self.alpha * y / t).to(state.dtype) * target, None


class Gates(nn.Module):
    """Sigmoids of a * W Z + b, with Z the normalised streams, for every update of a cycle.

    Args:
        kinds: gates by name.
        eps: of the norm.
    """

    def __init__(self, num_loops: int, streams: int, dim: int, kinds: Kinds, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.sizes = {name: size for name, (size, _) in kinds.items()}
        self.starts = {name: start for name, (_, start) in kinds.items()}
        num_gates = sum(self.sizes.values())
        self.W = nn.ModuleList(Linear(streams * dim, num_gates) for _ in range(num_loops))
        self.gain = nn.Parameter(torch.empty(num_loops, len(kinds)))
        self.bias = nn.Parameter(torch.empty(num_loops, num_gates))

    def forward(self, state: Streams, number: int) -> dict[str, Float[Tensor, "batch seq size"]]:
        """The gates of update ``number``, between 0 and 1, by name."""
        flat = state.flatten(-2)
        logits = self.W[number](F.rms_norm(flat, flat.shape[-1:], eps=self.eps))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        found = {}
        pieces = zip(
            logits.split(list(self.sizes.values()), dim=-1),
            self.bias[number].split(list(self.sizes.values())),
            self.gain[number],
            strict=True,
        )
        for name, (logit, bias, gain) in zip(self.sizes, pieces, strict=True):
            found[name] = torch.sigmoid(gain * logit + bias)
        return found

    def initialize(self, normal_: Callable[[Tensor, float], Tensor]) -> None:
        for linear in self.W:
            assert isinstance(linear, Linear)
            normal_(linear.weight, 1 / math.sqrt(linear.weight.shape[1]))
        self.gain.fill_(GATE_GAIN)
        starts = [
            torch.full((size,), math.log(self.starts[name] / (1 - self.starts[name])))
            for name, size in self.sizes.items()
        ]
        self.bias.copy_(torch.cat(starts).to(self.bias))

    def flops(self, dim: int, streams: int) -> int:
        return 2 * streams * dim * sum(self.sizes.values())


class _Expanded(Transition):
    """Base of the transitions whose state has r streams, with gates and biases b_l per update.

    What an update keeps of a long state is up to its gates. Where both modules of HRM have streams
    each takes the other's in, so gates that keep much more than they do at the start can let both
    grow from segment to segment.
    """

    def __init__(self, dim: int, num_loops: int, streams: int, kinds: Kinds, eps: float) -> None:
        super().__init__()
        self.streams = streams
        self.gates = Gates(num_loops, streams, dim, kinds, eps)
        self.bias = nn.Parameter(torch.empty(num_loops, dim))

    def initialize(self, normal_: Callable[[Tensor, float], Tensor]) -> None:
        self.gates.initialize(normal_)
        self.bias.zero_()

    def flops(self, dim: int) -> int:
        return self.gates.flops(dim, self.streams) + 2 * self.streams * dim


def _narrow(row: Float[Tensor, "batch seq streams"], state: Streams) -> Latent:
    """H Y: one row per token against its streams."""
    return torch.einsum("bsr,bsrd->bsd", row.to(state.dtype), state)


def _widen(row: Float[Tensor, "batch seq streams"], latent: Latent) -> Streams:
    """H^T t: a latent into the streams."""
    return row.to(latent.dtype).unsqueeze(-1) * latent.unsqueeze(-2)


class Hyperloop(_Expanded):
    """o = H_pre Y, Y' = H_res Y + H_post^T (t + b_l), or H_pre^T where aligned (Zeitoun et al.
    2026, arXiv:2604.21254; [1, table 1 and sec. 5.1]).

    H_pre = s(..), H_post = 2 s(..), H_res = diag(s(..)) of Z = RMSNorm(flatten Y). They start from
    1/r (o is the mean of the streams), 1 and 1/2.
    """

    def __init__(
        self, dim: int, *, num_loops: int, streams: int, eps: float, aligned: bool
    ) -> None:
        kinds: Kinds = {"pre": (streams, 1 / streams), "res": (streams, 0.5)}
        if not aligned:
            kinds["post"] = (streams, 0.5)
        super().__init__(dim, num_loops, streams, kinds, eps)
        self.aligned = aligned

    def forward(self, state: Tensor, update: Update) -> tuple[Tensor, Memory]:
        state = enter(state, update)
        gates = self.gates(state, update.number)
        target = update.blocks(_narrow(gates["pre"], state))
        target = target + self.bias[update.number].to(target.dtype)
        write = gates["pre"] if self.aligned else 2 * gates["post"]
        kept = gates["res"].to(state.dtype).unsqueeze(-1) * state
        return kept + _widen(write, target), None


class OperLoop(_Expanded):
    """o = H_in Y, Y' = (I - eta_l Lambda_l) Y + eta_l H_in^T (t + b_l - o) [1, eq. 14 to 16].

    H_in = s(..) is (1, r), Lambda_l = diag(s(..)), and the step size eta_l = s(..) eta_(l-1) with
    eta_(-1) = 1 decreases within a cycle. They start from 1 / sqrt(r), so that
    H_in H_in^T = 1, from 0.02 and from 0.9. An update then brings o close to t, which makes the
    mean of the streams 1 / sqrt(r) as long as a state of huginn's. Without - o, Lambda alone
    forgets, so it starts from 0.98 there, close to the 1 that huginn has in the general form; from
    0.02 the streams would sum up some 50 targets.

    Args:
        step: ``causal`` as above, ``noncausal`` without the product, ``unit`` eta = 1.
        objective: ``delta`` as above, ``inner`` without - o.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_loops: int,
        streams: int,
        eps: float,
        step: Step,
        objective: Objective,
    ) -> None:
        decay = 0.98 if objective == "inner" else 0.02
        kinds: Kinds = {"in": (streams, 1 / math.sqrt(streams)), "decay": (streams, decay)}
        if step != "unit":
            kinds["step"] = (1, 0.9)
        super().__init__(dim, num_loops, streams, kinds, eps)
        self.step = step
        self.objective = objective

    def step_size(self, gates: dict[str, Tensor], memory: Memory) -> Tensor | None:
        """eta_l, (batch, seq, 1); None stands for 1."""
        if self.step == "unit":
            return None
        if self.step == "noncausal" or memory is None:
            return gates["step"]
        return gates["step"] * memory

    def forward(self, state: Tensor, update: Update) -> tuple[Tensor, Memory]:
        state = enter(state, update)
        gates = self.gates(state, update.number)
        read = _narrow(gates["in"], state)
        target = update.blocks(read)
        target = target + self.bias[update.number].to(target.dtype)
        error = -target if self.objective == "inner" else read - target
        eta = self.step_size(gates, update.memory)
        write, decay = gates["in"], gates["decay"]
        if eta is not None:
            write, decay = eta * write, eta * decay
        return optimizer_step(state, error, write, decay), eta


def optimizer_step(
    state: Streams,
    error: Latent,
    write: Float[Tensor, "batch seq streams"],
    decay: Float[Tensor, "batch seq streams"],
) -> Streams:
    """(1 - eta lambda) Y - eta H_in^T f' with ``write`` = eta H_in, ``decay`` = eta lambda and
    ``error`` = f' [1, eq. 7]."""
    kept = (1 - decay).to(state.dtype).unsqueeze(-1) * state
    return kept - _widen(write, error)


def build_transition(
    config: TransitionConfig, *, dim: int, num_loops: int, eps: float = 1e-5
) -> Transition:
    """The transition of a loop that is updated ``num_loops`` times a cycle; eps is RMSNorm's."""
    name, streams = config.name, config.streams or 1
    expanded: dict[str, Any] = dict(num_loops=num_loops, streams=streams, eps=eps)
    match name:
        case "huginn":
            return Huginn()
        case "vanilla":
            return Vanilla()
        case "parcae" | "parcae_aligned":
            return Parcae(dim, aligned=name == "parcae_aligned")
        case "hyperloop" | "hyperloop_aligned":
            return Hyperloop(dim, **expanded, aligned=name == "hyperloop_aligned")
        case "operloop":
            assert config.step is not None
            assert config.objective is not None
            return OperLoop(dim, **expanded, step=config.step, objective=config.objective)
        case "recurrent_gpt":
            return RecurrentGPT(dim, noise=config.noise or 0.0)
        case "recirculation":
            return Recirculation()
