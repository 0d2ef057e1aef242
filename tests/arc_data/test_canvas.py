"""Grid -> tokens -> grid, for every size and offset; and the crop that a recorded voter makes."""

import numpy as np
import pytest

from arc_data.canvas import (
    EOS,
    PAD,
    VOCAB_SIZE,
    canvas_side,
    decode_grid,
    decode_sizes,
    encode_grid,
)


def test_the_tokens_of_a_small_grid():
    grid = np.array([[0, 9], [3, 1]], dtype=np.uint8)
    board = encode_grid(grid, 4, (1, 1)).reshape(4, 4)
    assert board.tolist() == [
        [PAD, PAD, PAD, PAD],
        [PAD, 2, 11, EOS],
        [PAD, 5, 3, EOS],
        [PAD, EOS, EOS, PAD],
    ]
    assert VOCAB_SIZE == 12


def test_eos_falls_off_the_canvas_at_its_edge():
    board = encode_grid(np.zeros((2, 3), dtype=np.uint8), 3, (1, 0)).reshape(3, 3)
    assert board.tolist() == [[PAD] * 3, [2] * 3, [2] * 3]


def test_every_size_at_every_offset_round_trips():
    canvas, rng = 7, np.random.default_rng(0)
    for height in range(1, canvas + 1):
        for width in range(1, canvas + 1):
            grid = rng.integers(0, 10, (height, width), dtype=np.uint8)
            for top in range(canvas - height + 1):
                for left in range(canvas - width + 1):
                    board = encode_grid(grid, canvas, (top, left)).reshape(canvas, canvas)
                    shifted = np.full((canvas, canvas), PAD, dtype=np.uint8)
                    shifted[: canvas - top, : canvas - left] = board[top:, left:]
                    np.testing.assert_array_equal(decode_grid(shifted.reshape(-1)), grid)
                    assert (board >= 2).sum() == grid.size  # nothing else is a color


def test_a_30_by_30_grid_fills_the_canvas():
    grid = np.random.default_rng(0).integers(0, 10, (30, 30), dtype=np.uint8)
    np.testing.assert_array_equal(decode_grid(encode_grid(grid, 30)), grid)


@pytest.mark.parametrize("offset", [(-1, 0), (0, 3)])
def test_rejects_a_grid_that_leaves_the_canvas(offset):
    with pytest.raises(ValueError, match="not on a canvas of side 4"):
        encode_grid(np.zeros((2, 2), dtype=np.uint8), 4, offset)


def test_rejects_a_canvas_that_is_not_square():
    with pytest.raises(ValueError, match="square"):
        canvas_side(12)


def test_the_crop_finds_the_recorded_sizes(data_dir):
    with np.load(data_dir / "crop_cases.npz") as cases:
        tokens, expected = cases["tokens"], cases["height_width"]
    assert len(tokens) == 240
    np.testing.assert_array_equal(decode_sizes(tokens), expected)


def test_an_empty_prediction_is_an_empty_grid():
    assert decode_grid(np.full(9, EOS)).shape == (0, 0)
