"""Batches: a pure function of (seed, step) that trains what may train, and nothing else."""

import numpy as np
import pytest

from arc_data import sources
from arc_data.batches import BatchStream
from arc_data.canvas import PAD, decode_grid
from arc_data.grid import grid_key
from arc_data.puzzles import build_puzzles

CANVAS = 8  # larger than the grids of arc1-mini, so that offsets matter


@pytest.fixture(scope="module")
def collection(data_config):
    return sources.load(data_config(canvas=6))


@pytest.fixture(scope="module")
def make_stream(collection):
    puzzles = build_puzzles(collection.tasks, num_aug=4, seed=0)
    demonstrations = [task.train for task in collection.tasks]

    def make(*, seed=0, batch_size=12, canvas=CANVAS, training=demonstrations):
        return BatchStream(
            puzzles, training=training, canvas=canvas, global_batch_size=batch_size, seed=seed
        )

    return make


def unshift(tokens):
    """The grid on a canvas and its offset."""
    board = tokens.reshape(CANVAS, CANVAS)
    rows, columns = np.nonzero(board >= 2)
    top, left = rows.min(), columns.min()
    shifted = np.full((CANVAS, CANVAS), PAD, dtype=np.uint8)
    shifted[: CANVAS - top, : CANVAS - left] = board[top:, left:]
    return decode_grid(shifted.reshape(-1)), (int(top), int(left))


def pairs_of(stream, num_examples):
    """(task index, input key, output key, offset) of the stream's first examples, undone."""
    steps = -(-num_examples // stream.global_batch_size)
    for step in range(steps):
        batch = stream.batch(step)
        for inputs, labels, puzzle_id in zip(
            batch.inputs, batch.labels, batch.puzzle_ids, strict=True
        ):
            augmentation = stream.puzzles.augmentation(int(puzzle_id))
            (input_grid, offset), (output_grid, output_offset) = unshift(inputs), unshift(labels)
            assert offset == output_offset
            task = int(np.searchsorted(stream.puzzles.offsets, puzzle_id, side="right")) - 1
            keys = (grid_key(augmentation.undo(g)) for g in (input_grid, output_grid))
            yield task, *keys, offset, int(puzzle_id)


def test_a_batch_is_a_function_of_seed_and_step(make_stream):
    first, again, other = make_stream(), make_stream(), make_stream(seed=1)
    again.batch(40)  # drawing out of order changes nothing
    for step in (0, 3, 31):
        np.testing.assert_array_equal(first.batch(step).inputs, again.batch(step).inputs)
        np.testing.assert_array_equal(first.batch(step).puzzle_ids, again.batch(step).puzzle_ids)
    assert not np.array_equal(first.batch(0).inputs, other.batch(0).inputs)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_the_ranks_slices_make_the_global_batch(make_stream, world_size):
    stream = make_stream()
    whole = stream.batch(2)
    parts = [stream.batch(2, rank=rank, world_size=world_size) for rank in range(world_size)]
    for name in ("inputs", "labels", "puzzle_ids"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(joined, getattr(whole, name))


def test_an_epoch_holds_every_training_pair_once_and_no_test_pair(collection, make_stream):
    stream = make_stream(batch_size=1)
    assert stream.examples_per_epoch == 223
    seen = [(task, *keys) for task, *keys, _, _ in pairs_of(stream, 223)]
    expected = [
        (t, grid_key(pair.input), grid_key(pair.output))
        for t, task in enumerate(collection.tasks)
        for pair in task.train
    ]
    assert sorted(map(repr, seen)) == sorted(map(repr, expected))


@pytest.mark.parametrize("canvas", [6, CANVAS, 30])
def test_the_fast_rendering_equals_the_obvious_one(make_stream, canvas):
    """Canvas 6 puts grids at the edge, where their EOS marks fall off."""
    stream = make_stream(canvas=canvas)
    examples = stream.examples(0, 3 * 223)
    fast, slow = stream.render(examples), stream.render_slowly(examples)
    np.testing.assert_array_equal(fast.inputs, slow.inputs)
    np.testing.assert_array_equal(fast.labels, slow.labels)
    assert fast.inputs.shape == (3 * 223, canvas**2)


def test_a_task_without_pairs_is_passed_over(collection, make_stream):
    training = [task.train for task in collection.tasks]
    training[0] = training[-1] = ()
    stream = make_stream(training=training, batch_size=50)
    num_pairs = 223 - len(collection.tasks[0].train) - len(collection.tasks[-1].train)
    assert stream.examples_per_epoch == num_pairs
    examples = stream.examples(0, 2 * num_pairs)
    assert np.bincount(examples.pair).tolist() == [2] * num_pairs
    first_of_last = stream.puzzles.offsets[-2]
    assert stream.puzzles.offsets[1] <= examples.puzzle_id.min()
    assert examples.puzzle_id.max() < first_of_last


def test_offsets_reach_every_place_that_keeps_the_pair_on_the_canvas(make_stream):
    stream = make_stream(canvas=7)
    examples = stream.examples(0, 100 * 223)
    square = [i for i, box in enumerate(stream.boxes) if tuple(box) == (6, 6)]
    at = np.isin(examples.pair, square)
    places = set(zip(examples.top[at].tolist(), examples.left[at].tolist(), strict=True))
    assert places == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_a_task_contributes_one_puzzle_and_one_pair_at_the_origin(make_stream):
    stream = make_stream(batch_size=1)
    by_task = {}
    for task, _, _, offset, puzzle_id in pairs_of(stream, 223):
        by_task.setdefault(task, []).append((offset, puzzle_id))
    for entries in by_task.values():
        assert len({puzzle_id for _, puzzle_id in entries}) == 1
        assert (0, 0) in [offset for offset, _ in entries]
    moved = [offset != (0, 0) for entries in by_task.values() for offset, _ in entries]
    assert sum(moved) > 100  # 59 of 223 are at the origin on purpose


def test_epochs_differ_and_the_batches_run_across_them(make_stream):
    stream = make_stream(batch_size=223)
    first, second = stream.batch(0), stream.batch(1)
    assert not np.array_equal(first.puzzle_ids, second.puzzle_ids)
    across = make_stream(batch_size=300).batch(0)  # larger than the whole epoch
    np.testing.assert_array_equal(across.inputs[:223], first.inputs)
    np.testing.assert_array_equal(across.inputs[223:], second.inputs[:77])
