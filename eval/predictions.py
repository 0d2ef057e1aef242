"""Predictions as columns, and their file.

One row is the prediction for one test pair under one augmentation. Grids are cropped and still
augmented: undoing and counting is the vote's work, so a file can be voted again without a model.

    task_ids       JSON list of the task ids; ``task`` indexes it
    task           (n,)  which task
    test_index     (n,)  which test pair of the task
    vote           (n,)  which of the task's augmentations, 0 is the identity
    dihedral       (n,)  the augmentation's move
    colors         (n, 10)  its color map
    height, width  (n,)  size of the predicted grid; 0 x 0 where the canvas held none
    cells          (sum of height * width,)  the grids, row by row, one after another
    halt           (n,)  probability that the answer is right, by the halt head
    segments       (n,)  segments run
"""

import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from jaxtyping import Float, Integer, UInt8

from arc_data.augment import from_dihedral
from arc_data.grid import Grid


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """The columns; see the module's text."""

    task_ids: tuple[str, ...]
    task: Integer[np.ndarray, " n"]
    test_index: Integer[np.ndarray, " n"]
    vote: Integer[np.ndarray, " n"]
    dihedral: UInt8[np.ndarray, " n"]
    colors: UInt8[np.ndarray, "n 10"]
    height: UInt8[np.ndarray, " n"]
    width: UInt8[np.ndarray, " n"]
    cells: UInt8[np.ndarray, " cells"]
    halt: Float[np.ndarray, " n"]
    segments: UInt8[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.task)

    def grids(self) -> Iterator[Grid]:
        """The predicted grids in row order, with their augmentation undone."""
        sizes = self.height.astype(np.int64) * self.width
        ends = np.cumsum(sizes)
        for i, (start, end) in enumerate(zip(ends - sizes, ends, strict=True)):
            grid = self.cells[start:end].reshape(self.height[i], self.width[i])
            colors = tuple(int(c) for c in self.colors[i])
            yield from_dihedral(int(self.dihedral[i]), colors).undo(grid)

    def save(self, path: Path) -> None:
        """Write an ``.npz``, atomically."""
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        columns["task_ids"] = np.array(json.dumps(self.task_ids))
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        with partial.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **columns)
        partial.rename(path)


def load_predictions(path: Path) -> Predictions:
    """Read what ``save`` wrote.

    Raises:
        ValueError: if the file is not there or is not one.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            columns = {f.name: file[f.name] for f in fields(Predictions)}
        columns["task_ids"] = tuple(json.loads(str(columns["task_ids"])))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: not a predictions file ({error})") from error
    return Predictions(**columns)
