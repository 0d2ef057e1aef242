"""Training batches as a pure function of (seed, step).

Examples form one endless stream. An epoch permutes the tasks; each contributes one of its puzzles,
drawn at random, with all its pairs in random order (HRM). One pair of each puzzle sits at offset
(0, 0), the others at a random offset that keeps input and output on the canvas. Batch ``step`` is
examples ``step * B`` to ``(step + 1) * B`` of the stream, so no loader state exists, and any number
of ranks slices the same batches.
"""

from collections.abc import Collection as Ids
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Int64, UInt8

from arc_data.canvas import encode_grid
from arc_data.puzzles import PuzzleSet
from arc_data.task import Pair, Task

STREAM = 0  # keeps these draws apart from other uses of the run's seed


@dataclass(frozen=True, kw_only=True)
class TokenBatch:
    """Examples as tokens; input and output of a pair share their offset."""

    inputs: UInt8[np.ndarray, "batch seq"]
    labels: UInt8[np.ndarray, "batch seq"]
    puzzle_ids: Int64[np.ndarray, " batch"]


def training_pairs(task: Task, *, evaluated: bool) -> tuple[Pair, ...]:
    """What of a task trains: demonstrations, and test pairs (with output) unless evaluated."""
    if evaluated:
        return task.train
    return task.train + tuple(pair for pair in task.test if pair.output is not None)


def count_training_pairs(tasks: Sequence[Task], evaluated: Ids[str]) -> int:
    """Examples of an epoch: every task contributes one puzzle with all its training pairs."""
    return sum(len(training_pairs(task, evaluated=task.id in evaluated)) for task in tasks)


@dataclass(frozen=True, kw_only=True)
class _Epoch:
    """Every example of one epoch, in order: which pair, which puzzle, where on the canvas."""

    task: Int64[np.ndarray, " examples"]
    pair: Int64[np.ndarray, " examples"]
    puzzle_id: Int64[np.ndarray, " examples"]
    top: Int64[np.ndarray, " examples"]
    left: Int64[np.ndarray, " examples"]


class BatchStream:
    """The batches of a run.

    Args:
        puzzles: tasks and augmentations.
        evaluated: ids of the tasks whose test pairs must not train.
        canvas: side of the canvas.
        global_batch_size: examples of a batch, over all ranks.
        seed: of the run.
    """

    def __init__(
        self,
        puzzles: PuzzleSet,
        *,
        evaluated: Ids[str],
        canvas: int,
        global_batch_size: int,
        seed: int,
    ) -> None:
        self.puzzles = puzzles
        self.canvas = canvas
        self.global_batch_size = global_batch_size
        self.seed = seed
        self._pairs = [training_pairs(t, evaluated=t.id in evaluated) for t in puzzles.tasks]
        self._num_pairs = np.array([len(pairs) for pairs in self._pairs])
        self.examples_per_epoch = int(self._num_pairs.sum())
        # The box that holds input and output of each pair, before augmentation.
        self._boxes = [
            np.array([np.max([grid.shape for grid in pair.grids], axis=0) for pair in pairs])
            for pairs in self._pairs
        ]
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> TokenBatch:
        """Rank ``rank``'s slice of the global batch of ``step`` (from 0)."""
        rows = np.arange(self.global_batch_size).reshape(world_size, -1)[rank]
        examples = [self._example(step * self.global_batch_size + int(row)) for row in rows]
        inputs, labels, puzzle_ids = zip(*examples, strict=True)
        return TokenBatch(
            inputs=np.stack(inputs), labels=np.stack(labels), puzzle_ids=np.array(puzzle_ids)
        )

    def _example(self, position: int) -> tuple[np.ndarray, np.ndarray, int]:
        number, i = divmod(position, self.examples_per_epoch)
        epoch = self._epoch(number)
        pair = self._pairs[epoch.task[i]][epoch.pair[i]]
        assert pair.output is not None
        puzzle_id = int(epoch.puzzle_id[i])
        augmentation = self.puzzles.augmentation(puzzle_id)
        offset = (int(epoch.top[i]), int(epoch.left[i]))
        inputs, labels = (
            encode_grid(augmentation.apply(grid), self.canvas, offset)
            for grid in (pair.input, pair.output)
        )
        return inputs, labels, puzzle_id

    def _draw_epoch(self, number: int) -> _Epoch:
        rng = np.random.default_rng((self.seed, STREAM, number))
        order = rng.permutation(len(self._pairs))
        counts = self._num_pairs[order]
        first_puzzle, end_puzzle = self.puzzles.offsets[order], self.puzzles.offsets[order + 1]
        puzzle_id = np.repeat(rng.integers(first_puzzle, end_puzzle), counts)
        task = np.repeat(order, counts)
        pair = np.concatenate([rng.permutation(count) for count in counts])

        box = np.concatenate([self._boxes[t] for t in order])
        first_example = np.cumsum(counts) - counts
        box = box[np.repeat(first_example, counts) + pair]
        turned = self.puzzles.dihedral[puzzle_id] % 4 % 2 == 1
        transposed = self.puzzles.dihedral[puzzle_id] >= 4
        box = np.where((turned ^ transposed)[:, None], box[:, ::-1], box)
        offset = rng.integers(0, self.canvas - box + 1)
        offset[first_example] = 0  # the pairs are in random order, so any may be the first
        return _Epoch(
            task=task, pair=pair, puzzle_id=puzzle_id, top=offset[:, 0], left=offset[:, 1]
        )
