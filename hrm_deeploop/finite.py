"""Stops a run whose losses or gradients are not finite, without making an accelerator wait."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

ACCELERATOR_LAG = 2  # steps


class NonFiniteError(ValueError):
    """A loss or gradient is not finite."""


class _Waiting(NamedTuple):
    step: int
    names: Sequence[str]
    values: Tensor  # on the host; valid once ``copied`` has happened
    copied: torch.Event | None


class FiniteCheck:
    """Looks at every step's values; on a CPU at once, before anything is updated.

    An accelerator would be idle while its host looks at a value that it has just computed. So the
    values travel behind the work and are looked at ``lag`` steps later, and before a checkpoint is
    written: nothing that is not finite is ever saved.
    """

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self._waiting: deque[_Waiting] = deque()

    def add(self, step: int, names: Sequence[str], values: Float[Tensor, " values"]) -> None:
        """Take a step's values.

        Raises:
            NonFiniteError: naming the step and the values, if a value due now is not finite.
        """
        values, copied = values.detach(), None
        if self.lag:
            values = values.to("cpu", non_blocking=True)
            if torch.accelerator.is_available():
                copied = torch.Event()
                copied.record()
        self._waiting.append(_Waiting(step, names, values, copied))
        while len(self._waiting) > self.lag:
            self._look(self._waiting.popleft())

    def flush(self) -> None:
        """Look at all that is waiting.

        Raises:
            NonFiniteError: as ``add``.
        """
        while self._waiting:
            self._look(self._waiting.popleft())

    def _look(self, waiting: _Waiting) -> None:
        if waiting.copied is not None:
            waiting.copied.synchronize()
        if bool(torch.isfinite(waiting.values).all()):
            return
        found = zip(waiting.names, waiting.values.tolist(), strict=True)
        values = ", ".join(f"{name} {value:g}" for name, value in found if not np.isfinite(value))
        done = "the steps since are lost" if self.lag else "nothing was updated"
        raise NonFiniteError(f"step {waiting.step}: {values}; {done}, checkpoints are intact")


def finite_check(device: torch.device) -> FiniteCheck:
    """The check for a device."""
    return FiniteCheck(lag=0 if device.type == "cpu" else ACCELERATOR_LAG)
