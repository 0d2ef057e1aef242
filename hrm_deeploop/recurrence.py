"""The cycle schedule of HRM's segment and its one-step gradient; a looped model's rounds.

Cycle c = 1..C, with e the input embedding (HRM, Wang et al. 2025, arXiv:2506.21734; DeepLoop,
arXiv:2607.13491, sec. 4):

    z_L <- L(z_L + z_H + e)      C_L times
    z_H <- H(z_H + z_L)          once

``gradient`` says which updates carry gradient; the others run without a graph, so the memory of a
backward does not depend on C under the two truncations:

    last_cycle    every update of the last cycle            (DeepLoop, eq. 18)
    last_update   the last update of L and the last of H    (the released HRM code)
    full          all of them

The sums are those of the transition ``huginn``; ``transitions/`` has others, which read and write
the state z in another way and get what is added to it as their injection.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hrm_deeploop.layers import Latent
from hrm_deeploop.transitions.base import Apply, Memory, Transition, Update

State = dict[str, Tensor]
"""Latent states by name: z_H and z_L of an HRM, z of a looped model."""


def detach(state: State) -> State:
    """The state without its graph, as it goes to the next segment."""
    return {name: tensor.detach() for name, tensor in state.items()}


class Loop(NamedTuple):
    """One module in a loop: how it reads and writes its state, and its blocks."""

    transition: Transition
    blocks: Apply
    noise: Iterator[Latent] | None = None  # draws for the updates to come

    def update(
        self, state: Tensor, injection: Latent, number: int, memory: Memory
    ) -> tuple[Tensor, Memory]:
        """Update ``number`` (0 is the first of a cycle) of the state."""
        noise = None
        if self.noise is not None and self.transition.noise > 0:
            noise = next(self.noise)
        return self.transition(state, Update(injection, self.blocks, number, memory, noise))

    def read(self, state: Tensor) -> Latent:
        """What others see of the state."""
        return self.transition.read(state)


def run_cycles(
    state: State,
    embedded: Latent,
    H: Loop,
    L: Loop,
    *,
    H_cycles: int,
    L_cycles: int,
    gradient: str,
) -> State:
    """Run ``H_cycles`` cycles from ``state``; the result carries gradient as ``gradient`` says."""
    z_H, z_L = state["z_H"], state["z_L"]
    graph = torch.is_grad_enabled()
    for cycle in range(1, H_cycles + 1):
        in_last_cycle = cycle == H_cycles
        memory: Memory = None
        for number in range(L_cycles):
            is_last_update = in_last_cycle and number == L_cycles - 1
            visible = {"last_cycle": in_last_cycle, "last_update": is_last_update, "full": True}
            with torch.set_grad_enabled(graph and visible[gradient]):
                z_L, memory = L.update(z_L, H.read(z_H) + embedded, number, memory)
        with torch.set_grad_enabled(graph and (in_last_cycle or gradient == "full")):
            z_H, _ = H.update(z_H, L.read(z_L), 0, None)
    return {"z_H": z_H, "z_L": z_L}


def run_shared_cycles(
    state: State,
    embedded: Latent,
    apply: Apply,
    *,
    H_cycles: int,
    L_cycles: int,
    visible_cycles: int,
) -> State:
    """Run cycles in which one module updates both states (TRM, arXiv:2510.04871).

    z_L <- f(z_L + z_H + e) L_cycles times, then z_H <- f(z_H + z_L). The last ``visible_cycles``
    carry gradient.
    """
    z_H, z_L = state["z_H"], state["z_L"]
    graph = torch.is_grad_enabled()
    for cycle in range(H_cycles):
        with torch.set_grad_enabled(graph and cycle >= H_cycles - visible_cycles):
            for _ in range(L_cycles):
                z_L = apply(z_L + (z_H + embedded))
            z_H = apply(z_H + z_L)
    return {"z_H": z_H, "z_L": z_L}


def run_rounds(
    state: Tensor, injection: Latent, loop: Loop, *, rounds: int, visible: int
) -> Tensor:
    """The state after ``rounds`` updates, of which the last ``visible`` carry gradient."""
    graph, memory = torch.is_grad_enabled(), None
    for number in range(rounds):
        with torch.set_grad_enabled(graph and number >= rounds - visible):
            state, memory = loop.update(state, injection, number, memory)
    return state
