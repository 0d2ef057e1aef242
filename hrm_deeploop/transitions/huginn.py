"""huginn: HRM's own sum, the default.

[1] Huang et al. 2026, "Looped Transformers as Optimizers", arXiv:2609.37379
"""

from torch import Tensor

from hrm_deeploop.transitions.base import Memory, Transition, Update, transition


@transition("huginn")
class Huginn(Transition):
    """o = y + e, y' = t (Geiping et al. 2025; [1, table 1]): the general form with
    H_in = I, lambda = eta = 1 and the inner objective."""

    def forward(self, state: Tensor, update: Update) -> tuple[Tensor, Memory]:
        return update.blocks(state + update.injection), None
