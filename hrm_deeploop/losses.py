"""Losses of one segment: stablemax cross entropy of the tokens, and the halting values' BCE.

All sums run over the batch; the lm loss is averaged over each example's labelled tokens first
(HRM). The total of a segment is lm + (q_halt + q_continue) / 2.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

PAD = 0  # a label of this token carries no loss
Q_WEIGHT = 0.5


def log_stablemax(logits: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch classes"]:
    """log(s(x) / sum s(x)) with s(x) = x + 1 for x >= 0 and 1 / (1 - x) below (arXiv:2501.04697).

    Since log s(x) = sign(x) log(1 + |x|), this is a log-softmax of slowly growing logits. Both
    halves are cut at 0 before the logarithm, so neither meets a pole: with ``torch.where`` alone
    the unused half is 1 / 0 at x = 1, and its gradient NaN.
    """
    # At exactly 0 clamp passes gradient and relu does not, which adds up to the true slope of 1.
    log_s = torch.log1p(logits.clamp(min=0)) - torch.log1p(F.relu(-logits))
    return F.log_softmax(log_s, dim=-1)


def token_loss(
    logits: Float[Tensor, "batch seq vocab"], labels: Int[Tensor, "batch seq"]
) -> Float[Tensor, " batch"]:
    """Stablemax cross entropy in float32 (or wider), mean over each example's labelled tokens."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    nll = -log_stablemax(wide).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    labelled = labels != PAD
    return (nll * labelled).sum(-1) / labelled.sum(-1).clamp(min=1)


class Correctness(NamedTuple):
    """How right each example's prediction is."""

    token_accuracy: Float[Tensor, " batch"]  # over the labelled tokens
    exact: Bool[Tensor, " batch"]  # every labelled token right


@torch.no_grad()
def correctness(
    logits: Float[Tensor, "batch seq vocab"], labels: Int[Tensor, "batch seq"]
) -> Correctness:
    """Compare the most likely tokens with the labels."""
    labelled = labels != PAD
    num_right = (labelled & (logits.argmax(-1) == labels)).sum(-1)
    num_labelled = labelled.sum(-1)
    return Correctness(
        token_accuracy=num_right / num_labelled.clamp(min=1), exact=num_right == num_labelled
    )


class SegmentLoss(NamedTuple):
    """Sums over the batch."""

    lm: Float[Tensor, ""]
    q_halt: Float[Tensor, ""]
    q_continue: Float[Tensor, ""]  # 0 without a continue target

    @property
    def total(self) -> Float[Tensor, ""]:
        return self.lm + Q_WEIGHT * (self.q_halt + self.q_continue)


def segment_loss(
    logits: Float[Tensor, "batch seq vocab"],
    labels: Int[Tensor, "batch seq"],
    exact: Bool[Tensor, " batch"],
    q_halt: Float[Tensor, " batch"],
    q_continue: Float[Tensor, " batch"] | None = None,
    continue_target: Float[Tensor, " batch"] | None = None,
) -> SegmentLoss:
    """The three losses; ``continue_target`` is a probability (``q_target: bootstrap`` only)."""
    bce = F.binary_cross_entropy_with_logits
    continue_loss = q_halt.new_zeros(())
    if q_continue is not None and continue_target is not None:
        continue_loss = bce(q_continue, continue_target, reduction="sum")
    return SegmentLoss(
        lm=token_loss(logits, labels).sum(),
        q_halt=bce(q_halt, exact.to(q_halt.dtype), reduction="sum"),
        q_continue=continue_loss,
    )
