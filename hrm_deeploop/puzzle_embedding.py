"""The puzzle-embedding table and its sparse optimiser.

One row per puzzle, up to a million of them, of which a batch reads a few hundred. The table is
therefore no parameter of the network: it stays out of its optimiser, its averaged copy and the
broadcasts of DistributedDataParallel. A step looks up the batch's rows, differentiates with
respect to those vectors and applies SignSGD to the rows that occurred (as in HRM):

    row <- (1 - lr * weight_decay) * row - lr * sign(sum of the row's gradients)
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hrm_deeploop.device import same_order


class PuzzleEmbedding(nn.Module):
    """Table of ``num_puzzles`` vectors of ``ndim`` numbers, all zero at first (HRM)."""

    def __init__(self, num_puzzles: int, ndim: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(num_puzzles, ndim))
        self.weight: Tensor

    def lookup(self, puzzle_ids: Int[Tensor, " batch"]) -> Float[Tensor, "batch ndim"]:
        """A copy of the rows, as a leaf that collects their gradient when grad is enabled."""
        return self.weight[puzzle_ids].requires_grad_(torch.is_grad_enabled())

    @torch.no_grad()
    def sign_sgd_step(
        self,
        puzzle_ids: Int[Tensor, " batch"],
        grad: Float[Tensor, "batch ndim"],
        *,
        lr: float,
        weight_decay: float,
    ) -> None:
        """Update the rows in ``puzzle_ids``; a row that occurs twice sums its gradients first.

        Every rank does so to its own copy of the table, so the sums must be the same on all, to
        the last bit: the sign of one that cancels hangs on it.
        """
        # Rows that occur twice meet at the first occurrence; unlike unique() this needs no number
        # from the device, so a step does not wait for it.
        first = (puzzle_ids[:, None] == puzzle_ids).int().argmax(dim=1)
        with same_order():
            total = torch.zeros_like(grad).index_add_(0, first, grad)[first]
        self.weight[puzzle_ids] = (
            self.weight[puzzle_ids] * (1 - lr * weight_decay) - lr * total.sign()
        )
