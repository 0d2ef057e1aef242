"""Deep supervision over segments with a learned halt (adaptive computation time).

Every slot of the batch holds an example and its latent state. After each segment the slot may
halt; then the next step puts a fresh example and the initial state into it. As in HRM:

    bootstrap   halts when q_halt > q_continue; q_continue learns from one more forward
    halt_only   halts when q_halt > 0 (TRM, arXiv:2510.04871); no further forward

With probability ``halt_exploration_prob`` a row must run at least uniform{2..max} segments.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hrm_deeploop.recurrence import State


class Batch(NamedTuple):
    """Examples as tokens; a label of PAD carries no loss."""

    inputs: Int[Tensor, "batch seq"]
    labels: Int[Tensor, "batch seq"]
    puzzle_ids: Int[Tensor, " batch"]
    positions: Int[Tensor, "batch seq"] | None = None  # on the canvas; None: all of it, in order

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """``change`` of every tensor that is there."""
        return Batch(
            inputs=change(self.inputs),
            labels=change(self.labels),
            puzzle_ids=change(self.puzzle_ids),
            positions=None if self.positions is None else change(self.positions),
        )

    def to(self, device: torch.device) -> "Batch":
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))


class Carry(NamedTuple):
    """What the batch's slots hold between two segments."""

    state: State
    steps: Int[Tensor, " batch"]  # segments run by the slot's example
    halted: Bool[Tensor, " batch"]
    batch: Batch

    def rows(self, part: int, num_parts: int) -> "Carry":
        """Part ``part`` of ``num_parts`` equal ones, in order."""

        def chunk(tensor: Tensor) -> Tensor:
            return tensor.chunk(num_parts)[part]

        return Carry(
            state={name: chunk(tensor) for name, tensor in self.state.items()},
            steps=chunk(self.steps),
            halted=chunk(self.halted),
            batch=self.batch.map(chunk),
        )

    def cast(self, dtype: torch.dtype) -> "Carry":
        """With latent states in ``dtype``."""
        return self._replace(state={name: z.to(dtype) for name, z in self.state.items()})

    def tensors(self) -> dict[str, Tensor]:
        """Everything by name, for a checkpoint."""
        own = {"steps": self.steps, "halted": self.halted}
        batch = {name: t for name, t in self.batch._asdict().items() if t is not None}
        return {**own, **self.state, **batch}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "Carry":
        """The carry whose :meth:`tensors` these are."""
        others = {"steps", "halted", *Batch._fields}
        return cls(
            state={name: tensor for name, tensor in tensors.items() if name not in others},
            steps=tensors["steps"],
            halted=tensors["halted"],
            batch=Batch(
                inputs=tensors["inputs"],
                labels=tensors["labels"],
                puzzle_ids=tensors["puzzle_ids"],
                positions=tensors.get("positions"),
            ),
        )


def empty_carry(batch: Batch, initial: State) -> Carry:
    """A carry whose slots have all halted, so that the first step fills every one."""
    num_rows = len(batch.inputs)
    return Carry(
        state=initial,
        steps=torch.zeros(num_rows, dtype=torch.int64, device=batch.inputs.device),
        halted=torch.ones(num_rows, dtype=torch.bool, device=batch.inputs.device),
        batch=batch,
    )


def refill(carry: Carry, fresh: Batch, initial: State) -> Carry:
    """Put each halted slot's example of ``fresh`` and the initial state into it."""

    def choose(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(carry.halted.view(-1, *[1] * (old.ndim - 1)), new, old)

    return Carry(
        state={name: choose(initial[name], old) for name, old in carry.state.items()},
        steps=torch.where(carry.halted, 0, carry.steps),
        halted=torch.zeros_like(carry.halted),
        batch=Batch(
            inputs=choose(fresh.inputs, carry.batch.inputs),
            labels=choose(fresh.labels, carry.batch.labels),
            puzzle_ids=choose(fresh.puzzle_ids, carry.batch.puzzle_ids),
            positions=_choose_positions(choose, fresh, carry.batch),
        ),
    )


def _choose_positions(
    choose: Callable[[Tensor, Tensor], Tensor], fresh: Batch, old: Batch
) -> Tensor | None:
    if fresh.positions is None or old.positions is None:
        return None
    return choose(fresh.positions, old.positions)


def min_segments(
    num_rows: int, *, max_steps: int, exploration_prob: float, rng: np.random.Generator
) -> Int[Tensor, " batch"]:
    """Segments that each row must run before it may halt: 1, or uniform{2..max} when exploring."""
    explores = rng.random(num_rows) < exploration_prob
    drawn = rng.integers(2, max_steps + 1, num_rows) if max_steps > 1 else 1
    return torch.from_numpy(np.where(explores, drawn, 1))


def decide_halt(
    q_halt: Float[Tensor, " batch"],
    q_continue: Float[Tensor, " batch"] | None,
    steps: Int[Tensor, " batch"],
    at_least: Int[Tensor, " batch"],
    *,
    max_steps: int,
) -> Bool[Tensor, " batch"]:
    """Which rows stop after ``steps`` segments; without a continue value it counts as 0."""
    wants_to = q_halt > (0 if q_continue is None else q_continue)
    return (steps >= max_steps) | (wants_to & (steps >= at_least))


def continue_target(
    next_q_halt: Float[Tensor, " batch"],
    next_q_continue: Float[Tensor, " batch"],
    is_last: Bool[Tensor, " batch"],
) -> Float[Tensor, " batch"]:
    """The value of going on: the better of the next segment's two choices, as a probability.

    Where the row is at its last segment the next one could only halt (HRM).
    """
    best = torch.where(is_last, next_q_halt, torch.maximum(next_q_halt, next_q_continue))
    return torch.sigmoid(best)
