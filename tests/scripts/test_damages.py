"""Damaged files are refused by name, or had no part in the answer; none is taken in silence."""

import json
import shutil

import numpy as np
import pytest
import yaml

from eval.compare import flatten
from eval.predictions import load_predictions
from hrm_deeploop.runs.config import RESUMABLE_KEYS, TASK_KEYS
from tests.commands import in_process

NUM_DAMAGES = 200
OWN = ("experiment=smoke", "total_steps=4", "checkpoint_every=2", "log_every=1", "window=full")
ANSWER = ("height", "width", "cells", "halt")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A finished run of two checkpoints with an evaluation."""
    place = tmp_path_factory.mktemp("damages") / "run"
    assert in_process("train", *OWN, f"run_dir={place}").returncode == 0
    assert in_process("evaluate", f"run={place}").returncode == 0
    return place


def flip_bit(data, rng):
    at = int(rng.integers(len(data)))
    data[at] ^= 1 << int(rng.integers(8))


def flip_exponent(data, rng):
    """The high byte of a little-endian float32: sign and exponent."""
    at = int(rng.integers(len(data) // 4)) * 4 + 3
    data[min(at, len(data) - 1)] ^= 1 << int(rng.integers(7))


def zero_block(data, rng):
    at = int(rng.integers(max(1, len(data) - 64)))
    end = min(len(data), at + 64)
    data[at:end] = bytes(end - at)


def truncate(data, rng):
    del data[int(rng.integers(len(data))) :]


def change_digit(data, rng):
    digits = [i for i, byte in enumerate(data) if 48 <= byte <= 57]
    at = digits[int(rng.integers(len(digits)))] if digits else 0
    data[at] = 48 + (data[at] - 48 + int(rng.integers(1, 10))) % 10


def empty(data, rng):
    data.clear()


def garbage(data, rng):
    data[:] = rng.integers(256, size=len(data), dtype=np.uint8).tobytes()


KINDS = (flip_bit, flip_exponent, zero_block, truncate, change_digit, empty, garbage)


def damage(path, rng):
    """Change a file; returns how, or None if nothing has changed."""
    kind = KINDS[int(rng.integers(len(KINDS)))]
    before = path.read_bytes()
    data = bytearray(before)
    kind(data, rng)
    path.write_bytes(data)
    return kind.__name__ if bytes(data) != before else None


def answers_of(run):
    (path,) = (run / "eval").glob("*/predictions.npz")
    predictions = load_predictions(path)
    return [getattr(predictions, name) for name in ANSWER]


def changed_keys(one, other):
    flat = []
    for path in (one, other):
        try:
            flat.append(flatten(yaml.safe_load(path.read_text()) or {}))
        except (yaml.YAMLError, ValueError, AttributeError):
            return None
    return {key for key in flat[0] | flat[1] if flat[0].get(key) != flat[1].get(key)}


def assert_one_line(result, what):
    assert result.returncode in (0, 2), (what, result.stderr)
    assert "Traceback" not in result.stderr, what
    if result.returncode == 2:
        assert result.stderr.strip(), what


@pytest.mark.slow
def test_no_damage_of_a_run_is_taken_in_silence(run_dir, tmp_path):
    rng = np.random.default_rng(17)
    whole = answers_of(run_dir)
    counts = {"refused": 0, "same answers": 0, "another choice": 0}
    for number in range(NUM_DAMAGES):
        copy = tmp_path / "run"
        shutil.copytree(run_dir, copy)
        shutil.rmtree(copy / "eval")
        files = [*sorted((copy / "checkpoints" / "step_00000004").iterdir()), copy / "config.yaml"]
        path = files[int(rng.integers(len(files)))]
        kind = damage(path, rng)
        what = (number, path.name, kind)
        result = in_process("evaluate", f"run={copy}")
        assert_one_line(result, what)
        if result.returncode == 2:
            counts["refused"] += 1
            last = result.stderr.strip().splitlines()[-1]
            if path.name != "config.yaml":
                assert path.name in last, (what, last)
                assert "checkpoint=2 is whole" in last, (what, last)
            elif "config.yaml" not in last:  # other tasks are named, which the file now asks for
                keys = changed_keys(run_dir / "config.yaml", path)
                assert keys, (what, last)
                assert keys <= TASK_KEYS, (what, keys, last)
        elif path.name == "config.yaml" and kind is not None:
            # What a user may change: how it goes on, how it is evaluated, where its data lies.
            keys = changed_keys(run_dir / "config.yaml", path)
            assert keys is not None, what
            assert keys <= RESUMABLE_KEYS | TASK_KEYS | {"format"}, (what, keys)
            counts["another choice"] += 1
        else:
            for own, found in zip(whole, answers_of(copy), strict=True):
                np.testing.assert_array_equal(own, found, err_msg=str(what))
            counts["same answers"] += 1
        shutil.rmtree(copy)
    print(counts)
    assert counts["refused"] > NUM_DAMAGES / 2


@pytest.mark.slow
def test_a_damaged_newest_checkpoint_is_passed_over_when_a_run_goes_on(run_dir, tmp_path):
    rng = np.random.default_rng(3)
    for number in range(20):
        copy = tmp_path / "run"
        shutil.copytree(run_dir, copy)
        files = sorted((copy / "checkpoints" / "step_00000004").iterdir())
        path = files[number % len(files)]
        if damage(path, rng) is not None:
            result = in_process("train", *OWN, f"run_dir={copy}", "resume=auto")
            assert result.returncode == 0, (number, path.name, result.stderr)
            assert "trying the checkpoint before it" in result.stderr
        shutil.rmtree(copy)


@pytest.mark.slow
def test_no_damage_of_an_evaluation_or_a_cell_is_a_traceback(run_dir, tmp_path):
    """``vote`` reads predictions.npz; a comparison reads cell.json."""
    rng = np.random.default_rng(5)
    (predictions,) = (run_dir / "eval").glob("*/predictions.npz")
    for number in range(40):
        copy = tmp_path / "predictions.npz"
        shutil.copy(predictions, copy)
        kind = damage(copy, rng)
        result = in_process("vote", f"predictions={copy}", f"out={tmp_path / 'out'}")
        assert_one_line(result, (number, kind))
        if result.returncode == 2:
            assert "predictions.npz" in result.stderr.strip().splitlines()[-1]


VALUES = (None, True, -1, 0.5, "", "x", [], {}, [None], {"a": 1}, 10**30, "9", [[1]])


def mutate(value, rng):
    """Replace, add or delete an entry somewhere in a JSON value."""
    places = []

    def collect(holder):
        for key, inner in holder.items() if isinstance(holder, dict) else enumerate(holder):
            places.append((holder, key))
            if isinstance(inner, (dict, list)):
                collect(inner)

    collect(value)
    holder, key = places[int(rng.integers(len(places)))]
    if rng.random() < 0.3:
        del holder[key]
    else:
        holder[key] = VALUES[int(rng.integers(len(VALUES)))]


@pytest.mark.slow
def test_a_cell_of_other_types_is_run_again_or_refused(tmp_path):
    own = ("experiment=smoke", "total_steps=2", "workers=1", f"run_dir={tmp_path / 'cmp'}")
    assert in_process("compare", *own).returncode == 0
    place = tmp_path / "cmp" / "deeploop" / "seed0"
    files = {name: (place / name).read_text() for name in ("cell.json", "metrics.jsonl")}
    rng = np.random.default_rng(6)
    for number in range(40):
        name = ("cell.json", "cell.json", "cell.json", "metrics.jsonl")[number % 4]
        value = json.loads(files[name].splitlines()[0] if name[0] == "m" else files[name])
        mutate(value, rng)
        (place / name).write_text(json.dumps(value) + "\n")
        if name == "metrics.jsonl":
            (place / "cell.json").unlink()
        result = in_process("compare", *own)
        assert_one_line(result, (number, name, value))
        for kept, text in files.items():
            (place / kept).write_text(text)


def test_a_bit_of_a_weight_is_named(run_dir, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run_dir, copy)
    path = copy / "checkpoints" / "step_00000004" / "ema.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 64
    path.write_bytes(data)
    shutil.rmtree(copy / "eval")
    result = in_process("evaluate", f"run={copy}")
    assert result.returncode == 2
    last = result.stderr.splitlines()[-1]
    assert "ema.safetensors: damaged, it is not what was written" in last
    assert "checkpoint=2 is whole" in last
    assert in_process("evaluate", f"run={copy}", "checkpoint=2").returncode == 0


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("rope_theta: 10000.0", "rope_theta: 20000.0"),
        ("H_cycles: 2", "H_cycles: 3"),
        ("num_heads: 2", "num_heads: 4"),
        ("rule: deeploop", "rule: vanilla"),
        ("canvas: 6", "canvas: 7"),
        ("lr: ", "lr: 1"),
    ],
)
def test_another_configuration_does_not_answer_with_these_weights(was, now, run_dir, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run_dir, copy)
    path = copy / "config.yaml"
    text = path.read_text()
    assert was in text, text
    path.write_text(text.replace(was, now, 1))
    result = in_process("evaluate", f"run={copy}")
    assert result.returncode == 2
    assert "config.yaml" in result.stderr.splitlines()[-1]
    resumed = in_process("train", *OWN, f"run_dir={copy}", "resume=auto")
    assert resumed.returncode == 2


def test_a_manifest_of_digests_names_every_file(run_dir):
    checkpoint = run_dir / "checkpoints" / "step_00000004"
    digests = json.loads((checkpoint / "digests.json").read_text())
    assert {*digests["files"], "digests.json"} == {path.name for path in checkpoint.iterdir()}
