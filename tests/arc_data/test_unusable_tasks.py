"""Mutated task files: a task, or left out with its reason; never anything else."""

import copy
import json
import os

import numpy as np
import pytest

from arc_data import sources
from arc_data.files import INVALID, LARGER_THAN_ARC, REPEATED, find_tasks, read_folder
from arc_data.task import InvalidDataError

NUM_FILES = 300
GOOD = {"train": [{"input": [[1]], "output": [[2]]}], "test": [{"input": [[3]], "output": [[4]]}]}
VALUES = (
    *(None, True, False, -1, 0, 9, 10, 1.0, 1e400, "", "1", [], {}, [[]], [[[]]], [[1], [2, 3]]),
    *([[0] * 30] * 30, [[0] * 31], [[0]] * 31, [[None]], [["1"]], 10**30, "\ud800", [[1.5]]),
)


def places(value, path=()):
    """Every place of a JSON value, the whole included."""
    yield path
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


def mutate(value, rng):
    value = copy.deepcopy(value)
    every = list(places(value))
    path = every[int(rng.integers(len(every)))]
    new = VALUES[int(rng.integers(len(VALUES)))]
    if not path:
        return new
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    how = int(rng.integers(3))
    if how == 0:
        del holder[path[-1]]
    elif how == 1 and isinstance(holder, list):
        holder.append(new)
    else:
        holder[path[-1]] = new
    return value


def text_of(value, rng):
    """JSON, sometimes cut, in another encoding, or with a byte that is none."""
    data = json.dumps(value).encode("utf-8", "surrogatepass")
    how = int(rng.integers(8))
    if how == 0:
        return data[: int(rng.integers(len(data) + 1))]
    if how == 1:
        return data.decode("utf-8", "replace").encode("utf-16")
    if how == 2:
        at = int(rng.integers(len(data) + 1))
        return data[:at] + bytes([int(rng.integers(256))]) + data[at:]
    return data


def test_mutated_task_files_are_tasks_or_left_out(tmp_path):
    rng = np.random.default_rng(11)
    (tmp_path / "good.json").write_text(json.dumps(GOOD))
    for number in range(NUM_FILES):
        value = mutate(GOOD, rng)
        if rng.random() < 0.3:
            value = mutate(value, rng) if isinstance(value, dict) else value
        (tmp_path / f"t{number:03}.json").write_bytes(text_of(value, rng))
    found = find_tasks(tmp_path)
    assert len(found.tasks) + len(found.left_out) == NUM_FILES + 1
    assert found.tasks
    assert len(found.left_out) > NUM_FILES / 2
    assert {entry.reason for entry in found.left_out} <= {INVALID, LARGER_THAN_ARC}
    for entry in found.left_out:
        assert all(entry.task_id in problem for problem in entry.problems)
    with pytest.raises(InvalidDataError) as error:
        read_folder(tmp_path)
    assert len(error.value.problems) == sum(len(entry.problems) for entry in found.left_out)


@pytest.fixture
def folder(tmp_path):
    """Two good tasks, and one of every kind that can't be used."""
    place = tmp_path / "data"
    for name, value in {
        "evaluation/a": GOOD,
        "training/b": GOOD,
        "evaluation/wide": {**GOOD, "test": [{"input": [[0] * 40], "output": [[1]]}]},
        "evaluation/broken": {"train": []},
        "training/z/a": GOOD,  # the id of the first
        "evaluation/large": {**GOOD, "test": [{"input": [[0] * 9], "output": [[1]]}]},
    }.items():
        path = place / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
    return place


def test_a_task_that_cant_be_used_is_left_out_with_its_reason(folder, data_config):
    config = data_config(source="folder", folders=(str(folder),), canvas=6, evaluate="evaluation")
    collection = sources.load(config)
    assert [task.id for task in collection.tasks] == ["b", "a"]
    assert {entry.task_id: entry.reason for entry in collection.left_out} == {
        "wide": LARGER_THAN_ARC,
        "broken": INVALID,
        "a": REPEATED,
        "large": sources.TOO_LARGE,
    }
    assert {entry.task_id for entry in collection.left_out_evaluated} == {"wide", "broken", "large"}
    strict = data_config(
        source="folder", folders=(str(folder),), canvas=6, evaluate="evaluation", strict=True
    )
    with pytest.raises(InvalidDataError) as error:
        sources.load(strict)
    assert len(error.value.problems) >= 4
    asked = data_config(source="folder", folders=(str(folder),), tasks=("wide",), canvas=6)
    with pytest.raises(ValueError, match=r"wide can't be used: .*too large: 1 x 40"):
        sources.load(asked)


def test_linked_folders_are_read_once_and_loops_end(tmp_path):
    real = tmp_path / "elsewhere"
    real.mkdir()
    (real / "a.json").write_text(json.dumps(GOOD))
    place = tmp_path / "data"
    place.mkdir()
    (place / "link").symlink_to(real)
    (real / "back").symlink_to(place)
    (place / "own.json").write_text(json.dumps(GOOD))
    found = find_tasks(place)
    assert sorted(task.id for task in found.tasks) == ["a", "own"]
    assert not found.left_out


def test_a_folder_that_cant_be_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.json").write_text(json.dumps(GOOD))
    (tmp_path / "closed").mkdir()
    real = os.scandir

    def scandir(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr("os.scandir", scandir)
    with pytest.raises(InvalidDataError, match="closed: can't be read"):
        find_tasks(tmp_path)


def test_a_list_of_pairs_is_a_task(tmp_path):
    """As re-arc has them."""
    pairs = [{"input": [[i]], "output": [[i + 1]]} for i in range(5)]
    (tmp_path / "007bbfb7.json").write_text(json.dumps(pairs))
    (task,) = read_folder(tmp_path)
    assert (len(task.train), len(task.test)) == (4, 1)
