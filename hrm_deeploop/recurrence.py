"""The cycle schedule of a segment and its one-step gradient.

Cycle c = 1..C, with e the input embedding (HRM, Wang et al. 2025, arXiv:2506.21734; DeepLoop,
arXiv:2607.13491, sec. 4):

    z_L <- L(z_L + z_H + e)      C_L times
    z_H <- H(z_H + z_L)          once

``gradient`` says which updates carry gradient; the others run without a graph, so the memory of a
backward does not depend on C under the two truncations:

    last_cycle    every update of the last cycle            (DeepLoop, eq. 18)
    last_update   the last update of L and the last of H    (the released HRM code)
    full          all of them
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hrm_deeploop.layers import Latent
from hrm_deeploop.scaling import Gradient


class LatentState(NamedTuple):
    """What one segment hands to the next; the caller detaches it in between."""

    z_H: Latent
    z_L: Latent

    def detach(self) -> "LatentState":
        return LatentState(z_H=self.z_H.detach(), z_L=self.z_L.detach())


def run_cycles(
    state: LatentState,
    embedded: Tensor,
    update_H: Callable[[Tensor], Tensor],
    update_L: Callable[[Tensor], Tensor],
    *,
    H_cycles: int,
    L_cycles: int,
    gradient: Gradient,
) -> LatentState:
    """Run ``H_cycles`` cycles from ``state``; the result carries gradient as ``gradient`` says.

    ``update_H`` and ``update_L`` map a module's summed input to its new state; any shape will do.
    """
    z_H, z_L = state
    graph = torch.is_grad_enabled()
    for cycle in range(1, H_cycles + 1):
        in_last_cycle = cycle == H_cycles
        for update in range(1, L_cycles + 1):
            is_last_update = in_last_cycle and update == L_cycles
            visible = {"last_cycle": in_last_cycle, "last_update": is_last_update, "full": True}
            with torch.set_grad_enabled(graph and visible[gradient]):
                z_L = update_L(z_L + (z_H + embedded))
        with torch.set_grad_enabled(graph and (in_last_cycle or gradient == "full")):
            z_H = update_H(z_H + z_L)
    return LatentState(z_H=z_H, z_L=z_L)
