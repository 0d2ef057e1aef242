"""The parts of a block: linear map, rotary positions, attention, SwiGLU.

Parameters are kept in float32 and cast to the dtype of what they are applied to, so the dtype of
the embedded input decides the dtype of the whole forward. Parameters are created uninitialised:
every initial value is set in ``init.py``.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from hrm_deeploop.attention import AttentionFunction

CONV_WIDTH = 2  # tokens that the convolution of ConvSwiGLU sees
Latent = Float[Tensor, "batch seq dim"]


class Linear(nn.Module):
    """x W^T (+ b) in the dtype of x; the weight is (out, in)."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.narrow: Tensor | None = None  # the weight in the dtype of x, within cast_once

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype) if self.narrow is None else self.narrow
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, weight, bias)


@contextmanager
def cast_once(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Cast the weight of every Linear in ``module`` once, however often it is applied within.

    The gradients of the applications then add up in ``dtype`` before they are cast back.
    """
    linears = [
        part for part in module.modules() if isinstance(part, Linear) and part.weight.dtype != dtype
    ]
    for linear in linears:
        linear.narrow = linear.weight.to(dtype)
    try:
        yield
    finally:
        for linear in linears:
            linear.narrow = None


class Rotary(nn.Module):
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864), halves rotated as in HRM.

    Pairs are (i, i + head_dim / 2), angles position * theta^(-2 i / head_dim).
    """

    def __init__(self, head_dim: int, num_positions: int, theta: float) -> None:
        super().__init__()
        frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        angle = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequency)
        angle = angle[:, None, None]  # (positions, 1, 1, head_dim / 2), to broadcast over heads
        self.register_buffer("cos", torch.cat((angle, angle), -1).cos(), persistent=False)
        # The sign of the rotated half is folded in: rotate(x) = cat(-x2, x1).
        self.register_buffer("sin", torch.cat((-angle.sin(), angle.sin()), -1), persistent=False)
        self.cos: Tensor
        self.sin: Tensor

    def forward(self, positions: Int[Tensor, "batch seq"] | None = None) -> "Rotation":
        """The rotation of all positions in order, or of those of each row."""
        if positions is None:
            return Rotation(self.cos, self.sin)
        return Rotation(self.cos[positions], self.sin[positions])


class Rotation(NamedTuple):
    """Cosines and signed sines of the tokens of a sequence, with axes for kind and head."""

    cos: Float[Tensor, "*batch seq 1 1 head_dim"]
    sin: Float[Tensor, "*batch seq 1 1 head_dim"]

    @property
    def is_per_row(self) -> bool:
        """Whether every row has positions of its own; otherwise all share one rotation."""
        return self.cos.ndim == 5

    def take(self, where: Tensor) -> "Rotation":
        """Return the rotation of the selected rows."""
        return Rotation(self.cos[where], self.sin[where]) if self.is_per_row else self

    def join(self, other: "Rotation") -> "Rotation":
        """Return the rotation of these rows, then of others with as many tokens."""
        if not self.is_per_row:
            return self
        return Rotation(torch.cat((self.cos, other.cos)), torch.cat((self.sin, other.sin)))

    def turn(
        self, x: Float[Tensor, "batch seq kind head head_dim"]
    ) -> Float[Tensor, "batch seq kind head head_dim"]:
        """Turn queries and keys; computed in float32 (or wider), returned in the dtype of x."""
        wide = x.to(torch.promote_types(x.dtype, self.cos.dtype))
        x1, x2 = wide.chunk(2, dim=-1)
        return torch.addcmul(wide * self.cos, torch.cat((x2, x1), -1), self.sin).to(x.dtype)


class Attention(nn.Module):
    """Bidirectional multi-head self-attention without biases.

    ``qkv_proj`` is fused; its rows are the queries of all heads, then keys, then values.
    """

    def __init__(self, hidden_size: int, num_heads: int, attend: AttentionFunction) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attend = attend
        self.qkv_proj = Linear(hidden_size, 3 * hidden_size)
        self.o_proj = Linear(hidden_size, hidden_size)

    def forward(self, x: Latent, rotation: Rotation | None) -> Latent:
        qkv = rearrange(
            self.qkv_proj(x), "b s (kind h d) -> b s kind h d", kind=3, h=self.num_heads
        )
        query_key, value = qkv.split((2, 1), dim=2)
        if rotation is not None:
            query_key = rotation.turn(query_key)
        query, key = rearrange(query_key, "b s kind h d -> kind b h s d")
        value = rearrange(value, "b s 1 h d -> b h s d")
        return self.o_proj(rearrange(self.attend(query, key, value), "b h s d -> b s (h d)"))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020, arXiv:2002.05202).

    ``gate_up_proj`` is fused; its rows are the gate, then up.
    """

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.gate_up_proj = Linear(hidden_size, 2 * width)
        self.down_proj = Linear(width, hidden_size)

    def forward(self, x: Latent) -> Latent:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)

    def initialize_others(self, generator: torch.Generator) -> None:
        """Set what is no matrix of the residual branch, which the scaling leaves alone."""


class ConvSwiGLU(SwiGLU):
    """SwiGLU with a short convolution over the tokens (URM, arXiv:2512.14693).

    down(silu(conv(silu(gate(x)) * up(x)))): depthwise, of the token before and the token itself,
    with a bias.
    """

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__(hidden_size, width)
        self.conv_weight = nn.Parameter(torch.empty(width, CONV_WIDTH))  # of t - 1, of t
        self.conv_bias = nn.Parameter(torch.empty(width))

    def forward(self, x: Latent) -> Latent:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        inner = F.silu(gate) * up
        before, here = self.conv_weight.to(inner.dtype).unbind(1)
        shifted = F.pad(inner, (0, 0, 1, 0))[:, :-1]
        mixed = torch.addcmul(self.conv_bias.to(inner.dtype), inner, here)
        return self.down_proj(F.silu(torch.addcmul(mixed, shifted, before)))

    def initialize_others(self, generator: torch.Generator) -> None:
        """Set the convolution as torch does: uniform within 1 / sqrt(width)."""
        bound = 1 / math.sqrt(CONV_WIDTH)
        for parameter in (self.conv_weight, self.conv_bias):
            parameter.uniform_(-bound, bound, generator=generator)


MLPS: dict[str, type[SwiGLU]] = {"swiglu": SwiGLU, "conv_swiglu": ConvSwiGLU}
