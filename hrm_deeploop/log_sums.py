"""What training adds up between two lines of the log, and the means it becomes.

Sums stay on the device and on their rank until they are taken, so that a step costs no
synchronisation for the log. They are part of a run's state: the log of a resumed run is that of one
that was never stopped.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils import get_total_norm

from hrm_deeploop.device import Ranks
from hrm_deeploop.model import Reasoner

FINISHED_SUMS = ("segments", "token_accuracy", "exact_accuracy", "q_halt_accuracy")
LOSS_SUMS = ("lm_loss", "q_halt_loss", "q_continue_loss")
COUNTED = ("finished", *FINISHED_SUMS, *LOSS_SUMS)


def norm_names(modules: Sequence[str]) -> list[str]:
    """Names of :func:`gradient_norms` of a network with these modules."""
    return [f"grad_norm_{part}" for part in (*modules, "embeddings", "heads")]


def gradient_norms(network: Reasoner) -> Float[Tensor, " norms"]:
    """Return the norms of modules with their transitions, of embeddings, and of heads."""
    embeddings = [network.embed_tokens.weight]
    if network.embed_positions is not None:
        embeddings.append(network.embed_positions)
    heads = [*(network.lm_head.parameters() if network.lm_head is not None else ())]
    heads += network.q_head.parameters()
    modules = [
        [
            *stack.parameters(),
            *(network.transitions[name].parameters() if name in network.transitions else ()),
        ]
        for name, stack in network.stacks.items()
    ]
    groups = (*modules, embeddings, heads)
    norms = [get_total_norm([p.grad for p in g if p.grad is not None]).float() for g in groups]
    return torch.stack(norms)


class LogSums:
    """Sums since they were last taken; ``num_finished`` counts examples since the run began."""

    def __init__(self, ranks: Ranks, modules: Sequence[str]) -> None:
        self._ranks = ranks
        self.norms = norm_names(modules)
        self._names = [*COUNTED, *self.norms]
        self._sums = torch.zeros(len(self._names), device=ranks.device)  # of this rank's rows
        self.num_steps = 0
        self.num_finished = 0

    def add(self, counted: Float[Tensor, " 8"], norms: Float[Tensor, " norms"]) -> None:
        """One step: finished examples, their ``FINISHED_SUMS``, then ``LOSS_SUMS``; and norms.

        Norms are those of the averaged gradient, equal on all ranks.
        """
        self._sums += torch.cat((counted, norms / self._ranks.world_size))
        self.num_steps += 1

    def take(self, batch_size: int) -> dict[str, float]:
        """Means over the steps since the last call, over all ranks; every rank must call it.

        Losses are means over rows, norms over steps. Accuracies and segments are means over the
        examples that finished, and absent if none did.
        """
        values = dict(zip(self._names, self._ranks.sum(self._sums).tolist(), strict=True))
        finished, num_steps = int(values["finished"]), self.num_steps
        self.num_finished += finished
        self._sums, self.num_steps = torch.zeros_like(self._sums), 0
        means = {name: values[name] / (num_steps * batch_size) for name in LOSS_SUMS}
        if finished:
            means.update({name: values[name] / finished for name in FINISHED_SUMS})
        means.update({name: values[name] / num_steps for name in self.norms})
        return means

    def state(self) -> dict[str, Any]:
        """What a resumed run needs; every rank must call it, all get the same."""
        return {
            "sums": self._ranks.sum(self._sums.clone()),
            "num_steps": self.num_steps,
            "num_finished": self.num_finished,
        }

    def load_state(self, saved: dict[str, Any]) -> None:
        """Go on from ``state()``."""
        if self._ranks.is_main:  # the others start at zero, for the sum is over all
            self._sums.copy_(saved["sums"])
        self.num_steps = saved["num_steps"]
        self.num_finished = saved["num_finished"]
