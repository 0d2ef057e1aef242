"""operloop: an update is a step of an optimiser on the streams.

[1] Huang et al. 2026, "Looped Transformers as Optimizers", arXiv:2609.37379
"""

import math
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from hrm_deeploop.layers import Latent
from hrm_deeploop.transitions.base import Memory, Streams, Update, enter, transition
from hrm_deeploop.transitions.streams import Expanded, Kinds, StreamOptions, narrow, widen

Step = Literal["causal", "noncausal", "unit"]
Objective = Literal["delta", "inner"]


@transition("operloop")
class OperLoop(Expanded):
    """o = H_in Y, Y' = (I - eta_l Lambda_l) Y + eta_l H_in^T (t + b_l - o) [1, eq. 14 to 16].

    H_in = s(..) is (1, r), Lambda_l = diag(s(..)), and the step size eta_l = s(..) eta_(l-1) with
    eta_(-1) = 1 decreases within a cycle. They start from 1 / sqrt(r), so that
    H_in H_in^T = 1, from 0.02 and from 0.9. An update then brings o close to t, which makes the
    mean of the streams 1 / sqrt(r) as long as a state of huginn's. Without - o, Lambda alone
    forgets, so it starts from 0.98 there, close to the 1 that huginn has in the general form; from
    0.02 the streams would sum up some 50 targets.

    Args:
        step: ``causal`` as above, ``noncausal`` without the product, ``unit`` eta = 1.
        objective: ``delta`` as above, ``inner`` without - o.
    """

    class Options(StreamOptions):
        """What a configuration may choose."""

        step: Step = "causal"
        objective: Objective = "delta"

    def __init__(
        self,
        dim: int,
        *,
        num_loops: int,
        streams: int,
        eps: float,
        step: Step,
        objective: Objective,
    ) -> None:
        decay = 0.98 if objective == "inner" else 0.02
        kinds: Kinds = {"in": (streams, 1 / math.sqrt(streams)), "decay": (streams, decay)}
        if step != "unit":
            kinds["step"] = (1, 0.9)
        super().__init__(dim, num_loops=num_loops, streams=streams, kinds=kinds, eps=eps)
        self.step = step
        self.objective = objective

    def step_size(self, gates: dict[str, Tensor], memory: Memory) -> Tensor | None:
        """eta_l, (batch, seq, 1); None stands for 1."""
        if self.step == "unit":
            return None
        if self.step == "noncausal" or memory is None:
            return gates["step"]
        return gates["step"] * memory

    def forward(self, state: Tensor, update: Update) -> tuple[Tensor, Memory]:
        state = enter(state, update)
        gates = self.gates(state, update.number)
        read = narrow(gates["in"], state)
        target = update.blocks(read)
        target = target + self.bias[update.number].to(target.dtype)
        error = -target if self.objective == "inner" else read - target
        eta = self.step_size(gates, update.memory)
        write, decay = gates["in"], gates["decay"]
        if eta is not None:
            write, decay = eta * write, eta * decay
        return optimizer_step(state, error, write, decay), eta


def optimizer_step(
    state: Streams,
    error: Latent,
    write: Float[Tensor, "batch seq streams"],
    decay: Float[Tensor, "batch seq streams"],
) -> Streams:
    """(1 - eta lambda) Y - eta H_in^T f' with ``write`` = eta H_in, ``decay`` = eta lambda and
    ``error`` = f' [1, eq. 7]."""
    kept = (1 - decay).to(state.dtype).unsqueeze(-1) * state
    return kept - widen(write, error)
