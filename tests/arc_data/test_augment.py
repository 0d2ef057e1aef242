"""Every augmentation must be undone exactly; the vote depends on it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from arc_data.augment import NUM_DIHEDRAL, Augmentation, from_dihedral, move_grid

L_SHAPE = np.array([[1, 0, 0], [1, 2, 0]], dtype=np.uint8)  # no symmetry, not square

grids = st.tuples(st.integers(1, 30), st.integers(1, 30)).flatmap(
    lambda shape: arrays(np.uint8, shape, elements=st.integers(0, 9))
)
augmentations = st.builds(
    Augmentation,
    colors=st.permutations(range(10)).map(tuple),
    transpose=st.booleans(),
    quarter_turns=st.integers(0, 3),
)


@given(grids, augmentations)
def test_undo_reverses_apply(grid, augmentation):
    np.testing.assert_array_equal(augmentation.undo(augmentation.apply(grid)), grid)


def test_apply_recolors_then_transposes_then_turns_left():
    move = Augmentation(colors=(0, 5, 6, *range(3, 5), 1, 2, *range(7, 10)), transpose=True)
    np.testing.assert_array_equal(move.apply(L_SHAPE), [[5, 5], [0, 6], [0, 0]])
    turned = Augmentation(quarter_turns=1).apply(L_SHAPE)
    np.testing.assert_array_equal(turned, [[0, 0], [0, 2], [1, 1]])


def test_the_eight_moves_are_distinct():
    images = {(move_grid(L_SHAPE, d).shape, move_grid(L_SHAPE, d).tobytes()) for d in range(8)}
    assert len(images) == NUM_DIHEDRAL


@pytest.mark.parametrize("dihedral", range(NUM_DIHEDRAL))
def test_a_move_is_recovered_from_its_number(dihedral):
    move = from_dihedral(dihedral)
    assert move.dihedral == dihedral
    np.testing.assert_array_equal(move.apply(L_SHAPE), move_grid(L_SHAPE, dihedral))


def test_rejects_a_map_that_loses_a_color():
    with pytest.raises(ValueError, match="permute"):
        Augmentation(colors=(0,) * 10)


def test_rejects_a_fifth_quarter():
    with pytest.raises(ValueError, match=r"0\.\.3, got 4"):
        Augmentation(quarter_turns=4)
