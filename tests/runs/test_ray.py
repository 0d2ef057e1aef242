"""Jobs as tasks of a real Ray cluster: what dies is run again, and what is stopped saves."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0  # seconds; everything is polled

COUNTING = """
import json, os, signal, sys, time
from pathlib import Path
import ray
from hrm_deeploop.runs.engines import Progress, StoppedError, run_jobs

FOLDER = Path(sys.argv[1])

def count(job, report):
    name, total = job
    path, received, before = FOLDER / name, [], {}
    def receive(number, frame):
        received.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)
    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, receive)
    done = int(path.read_text()) if path.exists() else 0
    with (FOLDER / f"{name}.starts").open("a") as starts:
        threads = os.environ["OMP_NUM_THREADS"]
        node = ray.get_runtime_context().get_node_id()
        starts.write(f"{os.getpid()} {done} {threads} {Path.cwd()} {node}\\n")
    while done < total:
        done += 1
        time.sleep(0.02)
        report(Progress(done, total, "counting"))
        if done % 5 == 0 or received:
            partial = path.with_suffix(".partial")
            partial.write_text(str(done))
            partial.rename(path)
        if received:
            time.sleep(1)
            (FOLDER / f"{name}.saved").write_text(str(received))
            raise StoppedError(received[0])
        while done == 10 and (FOLDER / "hold").exists() and not received:
            time.sleep(0.02)
    return name, done
"""
RUN = """
handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
try:
    found = run_jobs(count, [("a", 30), ("b", 40), ("c", 50)], titles=["a", "b", "c"],
                     workers=2, cluster="ray", description="count")
except StoppedError as stopped:
    sys.exit(128 + stopped.number)
finally:
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
print(json.dumps(found))
"""
RESULTS = [["a", 30], ["b", 40], ["c", 50]]


def wait_until(holds, what):
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} seconds: {what}"
        time.sleep(0.05)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def descendants(pid):
    found = [pid]
    for parent in found:
        for path in Path(f"/proc/{parent}/task").glob("*/children"):
            found += map(int, path.read_text().split())
    return found[1:]


@pytest.fixture
def start(tmp_path):
    """Start a script; its whole cluster is gone afterwards."""
    started = []

    def begin(script):
        (tmp_path / "script.py").write_text(script)
        with (tmp_path / "stdout").open("w") as out, (tmp_path / "stderr").open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, str(tmp_path / "script.py"), str(tmp_path)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                cwd=tmp_path,
                start_new_session=True,
            )
        started.append(process)
        return process

    yield begin
    for process in started:
        cluster = descendants(process.pid)
        process.kill()
        process.wait()
        wait_until(lambda pids=cluster: not any(map(is_alive, pids)), "the cluster ends")


def starts_of(folder, name):
    """What every start of a job noted: process, step, threads, directory, node."""
    path = folder / f"{name}.starts"
    lines = path.read_text().splitlines() if path.exists() else []
    return [tuple(line.split(" ")) for line in lines]


def wait_for_tenth_step(folder, names, process):
    """Wait until jobs hold at their tenth step."""

    def all_hold():
        assert process.poll() is None, (folder / "stderr").read_text()
        paths = [folder / name for name in names]
        return all(path.exists() and path.read_text() == "10" for path in paths)

    wait_until(all_hold, f"{names} hold")


def test_a_killed_worker_s_job_is_run_again_and_goes_on_from_what_it_had_saved(start, tmp_path):
    (tmp_path / "hold").touch()
    process = start(COUNTING + RUN)
    wait_for_tenth_step(tmp_path, "ab", process)
    os.kill(int(starts_of(tmp_path, "a")[0][0]), signal.SIGKILL)
    (tmp_path / "hold").unlink()
    assert process.wait(PATIENCE) == 0, (tmp_path / "stderr").read_text()
    assert json.loads((tmp_path / "stdout").read_text().splitlines()[-1]) == RESULTS
    first, again = starts_of(tmp_path, "a")
    assert int(first[1]) == 0
    assert int(again[1]) == 10
    assert again[0] != first[0]
    assert (tmp_path / "stdout").read_text().count("\n") == 1  # Ray says nothing
    assert len(starts_of(tmp_path, "b")) == len(starts_of(tmp_path, "c")) == 1
    for _, _, threads, directory, _ in (first, again):
        assert (threads, directory) == ("1", str(tmp_path))
    errors = (tmp_path / "stderr").read_text()
    assert "a goes on, on " in errors
    assert "count: 3 of 3 done: " in errors
    assert len(errors.splitlines()) == 4


@pytest.mark.parametrize("whole_group", [False, True], ids=["kill", "terminal"])
def test_a_signal_has_the_running_jobs_save_and_ends_the_cluster(whole_group, start, tmp_path):
    (tmp_path / "hold").touch()
    process = start(COUNTING + RUN)
    wait_for_tenth_step(tmp_path, "ab", process)
    cluster = descendants(process.pid)
    assert cluster
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) == 130, (tmp_path / "stderr").read_text()
    assert all((tmp_path / f"{name}.saved").read_text() == "[2]" for name in "ab")
    assert not starts_of(tmp_path, "c")
    assert "Traceback" not in (tmp_path / "stderr").read_text()
    wait_until(lambda: not any(map(is_alive, cluster)), "the cluster ends")


def test_the_exception_of_a_task_is_raised_here_and_the_others_save(start, tmp_path):
    run = """
class LocalError(ValueError):
    pass

def fail_or_count(job, report):
    if job[0] != "bad":
        return count(job, report)
    while not (FOLDER / "good.starts").exists():
        time.sleep(0.02)
    raise LocalError("lr=-1: wanted a positive number")

try:
    run_jobs(fail_or_count, [("bad", 1), ("good", 10**9)], titles=["bad", "good"],
             cluster="ray", workers=2)
except LocalError as error:
    print(error, *error.__notes__)
"""
    process = start(COUNTING + run)
    assert process.wait(PATIENCE) == 0, (tmp_path / "stderr").read_text()
    said = (tmp_path / "stdout").read_text()
    assert said.startswith("lr=-1: wanted a positive number")
    assert "in the worker that ran bad" in said
    assert "fail_or_count" in said
    assert (tmp_path / "good.saved").exists()


def test_a_job_whose_workers_always_die_is_named(start, tmp_path):
    run = """
def die(job, report):
    os.kill(os.getpid(), signal.SIGKILL)

try:
    run_jobs(die, [0], titles=["bad"], cluster="ray", workers=1)
except ChildProcessError as error:
    print(error)
"""
    process = start(COUNTING + run)
    assert process.wait(PATIENCE) == 0, (tmp_path / "stderr").read_text()
    said = (tmp_path / "stdout").read_text()
    assert "a worker ended while it ran bad, 4 times" in said
    assert len(said.splitlines()) == 1


def test_a_machine_that_dies_loses_its_jobs_to_the_others(start, tmp_path):
    run = """
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
lost = cluster.add_node(num_cpus=1)
(FOLDER / "lost").write_text(f"{lost.node_id} {lost.all_processes['raylet'][0].process.pid}")
found = run_jobs(count, [("a", 30), ("b", 40), ("c", 50)], titles=["a", "b", "c"],
                 workers="auto", cluster="ray", address=cluster.address, description="count")
print(json.dumps(found))
"""
    (tmp_path / "hold").touch()
    process = start(COUNTING + run)
    wait_for_tenth_step(tmp_path, "ab", process)
    node, raylet = (tmp_path / "lost").read_text().split()
    (victim,) = [name for name in "ab" if starts_of(tmp_path, name)[0][4] == node]
    for pid in [int(raylet), *descendants(int(raylet))]:
        os.kill(pid, signal.SIGKILL)
    (tmp_path / "hold").unlink()
    assert process.wait(PATIENCE) == 0, (tmp_path / "stderr").read_text()
    assert json.loads((tmp_path / "stdout").read_text().splitlines()[-1]) == RESULTS
    first, again = starts_of(tmp_path, victim)
    assert first[4] == node
    assert again[4] != node
