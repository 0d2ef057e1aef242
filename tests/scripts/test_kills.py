"""Kills at random moments: every file that is there afterwards is whole, and the command goes on.

The kills of a training are in test_survival.py.
"""

import json
import os
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

from eval.ladder import Ladder
from eval.predictions import load_predictions
from hrm_deeploop.runs.checkpoint import is_whole, list_checkpoints
from tests.commands import in_process, start_of

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
NUM_KILLS = 7
SMOKE = ("experiment=smoke", "total_steps=6", "checkpoint_every=2", "log_every=1")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    place = tmp_path_factory.mktemp("kills") / "run"
    assert in_process("train", *SMOKE, f"run_dir={place}").returncode == 0
    assert in_process("evaluate", f"run={place}").returncode == 0
    return place


def begin(log, *command):
    """Start a command in a group of its own; returns once it has printed what it will do."""
    with log.open("w") as file:
        process = subprocess.Popen(
            start_of(*command),
            **dict(stdout=subprocess.DEVNULL, stderr=file, start_new_session=True),
            env={**os.environ, **ONE_THREAD},
        )
    while not log.stat().st_size and process.poll() is None:
        time.sleep(0.01)
    return process


def seconds_of(log, *command):
    """How long a command takes once it has said what it does."""
    process = begin(log, *command)
    started = time.monotonic()
    assert process.wait() == 0, log.read_text()
    return time.monotonic() - started


def kill_after(seconds, log, *command):
    """Kill a command's group so long after it has said what it does; whether it had not ended."""
    process = begin(log, *command)
    time.sleep(seconds)
    was_running = process.poll() is None
    if was_running:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return was_running


def assert_files_are_whole(folder, *, old):
    """Every file that a person or a program reads is the old one or a new one, and whole."""
    for path in folder.rglob("*"):
        if path.name == "predictions.npz":
            load_predictions(path)
        elif path.name == "ladder.json":
            Ladder.load(path)
        elif path.name == "report.html":
            assert path.read_text().rstrip().endswith("</html>"), path
        elif path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".png":
            assert path.read_bytes()[-8:-4] == b"IEND", path
    for name in old:
        assert (folder / name).is_file(), name


@pytest.mark.slow
@pytest.mark.parametrize("command", ["evaluate", "vote"])
def test_a_killed_evaluation_or_vote_leaves_whole_files(command, run_dir, tmp_path):
    rng = np.random.default_rng(2)
    copy = tmp_path / "run"
    shutil.copytree(run_dir, copy)
    (place,) = (copy / "eval").iterdir()
    own = {
        "evaluate": ("evaluate", f"run={copy}"),
        "vote": ("vote", f"predictions={place / 'predictions.npz'}", "attempts=[1,2]"),
    }[command]
    whole = load_predictions(place / "predictions.npz")
    log = tmp_path / "stderr"
    if command == "evaluate":
        (place / "predictions.npz").unlink()
    seconds = seconds_of(log, *own)
    old = ["submission.json", "report.html", "ladder.json", "ladder.png"]
    num_kills = 0
    for _ in range(4 * NUM_KILLS):
        if command == "evaluate":
            (place / "predictions.npz").unlink(missing_ok=True)
        num_kills += kill_after(seconds * float(rng.uniform(0, 0.9)), log, *own)
        assert_files_are_whole(place, old=old)
        if num_kills == NUM_KILLS:
            break
    assert num_kills == NUM_KILLS
    result = in_process(*own)
    assert result.returncode == 0, result.stderr
    again = load_predictions(place / "predictions.npz")
    np.testing.assert_array_equal(whole.cells, again.cells)
    assert not list(place.glob("*.parts"))


@pytest.mark.slow
def test_a_killed_comparison_goes_on(tmp_path):
    rng = np.random.default_rng(4)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    own = ("experiment=smoke", "total_steps=4", "checkpoint_every=1", "workers=1")
    log = tmp_path / "stderr"
    seconds = seconds_of(log, "compare", *own, f"run_dir={whole}")
    num_kills = 0
    for _ in range(4 * NUM_KILLS):
        num_kills += kill_after(
            seconds * float(rng.uniform(0, 0.8)), log, "compare", *own, f"run_dir={killed}"
        )
        for cell in killed.glob("*/seed0"):
            for checkpoint in list_checkpoints(cell / "checkpoints").values():
                assert is_whole(checkpoint)
            assert_files_are_whole(cell, old=[])
        if num_kills == NUM_KILLS:
            break
        if (killed / "comparison.json").exists():
            shutil.rmtree(killed)
    assert num_kills == NUM_KILLS
    result = in_process("compare", *own, f"run_dir={killed}")
    assert result.returncode == 0, result.stderr
    arms = [
        json.loads((place / "comparison.json").read_text())["arms"] for place in (whole, killed)
    ]
    for name in arms[0]:
        assert arms[0][name]["ladder"] == arms[1][name]["ladder"]
        assert arms[0][name]["train_loss"] == arms[1][name]["train_loss"]
