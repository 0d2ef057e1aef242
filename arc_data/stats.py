"""What a collection of tasks holds, in numbers."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from arc_data.leaks import TrainingSet
from arc_data.puzzles import PuzzleSet
from arc_data.sources import Collection
from arc_data.task import Pair

QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True, kw_only=True)
class SourceStats:
    """What one source contributes, before anything is left out."""

    name: str
    licence: str
    sha256: str  # of ids and grids
    num_tasks: int


@dataclass(frozen=True, kw_only=True)
class SizeSpread:
    """Mean and quantiles of a count."""

    mean: float
    quantiles: dict[float, float]  # by share, of ``QUANTILES``

    def to_json(self) -> dict[str, float]:
        """Return the numbers by name: ``mean``, and a quantile such as ``q25``."""
        return {"mean": self.mean, **{f"q{round(100 * q)}": v for q, v in self.quantiles.items()}}

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:.0f}" for name, value in self.to_json().items())


@dataclass(frozen=True, kw_only=True)
class CollectionStats:
    """Counts, grid sizes and tokens of a collection.

    ``tokens_needed`` are those of the smallest rectangle at the canvas' origin that holds a pair's
    input, output and EOS marks; the canvas itself always has ``canvas**2``.
    """

    sources: tuple[SourceStats, ...]
    num_tasks: int
    num_evaluated_tasks: int
    num_training_pairs: int
    num_held_out_pairs: int
    num_hidden_outputs: int  # test pairs whose output is not known
    num_puzzles: int
    puzzles_per_task: SizeSpread
    grid_side: SizeSpread  # cells
    canvas: int  # cells of a side
    tokens_needed: SizeSpread  # a pair
    too_large: tuple[str, ...]  # ids that the canvas excludes
    repeated_ids: tuple[str, ...]  # ids left out, an earlier source has them

    @property
    def tokens(self) -> int:
        """Tokens of the canvas."""
        return self.canvas**2

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as plain containers."""
        return {
            "sources": [asdict(source) for source in self.sources],
            "num_tasks": self.num_tasks,
            "num_evaluated_tasks": self.num_evaluated_tasks,
            "num_training_pairs": self.num_training_pairs,
            "num_held_out_pairs": self.num_held_out_pairs,
            "num_hidden_outputs": self.num_hidden_outputs,
            "num_puzzles": self.num_puzzles,
            "puzzles_per_task": self.puzzles_per_task.to_json(),
            "grid_side": self.grid_side.to_json(),
            "canvas": self.canvas,
            "tokens": self.tokens,
            "tokens_needed": self.tokens_needed.to_json(),
            "too_large": list(self.too_large),
            "repeated_ids": list(self.repeated_ids),
        }

    def __str__(self) -> str:
        lines = [
            f"source    {source.name}: {source.num_tasks} tasks, {source.licence}, "
            f"sha256 {source.sha256[:16]}"
            for source in self.sources
        ]
        lines += [
            f"tasks     {self.num_tasks}, {self.num_evaluated_tasks} evaluated",
            f"pairs     {self.num_training_pairs} train, {self.num_held_out_pairs} held out, "
            f"{self.num_hidden_outputs} have no known output",
            f"puzzles   {self.num_puzzles:,}",
            f"canvas    {self.canvas} x {self.canvas}, {self.tokens} tokens",
            f"puzzles_per_task  {self.puzzles_per_task}",
            f"grid_side         {self.grid_side}",
            f"tokens_needed     {self.tokens_needed}",
            f"too_large         {_counted(self.too_large)}",
            f"repeated_ids      {_counted(self.repeated_ids)}",
        ]
        return "\n".join(lines)

    def show(self) -> None:
        """Print the numbers."""
        print(self)


def _counted(ids: Sequence[str]) -> str:
    return f"{len(ids)}: {' '.join(ids) or 'none'}"


def collection_stats(
    collection: Collection, training: TrainingSet, puzzles: PuzzleSet, *, canvas: int
) -> CollectionStats:
    """Count what a collection holds and trains."""
    pairs = [pair for task in collection.tasks for pair in task.train + task.test]
    sides = [side for pair in pairs for grid in pair.grids for side in grid.shape]
    return CollectionStats(
        sources=tuple(
            SourceStats(
                name=source.name,
                licence=source.licence,
                sha256=source.content_hash,
                num_tasks=len(source.tasks),
            )
            for source in collection.contributions
        ),
        num_tasks=len(collection.tasks),
        num_evaluated_tasks=len(collection.evaluated),
        num_training_pairs=sum(map(len, training)),
        num_held_out_pairs=sum(len(task.test) for task in collection.evaluated_tasks),
        num_hidden_outputs=sum(pair.output is None for pair in pairs),
        num_puzzles=len(puzzles),
        puzzles_per_task=_spread(np.diff(puzzles.offsets)),
        grid_side=_spread(sides),
        canvas=canvas,
        tokens_needed=_spread([needed_tokens(pair, canvas) for pair in pairs]),
        too_large=collection.too_large,
        repeated_ids=collection.repeated,
    )


def needed_tokens(pair: Pair, canvas: int) -> int:
    """Tokens of the rectangle that holds both grids and their EOS marks, cut at the canvas."""
    height, width = np.max([grid.shape for grid in pair.grids], axis=0)
    return int(min(height + 1, canvas) * min(width + 1, canvas))


def _spread(values: Sequence[int] | np.ndarray) -> SizeSpread:
    quantiles = np.quantile(values, QUANTILES)
    return SizeSpread(
        mean=float(np.mean(values)),
        quantiles={q: float(value) for q, value in zip(QUANTILES, quantiles, strict=True)},
    )
