"""Training batches as a pure function of (seed, step).

Examples form one endless stream. An epoch permutes the tasks; each contributes one of its puzzles,
drawn at random, with all its pairs in random order (HRM). One pair of each puzzle sits at offset
(0, 0), the others at a random offset that keeps input and output on the canvas. Batch ``step`` is
examples ``step * B`` to ``(step + 1) * B`` of the stream, so no loader state exists, and any number
of ranks slices the same batches.

Nothing is built on disk. Every grid is kept once per dihedral move, with its EOS marks, as tokens
and as positions on a board; a batch is a gather of tokens, a color table lookup and a scatter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Int64, UInt8, UInt16

from arc_data.augment import NUM_DIHEDRAL, is_turned, move_grid
from arc_data.canvas import EOS, FIRST_COLOR, PAD, VOCAB_SIZE, encode_grid
from arc_data.grid import Grid
from arc_data.puzzles import PuzzleSet
from arc_data.task import Pair

STREAM = 0  # keeps these draws apart from other uses of the run's seed


@dataclass(frozen=True, kw_only=True)
class TokenBatch:
    """Examples as tokens; input and output of a pair share their offset."""

    inputs: UInt8[np.ndarray, "batch seq"]
    labels: UInt8[np.ndarray, "batch seq"]
    puzzle_ids: Int64[np.ndarray, " batch"]
    positions: Int64[np.ndarray, "batch seq"] | None = None  # of a window; None: the whole canvas


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Which pair, under which puzzle, where on the canvas."""

    pair: Int64[np.ndarray, " examples"]  # number of the pair among all that train
    puzzle_id: Int64[np.ndarray, " examples"]
    top: Int64[np.ndarray, " examples"]
    left: Int64[np.ndarray, " examples"]

    def __getitem__(self, rows: slice | Int64[np.ndarray, " taken"]) -> "Examples":
        return Examples(
            pair=self.pair[rows],
            puzzle_id=self.puzzle_id[rows],
            top=self.top[rows],
            left=self.left[rows],
        )


def concatenate_epochs(
    epoch: Callable[[int], Examples], examples_per_epoch: int, first: int, end: int
) -> Examples:
    """Examples ``first`` to ``end - 1`` of the endless stream of epochs."""
    parts = []
    while first < end:
        number, start = divmod(first, examples_per_epoch)
        part = epoch(number)[start : start + end - first]
        parts.append(part)
        first += len(part.pair)
    return Examples(
        **{
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("pair", "puzzle_id", "top", "left")
        }
    )


class MarkedGrids:
    """Grids under all moves with their EOS marks, as flat tokens and board positions.

    A board has one row and one column more than the canvas: marks that fall off the canvas land
    there, and no test for the edge is needed.
    """

    def __init__(self, grids: Sequence[Grid], canvas: int) -> None:
        self.stride = canvas + 1
        tokens, positions, sizes = [], [], []
        for grid in grids:
            for move in range(NUM_DIHEDRAL):
                moved = move_grid(grid, move)
                height, width = moved.shape
                marked = np.full((height + 1, width + 1), EOS, dtype=np.uint8)
                marked[:height, :width] = moved + FIRST_COLOR
                marked[height, width] = PAD
                rows, columns = np.indices(marked.shape, dtype=np.uint16)
                tokens.append(marked.reshape(-1))
                positions.append((rows * self.stride + columns).reshape(-1))
                sizes.append(marked.size)
        self.tokens: UInt8[np.ndarray, " cells"] = np.concatenate(tokens)
        self.positions: UInt16[np.ndarray, " cells"] = np.concatenate(positions)
        self.sizes = np.array(sizes)
        self.starts = np.cumsum(self.sizes) - self.sizes

    def render(
        self, number: np.ndarray, corner: np.ndarray, tables: UInt8[np.ndarray, "boards 12"]
    ) -> UInt8[np.ndarray, "boards seq"]:
        """Canvases of the grids ``number`` with their first cell at board position ``corner``."""
        num_boards, stride = len(number), self.stride
        size = self.sizes[number]
        end = np.cumsum(size)
        board = np.arange(num_boards)
        # In place and with int64 indices throughout: numpy would convert others once more.
        cell = np.repeat(self.starts[number] - end + size, size)
        cell += np.arange(end[-1])
        target = np.repeat(board * stride**2 + corner, size)
        target += self.positions.take(cell)
        recolored = np.repeat(board * VOCAB_SIZE, size)
        recolored += self.tokens.take(cell)
        boards = np.full(num_boards * stride**2, PAD, dtype=np.uint8)
        boards[target] = tables.take(recolored)
        canvas = boards.reshape(num_boards, stride, stride)[:, :-1, :-1]
        return canvas.reshape(num_boards, -1)


def mark_grids(training: Sequence[Sequence[Pair]], canvas: int) -> MarkedGrids:
    """Mark the grids of all training pairs, in order: input, then output."""
    return MarkedGrids(
        [grid for pairs in training for pair in pairs for grid in pair.grids], canvas
    )


class BatchStream:
    """The batches of a run.

    Args:
        puzzles: tasks and augmentations.
        training: per task of ``puzzles`` the pairs that train, each with an output.
        canvas: side of the canvas.
        global_batch_size: examples of a batch, over all ranks.
        seed: of the run.
        grids: :func:`mark_grids` of ``training`` on ``canvas``, where somebody has made it before.
    """

    def __init__(
        self,
        puzzles: PuzzleSet,
        *,
        training: Sequence[Sequence[Pair]],
        canvas: int,
        global_batch_size: int,
        seed: int,
        grids: MarkedGrids | None = None,
    ) -> None:
        self.puzzles = puzzles
        self.training = training
        self.pairs = [pair for pairs in training for pair in pairs]
        self.canvas = canvas
        self.global_batch_size = global_batch_size
        self.seed = seed
        self.examples_per_epoch = len(self.pairs)
        self._num_pairs = np.array([len(pairs) for pairs in training])
        self._first_pair = np.cumsum(self._num_pairs) - self._num_pairs
        # The box that holds input and output of each pair, before augmentation.
        self.boxes = np.array(
            [np.max([grid.shape for grid in pair.grids], axis=0) for pair in self.pairs]
        )
        self._grids = mark_grids(training, canvas) if grids is None else grids
        tables = np.empty((len(puzzles), VOCAB_SIZE), dtype=np.uint8)
        tables[:, :FIRST_COLOR] = (PAD, EOS)
        tables[:, FIRST_COLOR:] = puzzles.colors + FIRST_COLOR
        self._tables = tables
        self.epoch = lru_cache(maxsize=2)(self._draw_epoch)  # the examples of epoch 0, 1, ...

    def batches(self, step: int, *, rank: int = 0, world_size: int = 1) -> tuple[TokenBatch]:
        """:meth:`batch` alone: all rows have the same length."""
        return (self.batch(step, rank=rank, world_size=world_size),)

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> TokenBatch:
        """Rank ``rank``'s slice of the global batch of ``step`` (from 0)."""
        num_rows = self.global_batch_size // world_size
        first = step * self.global_batch_size + rank * num_rows
        return self.render(self.examples(first, first + num_rows))

    def examples(self, first: int, end: int) -> Examples:
        """Examples ``first`` to ``end - 1`` of the stream."""
        return concatenate_epochs(self.epoch, self.examples_per_epoch, first, end)

    def render(self, examples: Examples) -> TokenBatch:
        """The tokens of some examples."""
        move = self.puzzles.dihedral[examples.puzzle_id]
        number = np.stack((2 * examples.pair, 2 * examples.pair + 1)) * NUM_DIHEDRAL + move
        corner = examples.top * (self.canvas + 1) + examples.left
        tables = self._tables[examples.puzzle_id]
        boards = self._grids.render(
            number.reshape(-1), np.tile(corner, 2), np.concatenate((tables, tables))
        )
        inputs, labels = boards.reshape(2, len(move), -1)
        return TokenBatch(inputs=inputs, labels=labels, puzzle_ids=examples.puzzle_id)

    def render_slowly(self, examples: Examples) -> TokenBatch:
        """The same as :meth:`render` by its definition, one grid at a time; for tests."""
        rows = []
        for i, pair_number in enumerate(examples.pair):
            augmentation = self.puzzles.augmentation(int(examples.puzzle_id[i]))
            offset = (int(examples.top[i]), int(examples.left[i]))
            rows.append(
                [
                    encode_grid(augmentation.apply(grid), self.canvas, offset)
                    for grid in self.pairs[pair_number].grids
                ]
            )
        inputs, labels = np.array(rows).transpose(1, 0, 2)
        return TokenBatch(inputs=inputs, labels=labels, puzzle_ids=examples.puzzle_id)

    def turn_boxes(
        self, boxes: Int64[np.ndarray, "examples 2"], puzzle_id: Int64[np.ndarray, " examples"]
    ) -> Int64[np.ndarray, "examples 2"]:
        """Heights and widths after each puzzle's move."""
        lies = is_turned(self.puzzles.dihedral[puzzle_id])
        return np.where(lies[:, None], boxes[:, ::-1], boxes)

    def _draw_epoch(self, number: int) -> Examples:
        rng = np.random.default_rng((self.seed, STREAM, number))
        order = rng.permutation(np.flatnonzero(self._num_pairs))
        count = self._num_pairs[order]
        first_puzzle, end_puzzle = self.puzzles.offsets[order], self.puzzles.offsets[order + 1]
        puzzle_id = np.repeat(rng.integers(first_puzzle, end_puzzle), count)

        # All pairs of a task in random order: sorted by a random number within their group.
        group = np.repeat(np.arange(len(order)), count)
        start = np.cumsum(count) - count
        shuffled = np.lexsort((rng.random(len(group)), group)) - np.repeat(start, count)
        pair = np.repeat(self._first_pair[order], count) + shuffled

        box = self.turn_boxes(self.boxes[pair], puzzle_id)
        offset = rng.integers(0, self.canvas - box + 1)
        offset[start] = 0  # the pairs are in random order, so any may be the first
        return Examples(pair=pair, puzzle_id=puzzle_id, top=offset[:, 0], left=offset[:, 1])
