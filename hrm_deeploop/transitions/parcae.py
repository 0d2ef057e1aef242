"""parcae: a linear system in front of the blocks, and the form whose output is aligned with it.

[1] Huang et al. 2026, "Looped Transformers as Optimizers", arXiv:2609.37379
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hrm_deeploop.layers import Linear
from hrm_deeploop.transitions.base import Memory, Transition, Update, transition

SLOWEST_DECAY = 1e-6  # of the state in an update: float32 tells 1 - 1e-6 from 1


@transition("parcae")
class Parcae(Transition):
    """o = A y + B e, y' = t (Prairie et al. 2026; [1, table 1 and sec. 5.1]).

    A = diag(exp(-Delta a)), B = diag((1 - exp(-Delta a)) / a) B_0: a linear system with decay a > 0
    held over a step Delta > 0. Both are kept as logarithms, and A is computed and applied in
    float32, of Delta a >= 1e-6, so it stays below 1. A starts at 1 / e, B_0 as the identity.
    """

    aligned: ClassVar[bool] = False

    def __init__(self, dim: int, *, num_loops: int, eps: float) -> None:
        super().__init__(dim, num_loops=num_loops, eps=eps)
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


@transition("parcae_aligned")
class AlignedParcae(Parcae):
    """o = A y + B e, y' = A t [1, sec. 5.1]."""

    aligned = True
