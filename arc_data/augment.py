"""Symmetries of ARC grids: the eight dihedral moves and color permutations.

Every augmentation is a value with an exact inverse. The evaluator undoes it on a predicted grid, so
nothing is ever recovered by parsing a puzzle's name.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Integer, Shaped

from arc_data.grid import NUM_COLORS, Grid

IDENTITY_COLORS = tuple(range(NUM_COLORS))
NUM_DIHEDRAL = 8


def move_grid(grid: Shaped[np.ndarray, "_ _"], dihedral: int) -> Shaped[np.ndarray, "_ _"]:
    """Transpose if ``dihedral`` is 4 or more, then turn by ``dihedral % 4`` quarters, left."""
    return np.rot90(grid.T if dihedral >= 4 else grid, dihedral % 4)


def unmove_grid(grid: Shaped[np.ndarray, "_ _"], dihedral: int) -> Shaped[np.ndarray, "_ _"]:
    """Exact inverse of :func:`move_grid`, for an array of anything."""
    turned = np.rot90(grid, -(dihedral % 4))
    return turned.T if dihedral >= 4 else turned


def is_turned(dihedral: Integer[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Whether rows become columns under each move: a quarter turn or a transpose, not both."""
    return (dihedral % 2 == 1) ^ (dihedral >= NUM_DIHEDRAL // 2)


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Recolor, then transpose if asked, then turn 90 degrees left ``quarter_turns`` times.

    ``colors[c]`` is the color that replaces c. Black (0) stays black in every augmentation that a
    :class:`~arc_data.puzzles.PuzzleSet` draws.
    """

    colors: tuple[int, ...] = IDENTITY_COLORS
    transpose: bool = False
    quarter_turns: int = 0

    def __post_init__(self) -> None:
        if tuple(sorted(self.colors)) != IDENTITY_COLORS:
            raise ValueError(f"colors must permute 0..9, got {self.colors}")
        if not 0 <= self.quarter_turns < 4:
            raise ValueError(f"quarter_turns must be 0..3, got {self.quarter_turns}")

    @property
    def dihedral(self) -> int:
        """Number 0..7 of the move: 4 if transposed, plus the quarter turns."""
        return 4 * self.transpose + self.quarter_turns

    def apply(self, grid: Grid) -> Grid:
        return move_grid(np.array(self.colors, dtype=np.uint8)[grid], self.dihedral)

    def undo(self, grid: Grid) -> Grid:
        """Exact inverse: ``undo(apply(g))`` equals ``g`` for every grid."""
        return np.argsort(self.colors).astype(np.uint8)[unmove_grid(grid, self.dihedral)]


def from_dihedral(dihedral: int, colors: tuple[int, ...] = IDENTITY_COLORS) -> Augmentation:
    """The augmentation with move number ``dihedral`` (0..7)."""
    return Augmentation(colors=colors, transpose=dihedral >= 4, quarter_turns=dihedral % 4)
