"""Predict test pairs of the evaluated tasks under their first A augmentations.

Rows go through the network in a batch whose slots are refilled: with ``halting=act`` a row that
halts leaves at once and the next one takes its place, so it costs nothing more; with ``fixed``
every row runs all segments. What a row answers does not depend on its neighbours (but for
rounding). Never more than a batch is in memory: answers leave as cropped grids. With
``window=task`` a row is a window of the canvas (see arc_data/windows.py), which costs less.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from arc_data.augment import is_turned
from arc_data.canvas import FIRST_COLOR, PAD, canvas_side, decode_sizes, encode_grid
from arc_data.puzzles import PuzzleSet
from arc_data.task import Task
from arc_data.windows import MAX_SHARES, expected_box, plan_buckets, window_positions
from eval.predictions import Predictions
from hrm_deeploop.halting import decide_halt
from hrm_deeploop.layers import Rotation
from hrm_deeploop.losses import token_loss
from hrm_deeploop.model import HRM, Embedded, SegmentOutput
from hrm_deeploop.recurrence import LatentState

Halting = Literal["fixed", "act"]
Window = Literal["full", "task"]
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

    def encode(
        self, number: int, canvas: int, part: Literal["input", "output"] = "input"
    ) -> np.ndarray:
        """Tokens of a row's augmented input or known output, at offset (0, 0)."""
        position, test_index, puzzle_id = self.rows[number]
        pair = self.puzzles.tasks[self.evaluated[position]].test[test_index]
        grid = pair.input if part == "input" else pair.output
        assert grid is not None
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


class Answers(NamedTuple):
    """Answers that have just been given: columns of the file, and which rows they are of."""

    number: Int64[np.ndarray, " n"]  # of the row among the questions
    predictions: Predictions


class _Answer(NamedTuple):
    """What one row answers after some segments."""

    number: int
    board: UInt8[np.ndarray, " canvas_cells"]  # tokens; PAD outside a window
    halt: float
    segments: int
    final: bool


class _Group(NamedTuple):
    """Rows that have sequences of one length."""

    rows: Int64[np.ndarray, " n"]
    boxes: Int64[np.ndarray, "n 2"] | None  # windows' height and width; None: whole canvases
    length: int

    def positions(self, start: int, stop: int, canvas: int) -> Int64[np.ndarray, "n seq"] | None:
        """Canvas positions of the tokens of some rows' windows, which stand at offset (0, 0)."""
        if self.boxes is None:
            return None
        height, width = self.boxes[start:stop].T
        corner = np.zeros(stop - start, dtype=np.int64)
        return window_positions(corner, corner, height, width, length=self.length, canvas=canvas)


def predict(
    network: HRM,
    lookup: Lookup,
    questions: Questions,
    *,
    canvas: int,
    batch_size: int,
    device: torch.device,
    halting: Halting = "fixed",
    window: Window = "full",
    limits: Sequence[int] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Answers]:
    """Answer every row; yields whenever rows have answered.

    Args:
        network: in evaluation mode, on ``device``.
        lookup: puzzle vectors of puzzle ids.
        batch_size: whole canvases in a batch; of windows as many rows as have no more tokens.
        halting: ``fixed`` runs all segments, ``act`` halts a row as in training.
        window: ``full`` runs whole canvases; ``task`` a window that the demonstrations suggest, and
            the whole canvas for a row whose answer touches its window's edge.
        limits: segments after which an answer is recorded too, for the ladder over segments.
        should_stop: asked after every segment; the rows in the batch then stay without an answer.
    """
    run = _Run(network, lookup, questions, canvas, device, halting, tuple(limits), should_stop)
    whole = _Group(np.arange(len(questions)), None, canvas**2)
    again: list[int] = []
    for group in [whole] if window == "full" else window_groups(questions, canvas):
        held: dict[int, list[_Answer]] = {}  # on the way to an answer that may touch the edge
        boxes = {} if group.boxes is None else dict(zip(group.rows, group.boxes, strict=True))
        for answers in run.group(group, max(1, batch_size * canvas**2 // group.length)):
            settled: list[_Answer] = []
            for answer in answers:
                if not answer.final:
                    held.setdefault(answer.number, []).append(answer)
                    continue
                so_far = [*held.pop(answer.number, []), answer]
                if group.boxes is not None and _touches(answer, boxes[answer.number], canvas):
                    again.append(answer.number)
                else:
                    settled += so_far
            if settled:
                yield _to_columns(questions, settled)
    if again and not should_stop():
        rest = np.array(sorted(again))
        for answers in predict(
            network,
            lookup,
            questions.take(rest),
            canvas=canvas,
            batch_size=batch_size,
            device=device,
            halting=halting,
            limits=limits,
            should_stop=should_stop,
        ):
            yield answers._replace(number=rest[answers.number])


def window_groups(questions: Questions, canvas: int, *, known: bool = False) -> list[_Group]:
    """The rows by length of their windows, in a few lengths.

    Windows are as in training: they cover the input and the output that the demonstrations let one
    expect, and with ``known`` the true output too.
    """
    tasks, puzzles = questions.puzzles.tasks, questions.puzzles
    box = {
        (position, test_index): _box(tasks[questions.evaluated[position]], test_index, known)
        for position, test_index in {(int(p), int(t)) for p, t, _ in questions.rows}
    }
    boxes = np.array([box[int(p), int(t)] for p, t, _ in questions.rows]).reshape(-1, 2)
    lies = is_turned(puzzles.dihedral[questions.rows[:, 2]])
    boxes = np.minimum(np.where(lies[:, None], boxes[:, ::-1], boxes) + 1, canvas)
    if not len(boxes):
        return []
    buckets = plan_buckets(boxes.prod(axis=1), global_batch_size=MAX_SHARES, canvas=canvas)
    groups = []
    for bucket, length in enumerate(buckets.lengths):
        rows = np.flatnonzero(buckets.of_pair == bucket)
        groups.append(_Group(rows, boxes[rows], length))
    return groups


def _box(task: Task, test_index: int, known: bool) -> tuple[int, int]:
    pair = task.test[test_index]
    expected = expected_box(task.train, pair.input)
    if not known or pair.output is None:
        return expected
    height, width = np.maximum(expected, pair.output.shape).tolist()
    return height, width


def _touches(answer: _Answer, box: np.ndarray, canvas: int) -> bool:
    """Whether the grid goes to an edge of its window that is none of the canvas: no EOS ends it."""
    (size,) = decode_sizes(answer.board[None])
    return bool(((size == box) & (box < canvas)).any())


class _Slots(NamedTuple):
    """The rows in the batch; everything is indexed by slot."""

    row: Tensor  # within the group
    steps: Tensor
    state: LatentState
    embedded: Embedded

    def change(self, change: Callable[[Tensor], Tensor]) -> "_Slots":
        return self._each([self], lambda tensors: change(tensors[0]))

    def join(self, other: "_Slots") -> "_Slots":
        return self._each([self, other], torch.cat)

    @staticmethod
    def _each(several: "list[_Slots]", combine: Callable[[list[Tensor]], Tensor]) -> "_Slots":
        rotations = [slots.embedded.rotation for slots in several]
        rotation = rotations[0]
        if rotation is not None and rotation.cos.ndim == ROTATION_NDIM_PER_ROW:
            rotation = Rotation(
                cos=combine([r.cos for r in rotations if r is not None]),
                sin=combine([r.sin for r in rotations if r is not None]),
            )
        return _Slots(
            row=combine([slots.row for slots in several]),
            steps=combine([slots.steps for slots in several]),
            state=LatentState(
                z_H=combine([slots.state.z_H for slots in several]),
                z_L=combine([slots.state.z_L for slots in several]),
            ),
            embedded=Embedded(combine([slots.embedded.tokens for slots in several]), rotation),
        )


ROTATION_NDIM_PER_ROW = 5  # (batch, seq, 1, 1, head_dim); one for all rows has no batch axis


class _Run(NamedTuple):
    """How rows are run; see ``predict``."""

    network: HRM
    lookup: Lookup
    questions: Questions
    canvas: int
    device: torch.device
    halting: Halting
    limits: tuple[int, ...]
    should_stop: Callable[[], bool]

    def group(self, group: _Group, batch_size: int) -> Iterator[list[_Answer]]:
        """Answers of a group's rows, after every segment in which there are any."""
        max_steps = self.network.config.halt_max_steps
        limits = torch.tensor(self.limits, device=self.device, dtype=torch.int64)
        slots: _Slots | None = None
        waiting = 0
        while (waiting < len(group.rows) or slots is not None) and not self.should_stop():
            num_free = batch_size - (0 if slots is None else len(slots.row))
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
                yield self._answers(group, slots, out, answered, done)
            slots = slots._replace(steps=steps, state=out.state)
            if bool(done.all()):
                slots = None
            elif bool(done.any()):
                going_on = ~done
                slots = slots.change(lambda tensor, going_on=going_on: tensor[going_on])

    # Decorators do not reach into a generator under every wrapper, so they are on what it calls.
    @torch.inference_mode()
    def _segment(self, slots: _Slots) -> SegmentOutput:
        return self.network.segment(slots.state, slots.embedded)

    @torch.inference_mode()
    def _fill(self, group: _Group, start: int, stop: int) -> _Slots:
        numbers = group.rows[start:stop]
        inputs = np.stack([self.questions.encode(int(n), self.canvas) for n in numbers])
        positions = group.positions(start, stop, self.canvas)
        if positions is not None:
            inputs = np.take_along_axis(inputs, positions, axis=1)
        vectors = self.lookup(torch.from_numpy(self.questions.rows[numbers, 2]).to(self.device))
        return _Slots(
            row=torch.arange(start, stop, device=self.device),
            steps=torch.zeros(len(numbers), dtype=torch.int64, device=self.device),
            state=self.network.initial_state(*inputs.shape),
            embedded=self.network.embed(
                torch.from_numpy(inputs).to(self.device, torch.int64),
                vectors,
                None if positions is None else torch.from_numpy(positions).to(self.device),
            ),
        )

    def _answers(
        self, group: _Group, slots: _Slots, out: SegmentOutput, answered: Tensor, done: Tensor
    ) -> list[_Answer]:
        rows = slots.row[answered].cpu().numpy()
        tokens = out.logits[answered].argmax(-1).to(torch.uint8).cpu().numpy()
        boards = tokens
        if group.boxes is not None:
            # Of a window, what is beyond its rectangle is no part of an answer.
            height, width = group.boxes[rows].T
            beyond = np.arange(group.length) >= (height * width)[:, None]
            boards = np.full((len(rows), self.canvas**2), PAD, dtype=np.uint8)
            corner = np.zeros(len(rows), dtype=np.int64)
            positions = window_positions(
                corner, corner, height, width, length=group.length, canvas=self.canvas
            )
            np.put_along_axis(boards, positions, np.where(beyond, PAD, tokens), axis=1)
        columns = (
            group.rows[rows].tolist(),
            boards,
            torch.sigmoid(out.q_halt[answered]).float().tolist(),
            (slots.steps[answered] + 1).tolist(),
            done[answered].tolist(),
        )
        return [_Answer(*entry) for entry in zip(*columns, strict=True)]


def _to_columns(questions: Questions, answers: Sequence[_Answer]) -> Answers:
    number = np.array([answer.number for answer in answers])
    asked = questions.take(number)
    puzzles, evaluated = asked.puzzles, np.array(asked.evaluated)
    position, test_index, puzzle_id = asked.rows.T
    tokens = np.stack([answer.board for answer in answers])
    sizes = decode_sizes(tokens)
    side = canvas_side(tokens.shape[1])
    boards = tokens.reshape(-1, side, side)
    row, column = np.arange(side)[None, :, None], np.arange(side)[None, None, :]
    inside = (row < sizes[:, 0, None, None]) & (column < sizes[:, 1, None, None])
    predictions = Predictions(
        tasks=tuple(puzzles.tasks[t] for t in asked.evaluated),
        task=position.astype(np.int32),
        test_index=test_index.astype(np.int16),
        vote=(puzzle_id - puzzles.offsets[evaluated[position]]).astype(np.int32),
        dihedral=puzzles.dihedral[puzzle_id],
        colors=puzzles.colors[puzzle_id],
        height=sizes[:, 0].astype(np.uint8),
        width=sizes[:, 1].astype(np.uint8),
        cells=boards[inside] - FIRST_COLOR,
        halt=np.array([answer.halt for answer in answers], dtype=np.float32),
        segments=np.array([answer.segments for answer in answers], dtype=np.int16),
        final=np.array([answer.final for answer in answers]),
    )
    return Answers(number, predictions)


@torch.inference_mode()
def held_out_losses(
    network: HRM,
    lookup: Lookup,
    questions: Questions,
    *,
    canvas: int,
    batch_size: int,
    device: torch.device,
    window: Window = "full",
) -> Float[np.ndarray, " n"]:
    """Token loss of every row after all segments, with outputs that are known, at offset (0, 0).

    With ``window=task`` a row is the window that its pair needs, as in training.
    """
    losses = np.zeros(len(questions))
    whole = _Group(np.arange(len(questions)), None, canvas**2)
    groups = [whole] if window == "full" else window_groups(questions, canvas, known=True)
    for group in groups:
        for start in range(0, len(group.rows), batch_size):
            numbers = group.rows[start : start + batch_size]
            positions = group.positions(start, start + len(numbers), canvas)
            boards = [
                np.stack([questions.encode(int(n), canvas, part) for n in numbers])
                for part in ("input", "output")
            ]
            if positions is not None:
                boards = [np.take_along_axis(board, positions, axis=1) for board in boards]
            inputs, labels = (torch.from_numpy(b).to(device, torch.int64) for b in boards)
            vectors = lookup(torch.from_numpy(questions.rows[numbers, 2]).to(device))
            where = None if positions is None else torch.from_numpy(positions).to(device)
            embedded = network.embed(inputs, vectors, where)
            out = network.segment(network.initial_state(*inputs.shape), embedded)
            for _ in range(network.config.halt_max_steps - 1):
                out = network.segment(out.state, embedded)
            losses[numbers] = token_loss(out.logits, labels).double().cpu().numpy()
    return losses
