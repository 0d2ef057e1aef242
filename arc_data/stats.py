"""What a collection of tasks holds, in numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from arc_data.leaks import TrainingSet
from arc_data.puzzles import PuzzleSet
from arc_data.sources import Collection
from arc_data.task import Pair

QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)


def collection_stats(
    collection: Collection, training: TrainingSet, puzzles: PuzzleSet, *, canvas: int
) -> dict[str, Any]:
    """Counts, grid sizes and tokens of a collection; the content of ``data.py stats``.

    ``tokens_needed`` are those of the smallest rectangle at the canvas' origin that holds a pair's
    input, output and EOS marks; the canvas itself always has ``canvas**2``.
    """
    pairs = [pair for task in collection.tasks for pair in task.train + task.test]
    sides = [side for pair in pairs for grid in pair.grids for side in grid.shape]
    return {
        "sources": [
            {
                "name": part.name,
                "licence": part.licence,
                "sha256": part.content_hash,
                "num_tasks": len(part.tasks),
            }
            for part in collection.parts
        ],
        "num_tasks": len(collection.tasks),
        "num_evaluated_tasks": len(collection.evaluated),
        "num_training_pairs": sum(map(len, training)),
        "num_held_out_pairs": sum(len(task.test) for task in collection.evaluated_tasks),
        "num_hidden_outputs": sum(pair.output is None for pair in pairs),
        "num_puzzles": len(puzzles),
        "puzzles_per_task": _spread(np.diff(puzzles.offsets)),
        "grid_side": _spread(sides),
        "canvas": canvas,
        "tokens": canvas**2,
        "tokens_needed": _spread([needed_tokens(pair, canvas) for pair in pairs]),
        "too_large": list(collection.too_large),
        "repeated_ids": list(collection.repeated),
    }


def needed_tokens(pair: Pair, canvas: int) -> int:
    """Tokens of the rectangle that holds both grids and their EOS marks, cut at the canvas."""
    height, width = np.max([grid.shape for grid in pair.grids], axis=0)
    return int(min(height + 1, canvas) * min(width + 1, canvas))


def _spread(values: Sequence[int] | np.ndarray) -> dict[str, float]:
    quantiles = np.quantile(values, QUANTILES)
    named = {f"q{round(100 * q)}": float(v) for q, v in zip(QUANTILES, quantiles, strict=True)}
    return {"mean": float(np.mean(values)), **named}
