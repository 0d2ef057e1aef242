"""once_a_cycle: the input enters at the first update of a cycle alone.

[1] Huang et al. 2026, "Looped Transformers as Optimizers", arXiv:2609.37379
"""

from torch import Tensor

from hrm_deeploop.transitions.base import Memory, Transition, Update, enter, transition


@transition("once_a_cycle")
class OnceACycle(Transition):
    """o = y, y' = t (Universal Transformer, Ouro; `vanilla` in [1, table 1]); e enters once."""

    enters_once = True

    def forward(self, state: Tensor, update: Update) -> tuple[Tensor, Memory]:
        return update.blocks(enter(state, update)), None
