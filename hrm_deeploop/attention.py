"""Attention backends: the chosen function takes (batch, head, seq, head_dim) and returns the same.

PyTorch's own kernel runs anywhere; flash-attn is used when asked for. ``matmul`` keeps the whole
(seq, seq) matrix of scores, in the dtype of the queries: on a CPU, where the fused kernel is slow,
it is faster, several times for short sequences. ``auto`` takes it there, and sdpa elsewhere.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Heads = Float[Tensor, "batch head seq head_dim"]
AttentionFunction = Callable[[Heads, Heads, Heads], Heads]
Backend = Literal["sdpa", "flash", "matmul"]
AttentionName = Literal["auto", "sdpa", "flash", "matmul"]


def sdpa(query: Heads, key: Heads, value: Heads) -> Heads:
    """PyTorch's scaled_dot_product_attention, bidirectional."""
    return F.scaled_dot_product_attention(query, key, value)


def matmul(query: Heads, key: Heads, value: Heads) -> Heads:
    """softmax(q k^T / sqrt(head_dim)) v, written out."""
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)
    return scores.softmax(dim=-1) @ value


def load_flash() -> AttentionFunction:
    """flash-attn's kernel behind the same signature.

    Raises:
        ValueError: if the package is not installed.
    """
    try:
        from flash_attn import flash_attn_func  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError(
            "attention=flash needs the package flash-attn, which is not installed "
            "(pip install 'hrm-deeploop[flash]' on a CUDA machine); attention=sdpa runs anywhere"
        ) from error

    def flash(query: Heads, key: Heads, value: Heads) -> Heads:
        # flash-attn orders its axes (batch, seq, head, head_dim).
        out = flash_attn_func(*(x.transpose(1, 2) for x in (query, key, value)), causal=False)
        return out.transpose(1, 2)

    return flash


def choose_attention(name: AttentionName, device: torch.device) -> Backend:
    """The backend that ``auto`` stands for on a device."""
    if name == "auto":
        return "matmul" if device.type == "cpu" else "sdpa"
    return name


def attention_function(backend: Backend) -> AttentionFunction:
    """The function for a backend's name."""
    if backend == "flash":
        return load_flash()
    return matmul if backend == "matmul" else sdpa
