"""The numbers of a collection, against ones counted by hand or known of ARC-AGI-1."""

import json

import numpy as np
import pytest

from arc_data import sources
from arc_data.leaks import find_leaks, training_set
from arc_data.puzzles import build_puzzles
from arc_data.stats import collection_stats, needed_tokens
from arc_data.task import Pair


def make_stats(config):
    collection = sources.load(config)
    puzzles = build_puzzles(collection.tasks, num_aug=config.num_aug, seed=config.seed)
    trained = training_set(collection, find_leaks(collection), config.leaks)
    return collection_stats(collection, trained, puzzles, canvas=config.canvas)


@pytest.mark.parametrize(
    ("input_shape", "output_shape", "canvas", "expected"),
    [((3, 4), (2, 2), 30, 4 * 5), ((1, 6), (5, 1), 30, 6 * 7), ((30, 30), (1, 1), 30, 900)],
)
def test_needed_tokens_hold_both_grids_and_their_marks(input_shape, output_shape, canvas, expected):
    grids = (np.zeros(shape, dtype=np.uint8) for shape in (input_shape, output_shape))
    pair = Pair(**dict(zip(("input", "output"), grids, strict=True)))
    assert needed_tokens(pair, canvas) == expected


@pytest.mark.slow
def test_arc1_needs_219_tokens_a_pair_on_average(data_config):
    stats = make_stats(data_config(source="arc1", evaluate="evaluation"))
    assert stats.tokens_needed.mean == pytest.approx(219, abs=0.5)
    assert stats.tokens_needed.quantiles[0.25] == 81
    assert stats.tokens == 900
    assert (stats.num_tasks, stats.num_held_out_pairs) == (800, 419)
    assert stats.sources[0].licence == "Apache-2.0"
    values = stats.to_json()
    assert json.loads(json.dumps(values)) == values
    assert list(values["grid_side"]) == ["mean", "q0", "q25", "q50", "q75", "q90", "q100"]


def test_what_the_canvas_excludes_is_named(data_config):
    stats = make_stats(data_config(canvas=3))
    assert stats.num_tasks + len(stats.too_large) == 59
    assert stats.grid_side.quantiles[1.0] == 3
    assert f"too_large         {len(stats.too_large)}: " in str(stats)
