"""No way to lose a run: kills, signals, full disks, damaged files, dying ranks.

Real processes; the long ones are marked slow and run in CI.
"""

import errno
import json
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock

from hrm_deeploop.runs.checkpoint import list_checkpoints, load_weights
from hrm_deeploop.runs.locking import hold_directory
from hrm_deeploop.runs.metrics import read_metrics
from tests.commands import in_a_process, in_process, start_of

ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def run(run_dir, *overrides, ranks=None):
    own = ("experiment=smoke", f"run_dir={run_dir}", *overrides)
    if ranks is None:
        return in_process("train", *own)
    return in_a_process("train", *own, ranks=ranks, variables=ONE_THREAD)


def start(run_dir, *overrides, ranks=None):
    log = run_dir.with_name(run_dir.name + ".stderr")
    with log.open("w") as file:
        return subprocess.Popen(
            start_of("train", "experiment=smoke", f"run_dir={run_dir}", *overrides, ranks=ranks),
            stdout=subprocess.DEVNULL,
            stderr=file,
            text=True,
            env={**os.environ, **ONE_THREAD},
        )


def errors_of(run_dir):
    return run_dir.with_name(run_dir.name + ".stderr").read_text()


def newest(run_dir):
    return max(list_checkpoints(run_dir / "checkpoints"), default=0)


def assert_equal_runs(one, other, *, atol=0.0):
    step = newest(one)
    assert step == newest(other)
    for stem in ("model", "ema", "puzzle_embedding"):
        ours, theirs = (
            load_weights(run_dir / "checkpoints" / f"step_{step:08d}", stem)
            for run_dir in (one, other)
        )
        for name in ours:
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=atol, msg=name)


def wait_for_step(run_dir, step, process):
    for _ in range(600):
        if newest(run_dir) >= step:
            return
        assert process.poll() is None, errors_of(run_dir)
        time.sleep(0.05)
    raise AssertionError(f"no checkpoint of step {step} within 30 seconds")


LONG = ["total_steps=100000", "optim.lr_decay_fraction=0.0001", "checkpoint_every=2", "log_every=2"]


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGTERM, 143),
        (signal.SIGINT, 130),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR1, 138, marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR2, 140, marks=pytest.mark.slow),
    ],
)
def test_a_signal_finishes_the_step_saves_and_exits(number, status, tmp_path):
    process = start(tmp_path, *LONG, "checkpoint_every=1000")
    while not (tmp_path / "metrics.jsonl").exists() or not read_metrics(tmp_path / "metrics.jsonl"):
        assert process.poll() is None, errors_of(tmp_path)
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(timeout=60) == status
    errors = errors_of(tmp_path)
    assert f"stopped by {signal.Signals(number).name}" in errors
    assert "Traceback" not in errors
    step = newest(tmp_path)
    assert step >= read_metrics(tmp_path / "metrics.jsonl")[-1]["step"] > 0
    result = run(tmp_path, *LONG, "checkpoint_every=1000", "resume=auto", f"stop_after={step + 2}")
    assert result.returncode == 0, result.stderr
    assert newest(tmp_path) == step + 2


@pytest.mark.slow
def test_twenty_kills_at_random_moments_lose_no_more_than_the_interval(tmp_path):
    """kill -9 again and again; the run ends with the weights of one that was left alone."""
    options = ["total_steps=120", "checkpoint_every=3", "log_every=4"]
    assert run(tmp_path / "whole", *options).returncode == 0
    rng, killed = np.random.default_rng(0), tmp_path / "killed"
    num_kills = 0
    while num_kills < 20:
        process = start(killed, *options, "resume=auto")
        before = newest(killed)
        deadline = time.monotonic() + 60
        # Somewhere in the few steps after the start, or in the middle of a checkpoint.
        target = min(before + int(rng.integers(1, 6)), 117)
        while newest(killed) < target and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.002)
        time.sleep(float(rng.uniform(0, 0.1)))
        finished = process.poll() is not None
        process.kill()
        process.wait()
        assert newest(killed) >= min(target, 118) or finished
        if finished:
            assert process.returncode == 0, errors_of(killed)
            break
        num_kills += 1
        rows = read_metrics(killed / "metrics.jsonl")
        assert not rows or newest(killed) >= rows[-1]["step"] - 3
    result = run(killed, *options, "resume=auto")
    assert result.returncode == 0, result.stderr
    assert num_kills == 20
    assert_equal_runs(tmp_path / "whole", killed)
    steps = [row["step"] for row in read_metrics(killed / "metrics.jsonl")]
    assert steps == list(range(4, 121, 4))


def test_a_disk_that_is_full_leaves_the_last_checkpoint_and_says_so(tmp_path):
    assert run(tmp_path, "stop_after=10").returncode == 0
    too_small = 20_000  # bytes a file may have, as on a disk with no more room

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (too_small, too_small))

    result = subprocess.run(
        start_of("train", "experiment=smoke", f"run_dir={tmp_path}", "resume=auto"),
        **dict(capture_output=True, text=True, timeout=300, preexec_fn=limit),
    )
    assert result.returncode == 2
    assert "could not be written" in result.stderr.splitlines()[-1]
    assert "earlier ones are intact" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
    result = run(tmp_path, "resume=auto")
    assert result.returncode == 0, result.stderr
    assert newest(tmp_path) == 20


@pytest.mark.parametrize(
    "name",
    [
        "training_state.pt",
        pytest.param("model.safetensors", marks=pytest.mark.slow),
        pytest.param("puzzle_embedding.safetensors", marks=pytest.mark.slow),
        pytest.param("puzzles.json", marks=pytest.mark.slow),
    ],
)
def test_a_truncated_file_falls_back_to_the_checkpoint_before(name, tmp_path):
    assert run(tmp_path, "stop_after=15").returncode == 0
    assert list(list_checkpoints(tmp_path / "checkpoints")) == [10, 15]
    damaged = tmp_path / "checkpoints" / "step_00000015" / name
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    result = run(tmp_path, "resume=auto")
    assert result.returncode == 0, result.stderr
    assert name in result.stderr
    assert "trying the checkpoint before it" in result.stderr
    assert newest(tmp_path) == 20
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [5, 10, 15, 20]


def test_checkpoints_that_are_all_damaged_are_not_trained_over(tmp_path):
    assert run(tmp_path, "total_steps=5").returncode == 0
    for path in (tmp_path / "checkpoints").glob("*/training_state.pt"):
        path.write_bytes(b"")
    result = run(tmp_path, "total_steps=5", "resume=auto")
    assert result.returncode == 2
    assert "none of its checkpoints is whole" in result.stderr.splitlines()[-1]


def test_a_diverged_run_stops_with_step_and_cause(tmp_path):
    result = run(tmp_path, "optim.lr=1e30", "optim.weight_decay=0", "dtype=float32")
    assert result.returncode == 2
    last = result.stderr.splitlines()[-1]
    assert "nothing was updated, checkpoints are intact" in last
    assert "step " in last


def test_changed_data_is_refused_by_id_and_opted_into(tmp_path):
    pair = {"input": [[1, 2]], "output": [[2, 1]]}
    tasks = tmp_path / "tasks"
    tasks.mkdir()

    def write(*ids, color=3):
        for path in tasks.iterdir():
            path.unlink()
        for task_id in ids:
            test = {"input": [[color, 1, 2]], "output": [[4]]}
            (tasks / f"{task_id}.json").write_text(json.dumps({"train": [pair], "test": [test]}))

    own = ["data=folder", f"data.folders=[{tasks}]", "data.tasks=null", "data.evaluate=all"]
    own.append("data.canvas=6")
    write("a", "b")
    run_dir = tmp_path / "run"
    assert run(run_dir, *own, "stop_after=4").returncode == 0
    write("b", "c")
    result = run(run_dir, *own, "resume=auto")
    assert result.returncode == 2
    last = result.stderr.splitlines()[-1]
    assert "1 of 2 are missing from the data (a)" in last
    assert "1 of 2 are in the data only (c)" in last
    assert in_process("evaluate", f"run={run_dir}").returncode == 2
    accepted = in_process("evaluate", f"run={run_dir}", "new_puzzles=init")
    assert accepted.returncode == 0, accepted.stderr
    assert "4 of 8 puzzles have a row among the 8" in accepted.stderr
    write("a", "b", color=5)
    result = run(run_dir, *own, "resume=auto")
    last = result.stderr.splitlines()[-1]
    assert "not what the run was trained on: task a, test pair 0 has other grids" in last
    result = in_process("evaluate", f"run={run_dir}")
    assert "task a, test pair 0 has other grids" in result.stderr.splitlines()[-1]
    result = run(run_dir, *own, "resume=auto", "new_puzzles=init")
    assert result.returncode == 0, result.stderr
    assert newest(run_dir) == 20


def test_two_processes_do_not_train_in_one_directory(tmp_path):
    with hold_directory(tmp_path / "run", "training"):
        refused = run(tmp_path / "run")
        assert refused.returncode == 2
        last = refused.stderr.splitlines()[-1]
        assert f"another process is training there (process {os.getpid()} on " in last
        assert not (tmp_path / "run" / "config.yaml").exists()
    assert not (tmp_path / "run").exists()  # nothing was written, so nothing is left
    done = run(tmp_path / "run", "stop_after=2")
    assert done.returncode == 0, done.stderr
    (tmp_path / "run" / "metrics.jsonl").unlink()
    done = run(tmp_path / "run", "resume=auto", "stop_after=4")
    assert done.returncode == 0, done.stderr
    assert "metrics.jsonl: is gone; the log goes on from step 2" in done.stderr


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_trained_on_with_a_word(
    number, tmp_path, monkeypatch, caplog
):
    def refuse(*_, **__):
        raise OSError(number, "no locks here")

    monkeypatch.setattr(FileLock, "acquire", refuse)
    with hold_directory(tmp_path / "run", "training"):
        assert "can't be locked" in caplog.text
    number = errno.EIO
    with (
        pytest.raises(OSError, match="no locks here"),
        hold_directory(tmp_path / "run", "training"),
    ):
        pass


def test_validation_chooses_the_best_checkpoint_on_demonstrations(tmp_path):
    options = ["data.validation=0.5", "eval_interval=6", "checkpoint_every=null", "keep_last=1"]
    result = run(tmp_path, *options)
    assert result.returncode == 0, result.stderr
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if "seconds/eval" in row]
    assert [row["step"] for row in rows] == [6, 12, 18, 20]
    assert all(0 <= row["eval/arc_prize_at_2"] <= 1 for row in rows)
    best = max(rows, key=lambda row: row["eval/arc_prize_at_2"])["step"]
    assert set(list_checkpoints(tmp_path / "checkpoints")) == {best, 20}
    chosen = in_process("evaluate", f"run={tmp_path}", "checkpoint=best")
    assert chosen.returncode == 0
    assert (tmp_path / "eval" / f"step_{best:08d}" / "ladder.json").is_file()
    refused = run(tmp_path / "other", "eval_interval=6")
    assert "eval_interval=6 needs data.validation" in refused.stderr.splitlines()[-1]


RANKS = ["dtype=float64", "total_steps=6", "optim.global_batch_size=12"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["micro_batch_size=2", "optim.optimizer=adam_atan2"],
        ["transition={name:recurrent_gpt,noise:0.5}", "transition_H=hyperloop"],
        ["model=looped", "model.prelude_layers=1", "transition=operloop"],
    ],
)
def test_ranks_train_the_one_process_weights(ranks, options, tmp_path):
    """In float64, because sign-like updates amplify rounding in float32."""
    for name, num_ranks in (("one", None), ("many", ranks)):
        result = run(tmp_path / name, *RANKS, *options, "output=json", ranks=num_ranks)
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["run_dir"] == str(tmp_path / name)
    assert_equal_runs(tmp_path / "one", tmp_path / "many", atol=1e-12)


WINDOWS = [*RANKS, "window=task", "data.canvas=9", "optim.global_batch_size=48"]


def test_a_run_on_windows_goes_on_exactly(tmp_path):
    assert run(tmp_path / "whole", *WINDOWS).returncode == 0
    for stop_after in (4, 6):
        options = ["resume=auto", f"stop_after={stop_after}"]
        result = run(tmp_path / "stopped", *WINDOWS, *options)
        assert result.returncode == 0, result.stderr
    assert_equal_runs(tmp_path / "whole", tmp_path / "stopped")


@pytest.mark.slow
def test_ranks_train_the_one_process_weights_on_windows(tmp_path):
    for name, num_ranks in (("one", None), ("two", 2)):
        options = ["micro_batch_size=4"] if num_ranks else []
        result = run(tmp_path / name, *WINDOWS, *options, ranks=num_ranks)
        assert result.returncode == 0, result.stderr
    assert_equal_runs(tmp_path / "one", tmp_path / "two", atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("own", [[*RANKS, "micro_batch_size=3"], WINDOWS])
def test_compiled_ranks_train_the_one_process_weights(own, tmp_path):
    """DistributedDataParallel has a graph cut where its buckets of 1 MB begin; this has several."""
    own = [*own, "total_steps=3", "model.hidden_size=128"]
    for name, num_ranks in (("one", None), ("two", 2)):
        options = ["compile=true"] if num_ranks else []
        result = run(tmp_path / name, *own, *options, ranks=num_ranks)
        assert result.returncode == 0, result.stderr
    assert_equal_runs(tmp_path / "one", tmp_path / "two", atol=1e-10)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path):
    assert run(tmp_path / "whole", *RANKS).returncode == 0
    for ranks, stop_after in ((None, 2), (2, 4), (3, 6)):
        options = ["resume=auto", f"stop_after={stop_after}"]
        result = run(tmp_path / "mixed", *RANKS, *options, ranks=ranks)
        assert result.returncode == 0, result.stderr
    assert_equal_runs(tmp_path / "whole", tmp_path / "mixed", atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_dying_rank_ends_the_job_and_the_run_goes_on(number, tmp_path):
    process = start(tmp_path, *LONG, ranks=2)
    wait_for_step(tmp_path, 4, process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), number)
    assert process.wait(timeout=120) != 0  # an error, not a hang
    step = newest(tmp_path)
    assert step >= 4, errors_of(tmp_path)
    result = run(tmp_path, *LONG, "resume=auto", f"stop_after={step + 2}", ranks=2)
    assert result.returncode == 0, result.stderr
    assert newest(tmp_path) == step + 2
