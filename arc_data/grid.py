"""Grids: what is a legal one, and what makes two of them equal.

A grid is a (height, width) array of colors 0..9, 1 to 30 cells a side.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import UInt8

Grid = UInt8[np.ndarray, "_ _"]  # (height, width)

NUM_COLORS = 10
MAX_SIDE = 30
GRID_TOO_LARGE = "got a grid that is too large"


def grid_problems(value: Any, where: str) -> Iterator[str]:
    """Everything that keeps the value of a JSON file from being a grid, one line each.

    A line names ``where``, the row and column (from 0) and what was expected. A grid that is only
    too large is one line, which has ``GRID_TOO_LARGE`` in it.
    """
    height, width = _sides(value)
    if max(height, width) > MAX_SIDE:
        yield (
            f"{where}: expected 1 to {MAX_SIDE} rows and columns, {GRID_TOO_LARGE}: {height} x "
            f"{width}"
        )
        return
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_SIDE:
        yield f"{where}: expected a list of 1 to {MAX_SIDE} rows, got {shown(value)}"
        return
    for r, row in enumerate(value):
        if not isinstance(row, list) or not 1 <= len(row) <= MAX_SIDE:
            yield (f"{where}, row {r}: expected a list of 1 to {MAX_SIDE} cells, got {shown(row)}")
            continue
        if isinstance(value[0], list) and len(row) != len(value[0]):
            yield (f"{where}, row {r}: expected {len(value[0])} cells as in row 0, got {len(row)}")
        for c, cell in enumerate(row):
            # bool is a subclass of int, and numpy would round 1.5 to 1
            if type(cell) is not int or not 0 <= cell < NUM_COLORS:
                yield (
                    f"{where}, row {r}, column {c}: expected an integer 0..{NUM_COLORS - 1}, "
                    f"got {shown(cell)}"
                )


def _sides(value: Any) -> tuple[int, int]:
    """Return rows and longest row of lists of lists; zeros of anything else."""
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        return 0, 0
    return len(value), max(map(len, value), default=0)


def to_grid(value: list[list[int]]) -> Grid:
    """The grid of a value without :func:`grid_problems`."""
    return np.array(value, dtype=np.uint8)


def grid_key(grid: Grid) -> tuple[tuple[int, ...], bytes]:
    """A grid's identity: shape and bytes (a 1 x 4 and a 2 x 2 grid can have equal bytes)."""
    return grid.shape, grid.astype(np.uint8).tobytes()


def shown(value: Any) -> str:
    """A short, printable form of any value of a JSON file."""
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = ascii(value)
    return text if len(text) <= 40 else text[:37] + "..."
