"""recurrent_gpt: a gated recurrent unit around the blocks, with noise in training.

[1] Huang et al. 2026, "Looped Transformers as Optimizers", arXiv:2609.37379
"""

from collections.abc import Callable

import torch
from pydantic import Field
from torch import Tensor, nn

from hrm_deeploop.config import MAX_RATE, StrictConfig
from hrm_deeploop.layers import Linear
from hrm_deeploop.transitions.base import Memory, Transition, Update, transition


@transition("recurrent_gpt")
class RecurrentGPT(Transition):
    """o = W [y + noise; e], y' = g y + (1 - g) t (Hegazy et al. 2026; [1, table 7]).

    The gate g is a sigmoid per channel, 1/2 at the start, and like W the same for all updates (in
    the table g has an index l). W starts as [I, I], which is huginn's o. The noise is drawn by the
    trainer for every update, and absent from evaluation; its standard deviation is an option, ours
    by default.
    """

    class Options(StrictConfig):
        """What a configuration may choose."""

        noise: float = Field(default=0.1, ge=0, le=MAX_RATE)  # standard deviation

    def __init__(self, dim: int, *, num_loops: int, eps: float, noise: float) -> None:
        super().__init__(dim, num_loops=num_loops, eps=eps)
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
