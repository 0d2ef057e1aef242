"""What transitions share whose state has several streams: gates, and the way in and out.

[1] Huang et al. 2026, "Looped Transformers as Optimizers", arXiv:2609.37379
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from hrm_deeploop.config import MAX_COUNT, StrictConfig
from hrm_deeploop.layers import Latent, Linear
from hrm_deeploop.transitions.base import Streams, Transition

Kinds = dict[str, tuple[int, float]]  # gates by name: how many, and the value they start from
GATE_GAIN = 0.01  # of a gate's dependence on the token at the start (hyper-connections' value)


class StreamOptions(StrictConfig):
    """What a configuration may choose of a transition with streams."""

    streams: int = Field(default=4, ge=2, le=MAX_COUNT)


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


class Expanded(Transition):
    """Base of the transitions whose state has r streams, with gates and biases b_l per update.

    What an update keeps of a long state is up to its gates. Where both modules of HRM have streams
    each takes the other's in, so gates that keep much more than they do at the start can let both
    grow from segment to segment.
    """

    enters_once = True
    growth = "gated"

    def __init__(self, dim: int, *, num_loops: int, streams: int, kinds: Kinds, eps: float) -> None:
        super().__init__(dim, num_loops=num_loops, eps=eps)
        self.streams = streams
        self.gates = Gates(num_loops, streams, dim, kinds, eps)
        self.bias = nn.Parameter(torch.empty(num_loops, dim))

    def initialize(self, normal_: Callable[[Tensor, float], Tensor]) -> None:
        self.gates.initialize(normal_)
        self.bias.zero_()

    def flops(self, dim: int) -> int:
        return self.gates.flops(dim, self.streams) + 2 * self.streams * dim


def narrow(row: Float[Tensor, "batch seq streams"], state: Streams) -> Latent:
    """H Y: one row per token against its streams."""
    return torch.einsum("bsr,bsrd->bsd", row.to(state.dtype), state)


def widen(row: Float[Tensor, "batch seq streams"], latent: Latent) -> Streams:
    """H^T t: a latent into the streams."""
    return row.to(latent.dtype).unsqueeze(-1) * latent.unsqueeze(-2)
