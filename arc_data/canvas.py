"""Grids as tokens on a square canvas, and back.

PAD 0, EOS 1, color c -> c + 2. A grid of h x w at offset (r, c) fills its cells; EOS marks the row
below it (w cells) and the column right of it (h cells) where they are on the canvas.
"""

import numpy as np
from jaxtyping import Int64, Integer, UInt8

from arc_data.grid import NUM_COLORS, Grid

PAD, EOS, FIRST_COLOR = 0, 1, 2
VOCAB_SIZE = FIRST_COLOR + NUM_COLORS

Tokens = UInt8[np.ndarray, " seq"]


def encode_grid(grid: Grid, canvas: int, offset: tuple[int, int] = (0, 0)) -> Tokens:
    """The canvas of side ``canvas`` with ``grid`` at ``offset``, row by row.

    Raises:
        ValueError: if the grid is not wholly on the canvas.
    """
    (height, width), (top, left) = grid.shape, offset
    bottom, right = top + height, left + width
    if min(offset) < 0 or max(bottom, right) > canvas:
        raise ValueError(
            f"a {height} x {width} grid at {offset} is not on a canvas of side {canvas}"
        )
    board = np.full((canvas, canvas), PAD, dtype=np.uint8)
    board[top:bottom, left:right] = grid + FIRST_COLOR
    board[bottom : bottom + 1, left:right] = EOS
    board[top:bottom, right : right + 1] = EOS
    return board.reshape(-1)


def decode_sizes(tokens: Integer[np.ndarray, "batch seq"]) -> Int64[np.ndarray, "batch 2"]:
    """Height and width of the largest top-left rectangle of color tokens on each canvas.

    Among equally large ones the first found, scanning heights upwards, wins; (0, 0) if the first
    cell is no color.
    """
    side = canvas_side(tokens.shape[1])
    boards = tokens.reshape(-1, side, side)
    is_color = (boards >= FIRST_COLOR) & (boards < VOCAB_SIZE)
    run_length = np.logical_and.accumulate(is_color, axis=2).sum(axis=2)
    width = np.minimum.accumulate(run_length, axis=1)  # of the rectangle with this many rows
    area = width * np.arange(1, side + 1)
    best = area.argmax(axis=1)
    sizes = np.stack((best + 1, width[np.arange(len(boards)), best]), axis=1)
    return np.where(area.max(axis=1, keepdims=True) > 0, sizes, 0)


def decode_grid(tokens: Integer[np.ndarray, " seq"]) -> Grid:
    """The grid in the top-left corner of a canvas; empty (0 x 0) if there is none."""
    height, width = decode_sizes(tokens[None])[0]
    side = canvas_side(len(tokens))
    board = tokens.reshape(side, side)[:height, :width]
    return (board - FIRST_COLOR).astype(np.uint8)


def canvas_side(seq_len: int) -> int:
    """Side of the canvas with ``seq_len`` cells.

    Raises:
        ValueError: if ``seq_len`` is no square number.
    """
    side = round(seq_len**0.5)
    if side * side != seq_len:
        raise ValueError(f"a canvas is square, got {seq_len} tokens")
    return side
