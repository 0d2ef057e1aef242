"""hyperloop: gated streams, and the form that writes where it reads.

[1] Huang et al. 2026, "Looped Transformers as Optimizers", arXiv:2609.37379
"""

from typing import ClassVar

from torch import Tensor

from hrm_deeploop.transitions.base import Memory, Update, enter, transition
from hrm_deeploop.transitions.streams import Expanded, Kinds, StreamOptions, narrow, widen


@transition("hyperloop")
class Hyperloop(Expanded):
    """o = H_pre Y, Y' = H_res Y + H_post^T (t + b_l) (Zeitoun et al. 2026, arXiv:2604.21254;
    [1, table 1]).

    H_pre = s(..), H_post = 2 s(..), H_res = diag(s(..)) of Z = RMSNorm(flatten Y). They start from
    1/r (o is the mean of the streams), 1 and 1/2.
    """

    Options = StreamOptions
    aligned: ClassVar[bool] = False

    def __init__(self, dim: int, *, num_loops: int, streams: int, eps: float) -> None:
        kinds: Kinds = {"pre": (streams, 1 / streams), "res": (streams, 0.5)}
        if not self.aligned:
            kinds["post"] = (streams, 0.5)
        super().__init__(dim, num_loops=num_loops, streams=streams, kinds=kinds, eps=eps)

    def forward(self, state: Tensor, update: Update) -> tuple[Tensor, Memory]:
        state = enter(state, update)
        gates = self.gates(state, update.number)
        target = update.blocks(narrow(gates["pre"], state))
        target = target + self.bias[update.number].to(target.dtype)
        write = gates["pre"] if self.aligned else 2 * gates["post"]
        kept = gates["res"].to(state.dtype).unsqueeze(-1) * state
        return kept + widen(write, target), None


@transition("hyperloop_aligned")
class AlignedHyperloop(Hyperloop):
    """o = H_pre Y, Y' = H_res Y + H_pre^T (t + b_l) [1, sec. 5.1]."""

    aligned = True
