"""Predict test pairs of the evaluated tasks under their first A augmentations.

Rows go through the network in a batch whose slots are refilled: with ``halting=act`` a row that
halts leaves at once and the next one takes its place, so it costs nothing more; with ``fixed``
every row runs all segments. What a row answers does not depend on its neighbours (but for
rounding). Never more than a batch is in memory: answers leave as cropped grids.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from arc_data.canvas import FIRST_COLOR, decode_sizes, encode_grid
from arc_data.puzzles import PuzzleSet
from eval.predictions import Predictions
from hrm_deeploop.halting import decide_halt
from hrm_deeploop.layers import Latent
from hrm_deeploop.model import HRM, SegmentOutput
from hrm_deeploop.recurrence import LatentState

Halting = Literal["fixed", "act"]
PuzzleIds = Literal["correct", "blank", "shuffled"]
Lookup = Callable[[Tensor], Tensor]  # puzzle ids (batch,) -> vectors (batch, ndim)


@dataclass(frozen=True, kw_only=True, eq=False)
class Questions:
    """What is predicted: a row is one test pair under one augmentation."""

    puzzles: PuzzleSet
    evaluated: tuple[int, ...]  # indices of the evaluated tasks
    rows: Int64[np.ndarray, "n 3"]  # position in ``evaluated``, test index, puzzle id

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, numbers: Int64[np.ndarray, " taken"]) -> "Questions":
        """The rows with these numbers."""
        return replace(self, rows=self.rows[numbers])

    def encode(self, number: int, canvas: int) -> np.ndarray:
        """Tokens of a row's augmented input, at offset (0, 0)."""
        position, test_index, puzzle_id = self.rows[number]
        grid = self.puzzles.tasks[self.evaluated[position]].test[test_index].input
        return encode_grid(self.puzzles.augmentation(int(puzzle_id)).apply(grid), canvas)


def list_questions(puzzles: PuzzleSet, evaluated: Sequence[int], votes: int) -> Questions:
    """Every test pair of the tasks under their first ``votes`` puzzles, identity first."""
    rows = [
        (position, test_index, puzzle_id)
        for position, task_index in enumerate(evaluated)
        for test_index in range(len(puzzles.tasks[task_index].test))
        for puzzle_id in puzzles.puzzle_ids(task_index)[:votes]
    ]
    array = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Questions(puzzles=puzzles, evaluated=tuple(evaluated), rows=array)


def change_puzzle_ids(
    lookup: Lookup, questions: Questions, mode: PuzzleIds, *, seed: int
) -> Lookup:
    """A lookup that hands out the right vectors, zeros, or those of another evaluated task.

    ``blank`` is what a puzzle that never trained has. ``shuffled`` gives every task the puzzles of
    one other task; which one depends on ``seed``.

    Raises:
        ValueError: if there is no other task to shuffle with.
    """
    if mode == "correct":
        return lookup
    if mode == "blank":
        return lambda puzzle_ids: torch.zeros_like(lookup(puzzle_ids))
    puzzles, evaluated = questions.puzzles, questions.evaluated
    if len(evaluated) < 2:
        raise ValueError("puzzle_ids=shuffled needs at least two evaluated tasks")
    order = np.random.default_rng(seed).permutation(len(evaluated))
    other = np.arange(len(puzzles))
    for mine, theirs in zip(order, np.roll(order, 1), strict=True):
        ids, others = (np.array(puzzles.puzzle_ids(evaluated[i])) for i in (mine, theirs))
        other[ids] = others[np.arange(len(ids)) % len(others)]
    table = torch.from_numpy(other)
    return lambda puzzle_ids: lookup(table.to(puzzle_ids.device)[puzzle_ids])


class _Slots(NamedTuple):
    """The rows in the batch; everything is indexed by slot."""

    number: Tensor
    steps: Tensor
    state: LatentState
    embedded: Latent

    def keep(self, where: Tensor) -> "_Slots":
        return _Slots(
            number=self.number[where],
            steps=self.steps[where],
            state=LatentState(*(z[where] for z in self.state)),
            embedded=self.embedded[where],
        )

    def join(self, other: "_Slots") -> "_Slots":
        return _Slots(
            number=torch.cat((self.number, other.number)),
            steps=torch.cat((self.steps, other.steps)),
            state=LatentState(*map(torch.cat, zip(self.state, other.state, strict=True))),
            embedded=torch.cat((self.embedded, other.embedded)),
        )


class Answers(NamedTuple):
    """Answers that have just been given: columns of the file, and which rows they are of."""

    number: Int64[np.ndarray, " n"]  # of the row among the questions
    predictions: Predictions


def predict(
    network: HRM,
    lookup: Lookup,
    questions: Questions,
    *,
    canvas: int,
    batch_size: int,
    device: torch.device,
    halting: Halting = "fixed",
    limits: Sequence[int] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Answers]:
    """Answer every row; yields after every segment in which a row answered.

    Args:
        network: in evaluation mode, on ``device``.
        lookup: puzzle vectors of puzzle ids.
        halting: ``fixed`` runs all segments, ``act`` halts a row as in training.
        limits: segments after which an answer is recorded too, for the ladder over segments.
        should_stop: asked after every segment; the rows in the batch then stay without an answer.
    """
    max_steps = network.config.halt_max_steps
    slots: _Slots | None = None
    waiting = 0
    while waiting < len(questions) or slots is not None:
        num_taken = min(
            batch_size - (0 if slots is None else len(slots.number)), len(questions) - waiting
        )
        if num_taken:
            fresh = _fill(
                network, lookup, questions, range(waiting, waiting + num_taken), canvas, device
            )
            slots, waiting = fresh if slots is None else slots.join(fresh), waiting + num_taken
        assert slots is not None
        out = _run_segment(network, slots)
        steps = slots.steps + 1
        done = decide_halt(
            out.q_halt, out.q_continue, steps, torch.ones_like(steps), max_steps=max_steps
        )
        if halting == "fixed":
            done = steps >= max_steps
        on_the_way = ~done & torch.isin(
            steps, torch.tensor(limits, device=device, dtype=steps.dtype)
        )
        answered = done | on_the_way
        if bool(answered.any()):
            number = slots.number[answered].cpu().numpy()
            yield Answers(
                number,
                _columns(
                    questions.take(number),
                    tokens=out.logits[answered].argmax(-1).cpu().numpy(),
                    halt=torch.sigmoid(out.q_halt[answered]).float().cpu().numpy(),
                    segments=steps[answered].cpu().numpy(),
                    final=done[answered].cpu().numpy(),
                ),
            )
        if should_stop():
            return
        slots = _Slots(number=slots.number, steps=steps, state=out.state, embedded=slots.embedded)
        if bool(done.all()):
            slots = None
        elif bool(done.any()):
            slots = slots.keep(~done)


# Decorators do not reach into a generator under every wrapper, so they are on what it calls.
@torch.inference_mode()
def _run_segment(network: HRM, slots: _Slots) -> SegmentOutput:
    return network.segment(slots.state, slots.embedded)


@torch.inference_mode()
def _fill(
    network: HRM,
    lookup: Lookup,
    questions: Questions,
    numbers: range,
    canvas: int,
    device: torch.device,
) -> _Slots:
    inputs = np.stack([questions.encode(number, canvas) for number in numbers])
    puzzle_ids = torch.from_numpy(questions.rows[numbers.start : numbers.stop, 2]).to(device)
    return _Slots(
        number=torch.arange(numbers.start, numbers.stop, device=device),
        steps=torch.zeros(len(numbers), dtype=torch.int64, device=device),
        state=network.initial_state(len(numbers)),
        embedded=network.embed(
            torch.from_numpy(inputs).to(device, torch.int64), lookup(puzzle_ids)
        ),
    )


def _columns(
    questions: Questions,
    *,
    tokens: np.ndarray,
    halt: np.ndarray,
    segments: np.ndarray,
    final: np.ndarray,
) -> Predictions:
    puzzles, evaluated = questions.puzzles, np.array(questions.evaluated)
    position, test_index, puzzle_id = questions.rows.T
    sizes = decode_sizes(tokens)
    side = round(tokens.shape[1] ** 0.5)
    boards = tokens.reshape(-1, side, side)
    row, column = np.arange(side)[None, :, None], np.arange(side)[None, None, :]
    inside = (row < sizes[:, 0, None, None]) & (column < sizes[:, 1, None, None])
    return Predictions(
        tasks=tuple(puzzles.tasks[t] for t in questions.evaluated),
        task=position.astype(np.int32),
        test_index=test_index.astype(np.int16),
        vote=(puzzle_id - puzzles.offsets[evaluated[position]]).astype(np.int32),
        dihedral=puzzles.dihedral[puzzle_id],
        colors=puzzles.colors[puzzle_id],
        height=sizes[:, 0].astype(np.uint8),
        width=sizes[:, 1].astype(np.uint8),
        cells=(boards[inside] - FIRST_COLOR).astype(np.uint8),
        halt=halt,
        segments=segments.astype(np.int16),
        final=final,
    )
