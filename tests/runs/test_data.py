"""Tasks are read, checked and rendered once for equal data, and again when a file has changed."""

import json
import os

import numpy as np
import pytest

from arc_data import sources
from hrm_deeploop.runs.checking import validate
from hrm_deeploop.runs.compose import Composer
from hrm_deeploop.runs.config import RunConfig
from hrm_deeploop.runs.data import build_probe, build_stream, load_data, load_tasks

PAIR = {"input": [[1]], "output": [[2]]}


def run_config(*overrides):
    values = Composer("train", ["experiment=smoke", *overrides]).values()
    values.pop("output")
    return validate(RunConfig, values)


def test_runs_of_equal_data_share_what_depends_on_it_alone(monkeypatch):
    calls, load = [], sources.load
    monkeypatch.setattr(sources, "load", lambda config: calls.append(config) or load(config))
    configs = [run_config("data.seed=71", f"seed={seed}") for seed in (0, 1)]
    streams = [build_stream(config, load_data(config)) for config in configs]
    build_probe(configs[0], load_data(configs[0]), 4)
    assert len(calls) == 1
    assert streams[0]._grids is streams[1]._grids
    # The order of the examples is a run's own.
    drawn = [stream.batch(0).inputs for stream in streams]
    assert not np.array_equal(*drawn)


def test_a_file_that_changes_is_read_again(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"train": [PAIR], "test": [PAIR]}))
    own = (f"data.folders=[{tmp_path}]", "data.evaluate=all", "data.tasks=null")
    config = run_config("data=folder", *own, "data.num_aug=1").data
    before = load_tasks(config)
    assert load_tasks(config) is before
    path.write_text(json.dumps({"train": [PAIR, PAIR], "test": [PAIR]}))
    os.utime(path, ns=(1, 1))
    after = load_tasks(config)
    assert len(after.collection.tasks[0].train) == 2
    assert after.content_hash != before.content_hash


@pytest.mark.parametrize("changes", [{"scaling": "vanilla", "optim.lr": 0.5}, {"model": "looped"}])
def test_changes_are_merged_as_overrides_are_composed(changes):
    composer = Composer("train", ["experiment=smoke", "model.hidden_size=64"])
    given = [f"{key}={value}" for key, value in changes.items()]
    composed = Composer("train", ["experiment=smoke", "model.hidden_size=64", *given])
    assert composer.values(changes) == composed.values()
    assert composer.values()["scaling"] == {"rule": "deeploop"}  # as before


def test_a_composition_is_made_once_for_any_number_of_arms(monkeypatch):
    from hrm_deeploop.runs import compose

    calls, original = [], compose._compose
    monkeypatch.setattr(compose, "_compose", lambda *given: calls.append(given) or original(*given))
    composer = Composer("compare", ["experiment=smoke"])
    for seed in range(5):
        for arm in ({"scaling": "vanilla"}, {"scaling": "deepnorm", "model.L_cycles": 3}):
            composer.values({**arm, "seed": seed})
    assert len(calls) == 1
    with pytest.raises(ValueError, match=r"model.L_cycels=3: there is no key 'L_cycels' in model"):
        composer.values({"model.L_cycels": 3})
