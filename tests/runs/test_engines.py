"""Jobs side by side: results in order, one thread a core, orderly stops, no orphans."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hrm_deeploop.runs.engines import Progress, run_jobs

ROOT = Path(__file__).parents[2]
# A job counts in a file, so that it goes on where it was; a signal makes it stop after a count.
COUNTING = """
import os, signal, sys, time
from pathlib import Path
from hrm_deeploop.fit import StopSignals
from hrm_deeploop.runs.engines import Progress, StoppedError, run_jobs

def count(job, report):
    path, until = Path(job[0]), job[1]
    (path.parent / (path.name + ".pid")).write_text(str(os.getpid()))
    done = int(path.read_text()) if path.exists() else 0
    with StopSignals() as stop:
        while done < until:
            time.sleep(0.1)
            done += 1
            path.write_text(str(done))
            report(Progress(done, until, "counting"))
            if stop.received:
                raise StoppedError(stop.received)
    return done, os.environ.get("OMP_NUM_THREADS")

if __name__ == "__main__":
    folder, until, options = Path(sys.argv[1]), int(sys.argv[2]), eval(sys.argv[3])
    jobs = [(str(folder / name), until) for name in ("a", "b", "c")]
    try:
        print(run_jobs(count, jobs, titles=["a", "b", "c"], **options))
    except StoppedError as stopped:
        sys.exit(128 + stopped.number)
"""


def start(tmp_path, until, **options):
    script = tmp_path / "count.py"
    script.write_text(COUNTING)
    command = [sys.executable, str(script), str(tmp_path), str(until), repr(options)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def wait_for(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def is_alive(pid):
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "\nState:\tZ" not in status.read_text()


def pids(tmp_path):
    return [int(path.read_text()) for path in tmp_path.glob("*.pid")]


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_jobs(workers):
    told = []

    def square(job, report):  # defined here, so no worker could import it
        report(Progress(job, 3, "note"))
        told.append(job)
        return job * job, os.getpid(), os.environ.get("OMP_NUM_THREADS")

    found = run_jobs(square, [3, 1, 2], titles=["a", "b", "c"], workers=workers)
    assert [value for value, _, _ in found] == [9, 1, 4]
    here = [pid == os.getpid() for _, pid, _ in found]
    assert here == [workers == 1] * 3
    if workers == 2:
        assert len({pid for _, pid, _ in found}) <= 2
        assert {threads for _, _, threads in found} == {"1"}


def test_what_a_job_raises_is_raised_here(tmp_path):
    def fail(job, report):
        raise ValueError(f"job {job} is wrong")

    with pytest.raises(ValueError, match="job 1 is wrong") as error:
        run_jobs(fail, [1], titles=["a"], workers="auto")
    assert "in a worker:" in error.value.__notes__[0]


def test_a_worker_that_dies_is_named(tmp_path):
    def die(job, report):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ValueError, match=r"ran the job \(killed by SIGKILL: out of memory\?\)"):
        run_jobs(die, [1], titles=["the job"], workers="auto")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_running_jobs_and_the_same_call_goes_on(number, tmp_path):
    process = start(tmp_path, 40, workers=2)
    wait_for(lambda: (tmp_path / "a").exists() and (tmp_path / "b").exists())
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in errors
    assert not (tmp_path / "c").exists()
    assert not [pid for pid in pids(tmp_path) if is_alive(pid)]
    before = int((tmp_path / "a").read_text())
    assert 0 < before < 40
    process = start(tmp_path, before + 1, workers=2)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert [done for done, _ in eval(output)] == [before + 1] * 3


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed(tmp_path):
    process = start(tmp_path, 10_000, workers=2)
    wait_for(lambda: len(pids(tmp_path)) == 2)
    process.kill()
    process.communicate(timeout=60)
    wait_for(lambda: not [pid for pid in pids(tmp_path) if is_alive(pid)])


@pytest.mark.slow
def test_a_ray_task_whose_worker_is_killed_goes_on_in_another(tmp_path):
    pytest.importorskip("ray")
    process = start(tmp_path, 60, cluster="ray")
    wait_for(lambda: (tmp_path / "a").exists() and int((tmp_path / "a").read_text() or 0) > 5)
    killed = int((tmp_path / "a.pid").read_text())
    os.kill(killed, signal.SIGKILL)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert eval(output.splitlines()[-1]) == [(60, "1")] * 3
    assert int((tmp_path / "a.pid").read_text()) != killed


@pytest.mark.slow
def test_ray_tasks_save_when_the_driver_is_interrupted(tmp_path):
    pytest.importorskip("ray")
    process = start(tmp_path, 10_000, cluster="ray")
    wait_for(lambda: (tmp_path / "a").exists() and (tmp_path / "b").exists())
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert not (tmp_path / "c").exists()


@pytest.mark.slow
def test_a_comparison_on_ray_survives_a_killed_worker_with_the_same_numbers(tmp_path):
    pytest.importorskip("ray")
    own = ["experiment=smoke", "total_steps=150", "checkpoint_every=10", "output=json"]
    script = str(ROOT / "scripts" / "compare.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    plain = subprocess.run(
        [sys.executable, script, *own, "workers=1", f"run_dir={tmp_path / 'plain'}"],
        **dict(capture_output=True, text=True, timeout=400, env=environment),
    )
    assert plain.returncode == 0, plain.stderr
    process = subprocess.Popen(
        [sys.executable, script, *own, "cluster=ray", f"run_dir={tmp_path / 'ray'}"],
        **dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True),
    )
    cell = tmp_path / "ray" / "vanilla" / "seed0"
    wait_for(lambda: any((cell / "checkpoints").glob("step_*[0-9]")), seconds=240)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_text()
            holds = str(cell) in " ".join(str(p.readlink()) for p in (entry / "fd").iterdir())
        except OSError:
            continue
        if "ray::" in command and holds:
            os.kill(int(entry.name), signal.SIGKILL)
            break
    output, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors
    found, expected = json.loads(output), json.loads(plain.stdout)
    for name, arm in expected["arms"].items():
        assert found["arms"][name]["ladder"] == arm["ladder"]
        assert found["arms"][name]["train_loss"] == arm["train_loss"]
