"""recirculation: half of the target, as long as the state was.

[1] Huang et al. 2026, "Looped Transformers as Optimizers", arXiv:2609.37379
"""

import torch
from torch import Tensor

from hrm_deeploop.transitions.base import Memory, Transition, Update, enter, transition


@transition("recirculation")
class Recirculation(Transition):
    """o = y, y' = (1 - alpha) y + alpha |y| t / |t|, alpha = 1/2 ([1]); e enters once a cycle.

    The lengths are those of a token's vector, in float32; nothing is learnt. An update never
    lengthens the state. Only the input, added once a cycle, does: the state grows linearly with
    cycles and segments, at most. Beside a module whose state grows with what enters it (any with
    streams, or another recirculation) both would grow exponentially, which is refused.
    """

    enters_once = True
    growth = "free"
    alpha = 0.5

    def forward(self, state: Tensor, update: Update) -> tuple[Tensor, Memory]:
        state = enter(state, update)
        target = update.blocks(state)
        wide = torch.promote_types(state.dtype, torch.float32)
        y, t = (x.norm(dim=-1, keepdim=True, dtype=wide) for x in (state, target))
        return (1 - self.alpha) * state + (self.alpha * y / t).to(state.dtype) * target, None
