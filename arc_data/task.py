"""Tasks: demonstration pairs and test pairs under an id."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from arc_data.grid import NUM_COLORS, Grid, parse_grid


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """An input grid and the output asked for; ``output`` is None where it is not known."""

    input: Grid
    output: Grid | None

    @property
    def grids(self) -> tuple[Grid, ...]:
        return (self.input,) if self.output is None else (self.input, self.output)


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """One ARC-AGI task; the id is data, any string."""

    id: str
    train: tuple[Pair, ...]
    test: tuple[Pair, ...]

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


def parse_task(task_id: str, value: Any, where: str) -> Task:
    """A task from the object of a JSON file; keys other than ``train`` and ``test`` are ignored.

    Raises:
        ValueError: naming ``where``, the pair and the cell, and what was expected.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object with keys train and test")
    return Task(
        id=task_id,
        train=_parse_pairs(value, "train", where, needs_output=True),
        test=_parse_pairs(value, "test", where, needs_output=False),
    )


def _parse_pairs(
    value: dict[str, Any], part: str, where: str, *, needs_output: bool
) -> tuple[Pair, ...]:
    entries = value.get(part)
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{where}: expected key {part!r} with a list of at least one pair")
    pairs = []
    for i, entry in enumerate(entries):
        here = f"{where}, {part} pair {i}"
        if not isinstance(entry, dict) or "input" not in entry:
            raise ValueError(f"{here}: expected an object with key 'input'")
        output = entry.get("output")
        if output is None and needs_output:
            raise ValueError(f"{here}: expected key 'output' with a grid")
        pairs.append(
            Pair(
                input=parse_grid(entry["input"], f"{here}, input"),
                output=None if output is None else parse_grid(output, f"{here}, output"),
            )
        )
    return tuple(pairs)
