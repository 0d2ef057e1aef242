"""HRM's puzzle names become the augmentations that they stand for."""

import numpy as np
import pytest

from arc_data.augment import Augmentation
from arc_data.hrm_names import BLANK, parse_identifiers, parse_name

GRID = np.array([[1, 2, 3], [4, 5, 6]], dtype=np.uint8)


@pytest.mark.parametrize(
    ("move", "expected"),
    [
        (0, [[1, 2, 3], [4, 5, 6]]),
        (1, [[3, 6], [2, 5], [1, 4]]),
        (2, [[6, 5, 4], [3, 2, 1]]),
        (3, [[4, 1], [5, 2], [6, 3]]),
        (4, [[3, 2, 1], [6, 5, 4]]),
        (5, [[4, 5, 6], [1, 2, 3]]),
        (6, [[1, 4], [2, 5], [3, 6]]),
        (7, [[6, 3], [5, 2], [4, 1]]),
    ],
)
def test_each_of_hrms_moves(move, expected):
    task_id, augmentation = parse_name(f"0a1d4ef5_t{move}_0123456789")
    assert task_id == "0a1d4ef5"
    np.testing.assert_array_equal(augmentation.apply(GRID), expected)


def test_the_color_map_says_what_replaces_each_color():
    _, augmentation = parse_name("x_t0_0213456789")
    np.testing.assert_array_equal(augmentation.apply(GRID), [[2, 1, 3], [4, 5, 6]])


@pytest.mark.parametrize(
    ("name", "task_id"),
    [
        ("my_task_v2", "my_task_v2"),
        ("my_t3_task_t3_0123456789", "my_t3_task"),
        ("a_t3_0123456789_t4_0123456789", "a_t3_0123456789"),
        ("a_t9_0123456789", "a_t9_0123456789"),
        ("a_t3_0000000000", "a_t3_0000000000"),
    ],
)
def test_an_id_with_underscores_stays_whole(name, task_id):
    assert parse_name(name)[0] == task_id


def test_rows_are_grouped_by_task_with_the_identity_first():
    names = [BLANK, "b_t3_0123456789", "a", "b", "a_t1_0213456789", "a_t1_0123456789"]
    puzzles = parse_identifiers(names)
    assert list(puzzles.saved) == ["b", "a"]
    assert puzzles.saved["a"] == ["0:0123456789", "1:0213456789", "1:0123456789"]
    assert puzzles.rows.tolist() == [3, 1, 2, 4, 5]
    assert puzzles.saved["b"][0] == "0:0123456789"
    assert parse_name("b")[1] == Augmentation()


def test_a_name_that_occurs_twice_is_refused():
    with pytest.raises(ValueError, match="row 2: 'a' occurs twice"):
        parse_identifiers([BLANK, "a", "a"])
