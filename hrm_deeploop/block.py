"""Post-norm blocks whose skip path is scaled by alpha, and stacks of them (a module each).

    x <- rms_norm(alpha * x + attention(x))
    x <- rms_norm(alpha * x + mlp(x))

alpha = 1 is HRM's block: vanilla and DeepLoop run the same code (DeepLoop, arXiv:2607.13491,
eq. 2). RMSNorm has no weight.
"""

from collections.abc import Iterable, Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hrm_deeploop.layers import Attention, Latent, Rotation, SwiGLU


class Block(nn.Module):
    """One attention and one MLP sublayer; ``alpha`` is the gain of both skip paths."""

    def __init__(self, attention: Attention, mlp: SwiGLU, *, alpha: float, eps: float) -> None:
        super().__init__()
        self.attention = attention
        self.mlp = mlp
        self.alpha = alpha
        self.eps = eps

    def forward(self, x: Latent, rotation: Rotation | None) -> Latent:
        x = self._add_norm(x, self.attention(x, rotation))
        return self._add_norm(x, self.mlp(x))

    def _add_norm(self, x: Tensor, branch: Tensor) -> Tensor:
        return F.rms_norm(torch.add(branch, x, alpha=self.alpha), x.shape[-1:], eps=self.eps)


class Stack(nn.Module):
    """Physical blocks applied in order: what one update of a latent state computes."""

    def __init__(self, blocks: list[Block]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(cast("Iterable[Block]", self.blocks))

    def forward(self, x: Latent, rotation: Rotation | None) -> Latent:
        for block in self:
            x = block(x, rotation)
        return x
