"""Windows show the same pairs at the same positions, in batches whose mixture is the data's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arc_data import sources
from arc_data.batches import BatchStream
from arc_data.canvas import PAD
from arc_data.puzzles import build_puzzles
from arc_data.task import parse_task
from arc_data.windows import (
    MAX_BUCKETS,
    WindowedStream,
    expected_box,
    needed_tokens,
    plan_buckets,
    window_positions,
)

CANVAS = 10


@pytest.fixture(scope="module")
def stream(data_config):
    collection = sources.load(data_config(canvas=6))
    return BatchStream(
        build_puzzles(collection.tasks, num_aug=4, seed=0),
        training=[task.train for task in collection.tasks],
        canvas=CANVAS,
        global_batch_size=48,
        seed=3,
    )


@given(st.data())
def test_a_window_holds_its_rectangle_and_no_cell_twice(data):
    canvas = data.draw(st.integers(1, 12))
    top, left = (data.draw(st.integers(0, canvas - 1)) for _ in range(2))
    height, width = (data.draw(st.integers(1, canvas + 1)) for _ in range(2))
    cells = {
        r * canvas + c
        for r in range(top, min(top + height, canvas))
        for c in range(left, min(left + width, canvas))
    }
    length = data.draw(st.integers(len(cells), canvas**2))
    arrays = (np.array([value]) for value in (top, left, height, width))
    (positions,) = window_positions(*arrays, length=length, canvas=canvas)
    assert len(set(positions.tolist())) == length
    assert set(positions[: len(cells)].tolist()) == cells
    assert positions.min() >= 0
    assert positions.max() < canvas**2


def test_windows_are_the_plain_canvases_with_pad_left_out(stream):
    windowed = WindowedStream(stream)
    for step in range(3):
        for bucket, batch in enumerate(windowed.batches(step)):
            slots = windowed.buckets.slots[bucket]
            assert batch.inputs.shape == (slots, windowed.buckets.lengths[bucket])
            examples = windowed.examples(bucket, step * slots, (step + 1) * slots)
            whole = stream.render(examples)
            for tokens, expected in ((batch.inputs, whole.inputs), (batch.labels, whole.labels)):
                boards = np.full_like(expected, PAD)
                np.put_along_axis(boards, batch.positions, tokens, axis=1)
                np.testing.assert_array_equal(boards, expected)
            np.testing.assert_array_equal(batch.puzzle_ids, examples.puzzle_id)


def test_an_epoch_of_windows_has_every_pair_once(stream):
    windowed = WindowedStream(stream)
    num_pairs = np.bincount(windowed.buckets.of_pair)
    for epoch in range(2):
        seen = [
            windowed.examples(bucket, epoch * int(n), (epoch + 1) * int(n)).pair
            for bucket, n in enumerate(num_pairs)
        ]
        assert sorted(np.concatenate(seen)) == list(range(len(stream.pairs)))


def test_any_ranks_see_the_same_batches(stream):
    windowed = WindowedStream(stream)
    whole = windowed.batches(5)
    shares = [windowed.batches(5, rank=rank, world_size=2) for rank in range(2)]
    for bucket, batch in enumerate(whole):
        for name in ("inputs", "labels", "puzzle_ids", "positions"):
            joined = np.concatenate([getattr(share[bucket], name) for share in shares])
            np.testing.assert_array_equal(joined, getattr(batch, name))
    with pytest.raises(ValueError, match="which 32 ranks can't share evenly"):
        windowed.batches(0, world_size=32)


@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=60),
    st.sampled_from([1, 2, 7, 12, 48, 768]),
)
def test_buckets_hold_their_share_of_the_pairs_and_what_they_need(needs, batch_size):
    array = np.array(needs)
    buckets = plan_buckets(array, global_batch_size=batch_size, canvas=10)
    assert sum(buckets.slots) == batch_size
    assert len(buckets.lengths) == len(buckets.slots) <= MAX_BUCKETS
    assert (np.array(buckets.lengths)[buckets.of_pair] >= array).all()
    count = np.bincount(buckets.of_pair, minlength=len(buckets.slots))
    assert (count > 0).all()
    share = np.array(buckets.slots) / batch_size
    assert (np.abs(count - share * len(needs)) <= 1).all()
    assert buckets.mean_length <= 100


def test_buckets_are_the_cheapest_there_are():
    # Two shares: of 4 pairs the two short ones and the two long ones.
    buckets = plan_buckets(np.array([8, 64, 8, 64]), global_batch_size=2, canvas=10)
    assert (buckets.lengths, buckets.slots) == ((8, 64), (1, 1))
    assert buckets.of_pair.tolist() == [0, 1, 0, 1]
    assert plan_buckets(np.array([8] * 9), global_batch_size=48, canvas=10).lengths == (8,)


def test_needed_tokens_cover_the_box_and_its_eos_up_to_the_edge():
    assert needed_tokens(np.array([[3, 4], [10, 2]]), 10).tolist() == [20, 30]


def box(pairs, test_input):
    def grid(size):
        return [[1] * size[1]] * size[0]

    value = {
        "train": [{"input": grid(a), "output": grid(b)} for a, b in pairs],
        "test": [{"input": grid(test_input)}],
    }
    task = parse_task("t", value, "t")
    return expected_box(task.train, task.test[0].input)


def test_the_expected_box_follows_the_demonstrations():
    assert box([((2, 3), (2, 3)), ((4, 1), (4, 1))], (5, 6)) == (5, 6)
    assert box([((2, 3), (3, 8)), ((4, 1), (3, 8))], (5, 6)) == (5, 8)
    assert box([((2, 3), (1, 1)), ((4, 1), (4, 1))], (5, 6)) == (7, 7)  # 4 and the margin
