"""Windows: training batches that hold a part of the canvas, with true positions.

A window covers a pair's input, its output and their EOS marks, and no less than what the task's
demonstrations let one expect of the output: as at evaluation, where the output is not known, so
that a window's size tells nothing that it would not tell there. It has the tokens of this rectangle
and, up to the length of its bucket, further cells of the canvas, which
are PAD; every token carries its position on the canvas. So a window is a sparse view of the same
canvas: same tokens, same positions, same loss; translation stays; what is left out is PAD.

Shapes are static. Pairs are sorted by tokens into a few buckets, each with a length and a fixed
number of the batch's slots, in proportion to its share of the pairs: bucket b of n_b slots has
n_b / B of them, to within one pair. That is a sampling order of its own: bucket b's stream is the
plain stream (batches.py) with the other buckets' pairs left out, and step s takes its examples
s n_b to (s + 1) n_b. It is a pure function of (seed, step), and any number of ranks that divides
the slots slices the same batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from jaxtyping import Int64

from arc_data.batches import BatchStream, Examples, TokenBatch, concatenate_epochs
from arc_data.grid import Grid
from arc_data.task import Pair

MAX_BUCKETS = 6
MAX_SHARES = 24  # slots come in this many equal shares, so that 2 to 24 ranks can split them
LENGTH_MULTIPLE = 8
OUTPUT_MARGIN = 3  # cells; 99 % of ARC-AGI-1 evaluation's outputs fit then


@dataclass(frozen=True, kw_only=True, eq=False)
class Buckets:
    """Lengths, slots of the global batch, and which bucket each pair is in."""

    lengths: tuple[int, ...]  # ascending
    slots: tuple[int, ...]
    of_pair: Int64[np.ndarray, " pairs"]

    @property
    def mean_length(self) -> float:
        """Tokens of an example, on average."""
        return sum(n * length for n, length in zip(self.slots, self.lengths, strict=True)) / sum(
            self.slots
        )


def needed_tokens(boxes: Int64[np.ndarray, "pairs 2"], canvas: int) -> Int64[np.ndarray, " pairs"]:
    """Tokens of the rectangle over the box and its EOS marks; a symmetry does not change them."""
    return np.minimum(boxes + 1, canvas).prod(axis=1)


def plan_buckets(
    needs: Int64[np.ndarray, " pairs"], *, global_batch_size: int, canvas: int
) -> Buckets:
    """At most ``MAX_BUCKETS`` buckets with the fewest tokens in all.

    Every bucket has at least one pair and one share of the slots.
    """
    num_shares = max(
        n for n in range(1, min(MAX_SHARES, global_batch_size) + 1) if global_batch_size % n == 0
    )
    order = np.argsort(needs, kind="stable")
    ends = np.round(np.arange(num_shares + 1) * len(needs) / num_shares).astype(int)

    def length(end: int) -> int:
        most = int(needs[order[ends[end] - 1]])
        return min(-(-most // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, canvas**2)

    # best[k][e]: least tokens of the first e shares in k buckets, and where the last one starts.
    best: list[dict[int, tuple[int, int]]] = [{0: (0, 0)}]
    for _ in range(MAX_BUCKETS):
        best.append(
            {
                end: min(
                    (cost + (end - start) * length(end), start)
                    for start, (cost, _) in best[-1].items()
                    if ends[start] < ends[end]
                )
                for end in range(1, num_shares + 1)
                if any(ends[start] < ends[end] for start in best[-1])
            }
        )
    num_buckets = min(
        (k for k in range(1, MAX_BUCKETS + 1) if num_shares in best[k]),
        key=lambda k: (best[k][num_shares][0], k),
    )
    cuts = [num_shares]
    for k in range(num_buckets, 0, -1):
        cuts.append(best[k][cuts[-1]][1])
    cuts.reverse()
    of_pair = np.empty(len(needs), dtype=np.int64)
    for bucket, (start, end) in enumerate(pairwise(cuts)):
        of_pair[order[ends[start] : ends[end]]] = bucket
    return Buckets(
        lengths=tuple(length(end) for end in cuts[1:]),
        slots=tuple(
            (end - start) * global_batch_size // num_shares for start, end in pairwise(cuts)
        ),
        of_pair=of_pair,
    )


def window_positions(
    top: np.ndarray,
    left: np.ndarray,
    height: np.ndarray,
    width: np.ndarray,
    *,
    length: int,
    canvas: int,
) -> Int64[np.ndarray, "windows length"]:
    """Canvas positions of windows: the rectangle row by row, then the first cells outside it.

    Rectangles are cut off at the canvas' edge; each must have at most ``length`` cells then.
    """
    top, left = top[:, None], left[:, None]
    height = np.minimum(height[:, None], canvas - top)
    width = np.minimum(width[:, None], canvas - left)
    number = np.arange(length)
    inside = (top + number // width) * canvas + left + number % width
    # Cell q outside: the rows above, then what is beside the rectangle, then the rows below.
    q = number - height * width
    beside = q - top * canvas
    free = np.maximum(canvas - width, 1)
    column = beside % free
    row = beside // free
    in_rows = (top + row) * canvas + column + np.where(column < left, 0, width)
    below = q + height * width
    outside = np.where(beside < 0, q, np.where(beside < height * (canvas - width), in_rows, below))
    return np.where(number < height * width, inside, outside)


class WindowedStream:
    """The batches of a run as windows, a batch per bucket.

    Args:
        stream: the plain stream, on whole canvases.

    Raises:
        ValueError: if its ranks can't share the slots of every bucket evenly.
    """

    def __init__(self, stream: BatchStream) -> None:
        self.stream = stream
        expected = [expected_box(pairs, pair.input) for pairs in stream.training for pair in pairs]
        self._boxes = np.minimum(np.maximum(stream.boxes, np.array(expected)), stream.canvas)
        needs = needed_tokens(self._boxes, stream.canvas)
        self.buckets = plan_buckets(
            needs, global_batch_size=stream.global_batch_size, canvas=stream.canvas
        )
        self._num_pairs = np.bincount(self.buckets.of_pair, minlength=len(self.buckets.lengths))
        self._epoch = lru_cache(maxsize=4)(self._split_epoch)

    @property
    def examples_per_epoch(self) -> int:
        return self.stream.examples_per_epoch

    def batches(self, step: int, *, rank: int = 0, world_size: int = 1) -> tuple[TokenBatch, ...]:
        """Rank ``rank``'s slice of each bucket's part of the global batch of ``step`` (from 0)."""
        parts = []
        for bucket, slots in enumerate(self.buckets.slots):
            if slots % world_size:
                raise ValueError(
                    f"window=task gives {slots} of the {self.stream.global_batch_size} rows of a "
                    f"batch to one length, which {world_size} ranks can't share evenly"
                )
            num_rows = slots // world_size
            first = step * slots + rank * num_rows
            parts.append(self._render(bucket, self.examples(bucket, first, first + num_rows)))
        return tuple(parts)

    def examples(self, bucket: int, first: int, end: int) -> Examples:
        """Examples ``first`` to ``end - 1`` of a bucket's stream."""
        return concatenate_epochs(
            lambda number: self._epoch(number)[bucket], int(self._num_pairs[bucket]), first, end
        )

    def _split_epoch(self, number: int) -> Sequence[Examples]:
        """Each bucket's examples of an epoch, in the epoch's order."""
        examples = self.stream.epoch(number)
        of_example = self.buckets.of_pair[examples.pair]
        return [
            examples[np.flatnonzero(of_example == bucket)]
            for bucket in range(len(self.buckets.lengths))
        ]

    def _render(self, bucket: int, examples: Examples) -> TokenBatch:
        whole = self.stream.render(examples)
        boxes = self.stream.turn_boxes(self._boxes[examples.pair], examples.puzzle_id)
        height, width = (boxes + 1).T
        positions = window_positions(
            examples.top,
            examples.left,
            height,
            width,
            length=self.buckets.lengths[bucket],
            canvas=self.stream.canvas,
        )
        return replace(
            whole,
            inputs=np.take_along_axis(whole.inputs, positions, axis=1),
            labels=np.take_along_axis(whole.labels, positions, axis=1),
            positions=positions,
        )


def expected_box(demonstrations: Sequence[Pair], test_input: Grid) -> tuple[int, int]:
    """Height and width that should cover an input and its output, judging by demonstrations.

    If all demonstrated outputs are as large as their inputs, so should this one be; if all have one
    size, it should have it; otherwise no side should be longer than the longest seen plus a margin.
    """
    height, width = test_input.shape
    shapes = [(p.input.shape, p.output.shape) for p in demonstrations if p.output is not None]
    if all(before == after for before, after in shapes):
        return height, width
    outputs = {after for _, after in shapes}
    if len(outputs) == 1:
        (only,) = outputs
        return max(height, only[0]), max(width, only[1])
    side = max(max(after) for _, after in shapes) + OUTPUT_MARGIN
    return max(height, side), max(width, side)
