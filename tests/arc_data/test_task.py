"""What a task file may hold, and what its error says."""

import numpy as np
import pytest

from arc_data.grid import grid_key, grid_problems
from arc_data.task import parse_task

PAIR = {"input": [[1, 0], [0, 2]], "output": [[3]]}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([[1, 2], [3]], "row 1: expected 2 cells as in row 0, got 1"),
        ([[1, 10]], "row 0, column 1: expected an integer 0..9, got 10"),
        ([[0], [-1]], "row 1, column 0: expected an integer 0..9, got -1"),
        ([[1.0]], "row 0, column 0: expected an integer 0..9, got 1.0"),
        ([[True]], "row 0, column 0: expected an integer 0..9, got True"),
        ([["1"]], "row 0, column 0: expected an integer 0..9, got '1'"),
        ([[None]], "row 0, column 0: expected an integer 0..9, got None"),
        ([], "expected a list of 1 to 30 rows, got a list of 0"),
        ([[]], "row 0: expected a list of 1 to 30 cells, got a list of 0"),
        ("12", "expected a list of 1 to 30 rows, got '12'"),
        (
            [[0] * 31] * 2,
            "expected 1 to 30 rows and columns, got a grid that is too large: 2 x 31",
        ),
        ([[0]] * 31, "expected 1 to 30 rows and columns, got a grid that is too large: 31 x 1"),
    ],
)
def test_a_wrong_grid_is_named_with_its_cell(value, message):
    start = ", " if message.startswith("row") else ": "
    assert list(grid_problems(value, "a.json, train pair 0, input")) == [
        f"a.json, train pair 0, input{start}{message}"
    ]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "expected an object with keys 'train' and 'test', got a list of 0"),
        ({"train": [PAIR]}, "expected key 'test' with a list of at least one pair"),
        ({"train": [], "test": [PAIR]}, "expected key 'train'"),
        ({"train": [{"input": [[1]]}], "test": [PAIR]}, "train pair 0: expected key 'output'"),
        ({"train": [PAIR], "test": [PAIR, {}]}, "test pair 1: expected key 'input' with a grid"),
    ],
)
def test_a_wrong_task_is_named_with_its_pair(value, message):
    with pytest.raises(ValueError, match=message):
        parse_task("t", value, "a.json")


def test_a_hidden_output_is_none_and_other_keys_are_ignored():
    task = parse_task("my_task_v2", {"train": [PAIR], "test": [{"input": [[1]]}], "name": 1}, "f")
    assert task.id == "my_task_v2"
    assert task.test[0].output is None
    assert task.max_side == 2
    assert task.visible_colors == (1, 2, 3)


def test_grids_with_equal_bytes_and_other_shapes_differ():
    flat = np.zeros((1, 4), dtype=np.uint8)
    assert grid_key(flat) != grid_key(flat.reshape(2, 2))
    assert grid_key(flat) == grid_key(flat.copy())
