"""Predict test pairs of the evaluated tasks under their first A augmentations.

Rows go through the network in a batch whose slots are refilled: with ``halting=act`` a row that
halts leaves at once and the next one takes its place, so it costs nothing more; with ``fixed``
every row runs all segments. What a row answers does not depend on its neighbours (but for
rounding). Never more than a batch is in memory: answers leave as cropped grids. With
``window=task`` a row is a window of the canvas (see arc_data/windows.py), which costs less.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from arc_data.canvas import PAD
from eval.answers import Answer, Answers, to_columns, touches_edge
from eval.questions import (
    Group,
    Questions,
    Side,
    Window,
    other_puzzles,
    whole_canvases,
    window_groups,
)
from hrm_deeploop.halting import decide_halt
from hrm_deeploop.losses import token_loss
from hrm_deeploop.model import Embedded, Reasoner, SegmentOutput
from hrm_deeploop.recurrence import State

Halting = Literal["fixed", "act"]
PuzzleIds = Literal["correct", "blank", "shuffled"]
Lookup = Callable[[Tensor], Tensor]  # puzzle ids (batch,) -> vectors (batch, ndim)


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """A network that can be asked.

    Args:
        network: in evaluation mode, on ``device``.
        lookup: puzzle vectors of puzzle ids.
        canvas: side of the canvas.
        batch_size: whole canvases in a batch; of windows as many rows as have no more tokens.
        window: ``full`` runs whole canvases; ``task`` a window that the demonstrations suggest, and
            the whole canvas for a row whose answer touches its window's edge.
    """

    network: Reasoner
    lookup: Lookup
    canvas: int
    batch_size: int
    device: torch.device
    window: Window = "full"

    def groups(self, questions: Questions, *, known: bool = False) -> list[Group]:
        """The rows in groups of equally long sequences."""
        if self.window == "task":
            return window_groups(questions, self.canvas, known=known)
        return [whole_canvases(np.arange(len(questions)), self.canvas)]

    def rows_at_once(self, group: Group) -> int:
        """Rows of a group in a batch."""
        return max(1, self.batch_size * self.canvas**2 // group.length)

    def tokens(
        self, questions: Questions, group: Group, members: slice, side: Side
    ) -> Int64[Tensor, "batch seq"]:
        """Inputs or known outputs of some members of a group."""
        boards = np.stack(
            [questions.encode(int(n), self.canvas, side) for n in group.rows[members]]
        )
        positions = group.positions(members, self.canvas)
        if positions is not None:
            boards = np.take_along_axis(boards, positions, axis=1)
        return torch.from_numpy(boards).to(self.device, torch.int64)

    def embed(self, questions: Questions, group: Group, members: slice) -> Embedded:
        """What the segments of some members of a group read."""
        positions = group.positions(members, self.canvas)
        puzzle_ids = torch.from_numpy(questions.rows[group.rows[members], 2]).to(self.device)
        return self.network.embed(
            self.tokens(questions, group, members, "input"),
            self.lookup(puzzle_ids),
            None if positions is None else torch.from_numpy(positions).to(self.device),
        )


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
    other = torch.from_numpy(other_puzzles(questions, seed=seed))
    return lambda puzzle_ids: lookup(other.to(puzzle_ids.device)[puzzle_ids])


def predict(
    predictor: Predictor,
    questions: Questions,
    *,
    halting: Halting = "fixed",
    limits: Sequence[int] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Answers]:
    """Answer every row; yields whenever rows have answered.

    Args:
        halting: ``fixed`` runs all segments, ``act`` halts a row as in training.
        limits: segments after which an answer is recorded too, for the ladder over segments.
        should_stop: asked after every segment; the rows in the batch then stay without an answer.
    """
    run = _Run(predictor, questions, halting, tuple(limits), should_stop)
    again: list[int] = []
    for group in predictor.groups(questions):
        yield from run.settle(group, again)
    if again:  # on the whole canvas nothing touches a window's edge
        yield from run.settle(whole_canvases(np.array(sorted(again)), predictor.canvas), again)


class _Slots(NamedTuple):
    """The rows in the batch; everything is indexed by slot."""

    member: Tensor  # of the group
    steps: Tensor
    state: State
    embedded: Embedded

    def keep(self, where: Bool[Tensor, " slots"]) -> "_Slots":
        return _Slots(
            member=self.member[where],
            steps=self.steps[where],
            state={name: z[where] for name, z in self.state.items()},
            embedded=self.embedded.take(where),
        )

    def join(self, other: "_Slots") -> "_Slots":
        return _Slots(
            member=torch.cat((self.member, other.member)),
            steps=torch.cat((self.steps, other.steps)),
            state={name: torch.cat((z, other.state[name])) for name, z in self.state.items()},
            embedded=self.embedded.join(other.embedded),
        )


class _Run(NamedTuple):
    """One call of ``predict``."""

    predictor: Predictor
    questions: Questions
    halting: Halting
    limits: tuple[int, ...]
    should_stop: Callable[[], bool]

    def settle(self, group: Group, again: list[int]) -> Iterator[Answers]:
        """Answer a group; rows whose answer touches their window's edge go to ``again``."""
        boxes = {} if group.boxes is None else dict(zip(group.rows, group.boxes, strict=True))
        held: dict[int, list[Answer]] = {}  # on the way to an answer that may touch the edge
        for answers in self.answer(group):
            settled: list[Answer] = []
            for answer in answers:
                held.setdefault(answer.number, []).append(answer)
                if not answer.final:
                    continue
                so_far, box = held.pop(answer.number), boxes.get(answer.number)
                if box is not None and touches_edge(answer, box, self.predictor.canvas):
                    again.append(answer.number)
                else:
                    settled += so_far
            if settled:
                yield to_columns(self.questions, settled)

    def answer(self, group: Group) -> Iterator[list[Answer]]:
        """Answers of a group's rows, after every segment in which there are any."""
        predictor = self.predictor
        max_steps = predictor.network.config.halt_max_steps
        limits = torch.tensor(self.limits, device=predictor.device, dtype=torch.int64)
        slots: _Slots | None = None
        waiting = 0
        while (waiting < len(group.rows) or slots is not None) and not self.should_stop():
            num_free = predictor.rows_at_once(group) - (0 if slots is None else len(slots.member))
            stop = min(waiting + num_free, len(group.rows))
            if stop > waiting:
                fresh = self._fill(group, waiting, stop)
                slots, waiting = fresh if slots is None else slots.join(fresh), stop
            assert slots is not None
            out = self._segment(slots)
            steps = slots.steps + 1
            done = steps >= max_steps
            if self.halting == "act":
                at_least = torch.ones_like(steps)
                done = decide_halt(out.q_halt, out.q_continue, steps, at_least, max_steps=max_steps)
            answered = done | torch.isin(steps, limits)
            if bool(answered.any()):
                yield self._read(group, slots, out, answered, done)
            slots = slots._replace(steps=steps, state=out.state)
            if bool(done.all()):
                slots = None
            elif bool(done.any()):
                slots = slots.keep(~done)

    # Decorators do not reach into a generator under every wrapper, so they are on what it calls.
    @torch.inference_mode()
    def _segment(self, slots: _Slots) -> SegmentOutput:
        return self.predictor.network.segment(slots.state, slots.embedded)

    @torch.inference_mode()
    def _fill(self, group: Group, start: int, stop: int) -> _Slots:
        predictor, num_rows = self.predictor, stop - start
        return _Slots(
            member=torch.arange(start, stop, device=predictor.device),
            steps=torch.zeros(num_rows, dtype=torch.int64, device=predictor.device),
            state=predictor.network.initial_state(num_rows, group.length),
            embedded=predictor.embed(self.questions, group, slice(start, stop)),
        )

    def _read(
        self, group: Group, slots: _Slots, out: SegmentOutput, answered: Tensor, done: Tensor
    ) -> list[Answer]:
        members = slots.member[answered].cpu().numpy()
        boards = out.logits[answered].argmax(-1).to(torch.uint8).cpu().numpy()
        positions = group.positions(members, self.predictor.canvas)
        if group.boxes is not None and positions is not None:
            # Of a window, what is beyond its rectangle is no part of an answer.
            beyond = np.arange(group.length) >= group.boxes[members].prod(axis=1)[:, None]
            tokens = np.where(beyond, PAD, boards)
            boards = np.full((len(members), self.predictor.canvas**2), PAD, dtype=np.uint8)
            np.put_along_axis(boards, positions, tokens, axis=1)
        columns = (
            group.rows[members].tolist(),
            boards,
            torch.sigmoid(out.q_halt[answered]).float().tolist(),
            (slots.steps[answered] + 1).tolist(),
            done[answered].tolist(),
        )
        return [Answer(*entry) for entry in zip(*columns, strict=True)]


@torch.inference_mode()
def held_out_losses(
    predictor: Predictor,
    questions: Questions,
    should_stop: Callable[[], bool] = lambda: False,
) -> Float[np.ndarray, " n"]:
    """Token loss of every row after all segments, with outputs that are known, at offset (0, 0).

    ``should_stop`` is asked before every batch; the losses are then of no use.

    With ``window=task`` a row is a window as in training, which covers its output.
    """
    network, losses = predictor.network, np.zeros(len(questions))
    for group in predictor.groups(questions, known=True):
        rows_at_once = predictor.rows_at_once(group)
        for start in range(0, len(group.rows), rows_at_once):
            if should_stop():
                return losses
            members = slice(start, start + rows_at_once)
            labels = predictor.tokens(questions, group, members, "output")
            embedded = predictor.embed(questions, group, members)
            out = network.segment(network.initial_state(*labels.shape), embedded)
            for _ in range(network.config.halt_max_steps - 1):
                out = network.segment(out.state, embedded)
            losses[group.rows[members]] = token_loss(out.logits, labels).double().cpu().numpy()
    return losses
