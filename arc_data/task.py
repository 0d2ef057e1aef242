"""Tasks: demonstration pairs and test pairs under an id."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from arc_data.grid import NUM_COLORS, Grid, grid_problems, shown, to_grid

Split = Literal["training", "evaluation"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """An input grid and the output asked for; ``output`` is None where it is not known."""

    input: Grid
    output: Grid | None

    @property
    def grids(self) -> tuple[Grid, ...]:
        return (self.input,) if self.output is None else (self.input, self.output)


class PlacedPair(NamedTuple):
    """A pair and where it stands: ``part`` is ``train`` or ``test``, ``number`` from 0."""

    task_id: str
    part: str
    number: int
    pair: Pair

    @property
    def place(self) -> tuple[str, str, int]:
        return self.task_id, self.part, self.number


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """One ARC-AGI task; the id is data, any string."""

    id: str
    split: Split
    train: tuple[Pair, ...]
    test: tuple[Pair, ...]

    def training_pairs(self, *, evaluated: bool) -> tuple["PlacedPair", ...]:
        """What may train: the demonstrations, and unless evaluated the test pairs with output."""
        parts = {"train": self.train, "test": () if evaluated else self.test}
        return tuple(
            PlacedPair(task_id=self.id, part=part, number=i, pair=pair)
            for part, pairs in parts.items()
            for i, pair in enumerate(pairs)
            if pair.output is not None
        )

    @cached_property
    def max_side(self) -> int:
        """The largest height or width of any grid."""
        return max(side for pair in self.train + self.test for g in pair.grids for side in g.shape)

    @cached_property
    def visible_grids(self) -> tuple[Grid, ...]:
        """What a solver may look at: the demonstrations and the test inputs, no test output."""
        demonstrations = tuple(grid for pair in self.train for grid in pair.grids)
        return demonstrations + tuple(pair.input for pair in self.test)

    @cached_property
    def visible_colors(self) -> tuple[int, ...]:
        """Colors other than black that occur in ``visible_grids``, ascending."""
        present = np.zeros(NUM_COLORS, dtype=bool)
        for grid in self.visible_grids:
            present[grid] = True
        return tuple(int(color) for color in np.flatnonzero(present) if color != 0)


class InvalidDataError(ValueError):
    """What is wrong with a file or folder: ``problems``, one line each; the text is the first."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        more = f" (and {len(self.problems) - 1} more problems)" if self.problems[1:] else ""
        super().__init__(self.problems[0] + more)


def task_problems(value: Any, where: str) -> Iterator[str]:
    """Everything that keeps the value of a JSON file from being a task, one line each."""
    if not isinstance(value, dict):
        yield f"{where}: expected an object with keys 'train' and 'test', got {shown(value)}"
        return
    for part in ("train", "test"):
        entries = value.get(part)
        if not isinstance(entries, list) or not entries:
            found = shown(entries) if part in value else "no such key"
            yield f"{where}: expected key {part!r} with a list of at least one pair, got {found}"
            continue
        for i, entry in enumerate(entries):
            yield from _pair_problems(entry, f"{where}, {part} pair {i}", hidden=part == "test")


def _pair_problems(entry: Any, where: str, *, hidden: bool) -> Iterator[str]:
    """Problems of one pair; the output of a test pair may be hidden (absent or null)."""
    if not isinstance(entry, dict):
        yield f"{where}: expected an object with keys 'input' and 'output', got {shown(entry)}"
        return
    for key in ("input", "output"):
        if key in entry and not (hidden and key == "output" and entry[key] is None):
            yield from grid_problems(entry[key], f"{where}, {key}")
        elif key == "input" or not hidden:
            yield f"{where}: expected key {key!r} with a grid, got no such key"


def parse_task(task_id: str, value: Any, where: str, split: Split = "training") -> Task:
    """A task from the object of a JSON file; keys other than ``train`` and ``test`` are ignored.

    Raises:
        InvalidDataError: naming ``where``, the pair and the cell, and what was expected.
    """
    problems = list(task_problems(value, where))
    if problems:
        raise InvalidDataError(problems)
    return Task(
        id=task_id,
        split=split,
        train=tuple(map(_to_pair, value["train"])),
        test=tuple(map(_to_pair, value["test"])),
    )


def _to_pair(entry: dict[str, Any]) -> Pair:
    output = entry.get("output")
    return Pair(input=to_grid(entry["input"]), output=None if output is None else to_grid(output))


def to_json(task: Task) -> dict[str, Any]:
    """The object that :func:`parse_task` reads; a hidden output is left out."""

    def entry(pair: Pair) -> dict[str, Any]:
        grids = {"input": pair.input, "output": pair.output}
        return {name: grid.tolist() for name, grid in grids.items() if grid is not None}

    return {"train": [*map(entry, task.train)], "test": [*map(entry, task.test)]}
