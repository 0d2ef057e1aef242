"""Predictions as columns, and their file.

One row is the answer to one test pair under one augmentation. Grids are cropped and still
augmented: undoing and counting is the vote's work, so a file can be voted again without a model,
and it holds the tasks, so that it can be scored without their source. The entries of the ``.npz``:

    task           (n,)  which of ``tasks``
    test_index     (n,)  which test pair of the task
    vote           (n,)  which of the task's augmentations, 0 is the identity
    dihedral       (n,)  the augmentation's move
    colors         (n, 10)  the augmentation's color map
    height, width  (n,)  of the predicted grid; 0 x 0 if the prediction is empty
    cells          (sum of height * width,)  the predicted grids, one after another, row by row
    halt           (n,)  halt probability, float32
    segments       (n,)  segments that were run for this answer
    final          (n,)  true for the row's answer; false for what it would have answered after
                         ``segments`` segments, kept for the ladder over segments
    tasks          JSON text as bytes: the tasks in ARC's format, with ``id`` and ``split``
    about          JSON text as bytes: what was run (:class:`About`)
"""

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Integer, UInt8
from pydantic import Field

from arc_data.atomic import write_atomically
from arc_data.augment import NUM_DIHEDRAL, from_dihedral
from arc_data.grid import MAX_SIDE, NUM_COLORS, Grid
from arc_data.task import Task, parse_task, to_json
from eval.npz import MAX_ROWS, MAX_TEXT, NPZ_ERRORS, Expected, Npz
from eval.record import Record


class About(Record):
    """What was run: facts to read, and the key, which is equal for equal answers."""

    facts: dict[str, str | int | float | bool] = Field(default_factory=dict)
    key: dict[str, Any] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what every output says, such as test pairs that trained
    pooled: tuple["About", ...] = ()  # of an ensemble: what each of its files was

    @property
    def runs(self) -> tuple["About", ...]:
        """What was run, one by one."""
        return self.pooled or (self,)


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """The columns; see the module's text."""

    tasks: tuple[Task, ...]
    task: Integer[np.ndarray, " n"]
    test_index: Integer[np.ndarray, " n"]
    vote: Integer[np.ndarray, " n"]
    dihedral: UInt8[np.ndarray, " n"]
    colors: UInt8[np.ndarray, "n 10"]
    height: UInt8[np.ndarray, " n"]
    width: UInt8[np.ndarray, " n"]
    cells: UInt8[np.ndarray, " cells"]
    halt: Float[np.ndarray, " n"]
    segments: Integer[np.ndarray, " n"]
    final: Bool[np.ndarray, " n"]
    about: About = field(default_factory=About)

    def __len__(self) -> int:
        return len(self.task)

    @property
    def num_cells(self) -> Integer[np.ndarray, " n"]:
        """Cells of each predicted grid."""
        return self.height.astype(np.int64) * self.width

    def grids(self) -> Iterator[Grid]:
        """The predicted grids in row order, with their augmentation undone."""
        ends = np.cumsum(self.num_cells)
        for i, (start, end) in enumerate(zip(ends - self.num_cells, ends, strict=True)):
            grid = self.cells[start:end].reshape(self.height[i], self.width[i])
            colors = tuple(int(c) for c in self.colors[i])
            yield from_dihedral(int(self.dihedral[i]), colors).undo(grid)

    def take(self, rows: Integer[np.ndarray, " taken"]) -> "Predictions":
        """The rows with these numbers, in this order."""
        ends = np.cumsum(self.num_cells)
        sizes = self.num_cells[rows]
        # Cell j of the taken row that starts at s in the new column is cell (start + j) of the old.
        new_starts = np.cumsum(sizes) - sizes
        old_starts = (ends - self.num_cells)[rows]
        cells = self.cells[np.arange(sizes.sum()) + np.repeat(old_starts - new_starts, sizes)]
        columns = {name: getattr(self, name)[rows] for name in ROW_COLUMNS}
        return replace(self, cells=cells, **columns)

    def save(self, path: Path) -> None:
        """Write an ``.npz``, atomically."""
        columns = {name: getattr(self, name) for name in COLUMNS}
        entries = [{"id": task.id, "split": task.split, **to_json(task)} for task in self.tasks]
        columns["tasks"] = _to_bytes(entries)
        columns["about"] = np.frombuffer(self.about.to_json().encode("ascii"), dtype=np.uint8)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_npz(path, columns)


COLUMNS = tuple(f.name for f in fields(Predictions) if f.name not in ("tasks", "about"))
ROW_COLUMNS = tuple(name for name in COLUMNS if name != "cells")
EXPECTED = {
    **dict.fromkeys(("task", "test_index", "vote", "segments"), Expected("iu", 8)),
    **dict.fromkeys(("dihedral", "height", "width", "cells"), Expected("u", 1)),
    "colors": Expected("u", 1, (NUM_COLORS,)),
    "halt": Expected("f", 8),
    "final": Expected("b", 1),
}
TEXTS = {"tasks": Expected("u", 1), "about": Expected("u", 1)}


def join(parts: Sequence[Predictions]) -> Predictions:
    """The rows of all parts, which share their tasks."""
    columns = {name: np.concatenate([getattr(p, name) for p in parts]) for name in COLUMNS}
    return replace(parts[0], **columns)


def pool(several: Sequence[Predictions]) -> Predictions:
    """One ensemble of several evaluations: their voters count together.

    Raises:
        ValueError: if they have different tasks under one id.
    """
    tasks: dict[str, Task] = {}
    for task in (task for predictions in several for task in predictions.tasks):
        known = tasks.setdefault(task.id, task)
        if to_json(known) != to_json(task):
            raise ValueError(f"task {task.id}: the files to pool have different tasks of this id")
    number = {task_id: i for i, task_id in enumerate(tasks)}
    renumbered = [
        replace(p, task=np.array([number[t.id] for t in p.tasks], dtype=np.int32)[p.task])
        for p in several
    ]
    about = About(pooled=tuple(about for p in several for about in p.about.runs))
    return replace(join(renumbered), tasks=tuple(tasks.values()), about=about)


def replace_tasks(predictions: Predictions, tasks: Sequence[Task]) -> Predictions:
    """The predictions with the outputs of other tasks: solutions that have become known.

    Raises:
        ValueError: if a predicted task is not among them, or has other test inputs.
    """
    by_id = {task.id: task for task in tasks}
    for task in predictions.tasks:
        found = by_id.get(task.id)
        if found is None:
            raise ValueError(f"task {task.id}: predicted, but not an evaluated task of the data")
        inputs = [[pair.input.tolist() for pair in t.test] for t in (task, found)]
        if inputs[0] != inputs[1]:
            raise ValueError(f"task {task.id}: the data has other test inputs than the predictions")
    return replace(predictions, tasks=tuple(by_id[task.id] for task in predictions.tasks))


def load_predictions(path: Path) -> Predictions:
    """Read what ``save`` wrote.

    Raises:
        ValueError: if the file is not there, is not one, or answers something twice.
    """
    try:
        with closing(Npz(path, EXPECTED | TEXTS)) as file:
            columns = load_columns(file)
            if max(file.entries[name].shape[0] for name in TEXTS) > MAX_TEXT:
                raise ValueError("its texts are too long")
            entries = json.loads(file.load("tasks").tobytes())
            about = file.load("about").tobytes().decode("ascii")
        predictions = Predictions(
            tasks=tuple(_parse_entry(entry, str(path)) for entry in _listed(entries)),
            about=About.from_json(about, "about"),
            **columns,
        )
        _check_columns(predictions)
    except (*NPZ_ERRORS, RecursionError) as error:
        raise ValueError(f"{path}: not a predictions file ({error})") from error
    return predictions


def load_columns(file: Npz, *others: str) -> dict[str, np.ndarray]:
    """Load the columns, and ``others`` that have a value a row, once their sizes fit each other.

    Raises:
        ValueError: saying what is wrong.
    """
    rows = (*ROW_COLUMNS, *others)
    lengths = {name: file.entries[name].shape[0] for name in rows}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns of different lengths: {lengths}")
    if lengths["task"] > MAX_ROWS:
        raise ValueError(f"{lengths['task']:,} rows, more than the {MAX_ROWS:,} that are read")
    columns = {name: file.load(name) for name in rows}
    sides = (columns["height"].astype(np.int64), columns["width"].astype(np.int64))
    if max((int(side.max()) for side in sides if len(side)), default=0) > MAX_SIDE:
        raise ValueError(f"a grid of more than {MAX_SIDE} cells a side")
    if (sides[0] * sides[1]).sum() != file.entries["cells"].shape[0]:
        raise ValueError("cells do not fill the grids")
    return {**columns, "cells": file.load("cells")}


def _listed(entries: Any) -> list[Any]:
    if not isinstance(entries, list):
        raise ValueError("tasks are no list")
    return entries


def _parse_entry(entry: Any, where: str) -> Task:
    named = isinstance(entry, dict) and isinstance(entry.get("id"), str)
    if not named or entry.get("split") not in ("training", "evaluation"):
        raise ValueError("a task without id or split")
    return parse_task(entry["id"], entry, where, entry["split"])


def _check_columns(predictions: Predictions) -> None:
    """Refuse values that no evaluation writes.

    Raises:
        ValueError: saying what is wrong.
    """
    p = predictions
    if len(p.cells) and p.cells.max() >= NUM_COLORS:
        raise ValueError("cells of other colors than 0..9")
    if len(p) == 0:
        raise ValueError("no predictions")
    if len({task.id for task in p.tasks}) < len(p.tasks):
        raise ValueError("two tasks of one id")
    if ((p.height == 0) != (p.width == 0)).any():
        raise ValueError("a grid of no rows or no columns")
    if not (np.isfinite(p.halt).all() and p.halt.min() >= 0 and p.halt.max() <= 1):
        raise ValueError("a halt probability that is none")
    if p.segments.min() < 1:
        raise ValueError("an answer after no segment")
    if not p.final.any():
        raise ValueError("no row has its final answer")
    num_tests = np.array([len(task.test) for task in p.tasks])
    if p.task.min() < 0 or p.task.max() >= len(num_tests):
        raise ValueError("a row of no task")
    if (p.test_index < 0).any() or (p.test_index >= num_tests[p.task]).any() or p.vote.min() < 0:
        raise ValueError("a row of no test pair")
    if (
        p.dihedral.max() >= NUM_DIHEDRAL
        or (np.sort(p.colors, axis=1) != np.arange(NUM_COLORS)).any()
    ):
        raise ValueError("a row of no augmentation")
    key = np.where(p.final, 0, p.segments).astype(np.int64)
    for column in (p.vote, p.test_index, p.task):
        key = column + (int(column.max()) + 1) * key
    if len(np.unique(key)) < len(p):
        raise ValueError("two predictions for one test pair under one augmentation")


def _to_bytes(value: Any) -> UInt8[np.ndarray, " bytes"]:
    return np.frombuffer(json.dumps(value).encode("ascii"), dtype=np.uint8)


def write_npz(path: Path, columns: dict[str, np.ndarray]) -> None:
    """Write a compressed ``.npz``, atomically."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **columns)
    write_atomically(path, buffer.getvalue())
