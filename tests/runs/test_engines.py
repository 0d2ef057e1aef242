"""Independent jobs on this machine: order, threads, failures, and no way to lose a run.

Signals are sent to real processes. A job counts in a file, as a training run checkpoints; it
handles signals as one does, and a second one would end it while it saves.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hrm_deeploop.runs.engines import Progress, StoppedError, processes, run_jobs
from hrm_deeploop.runs.engines.display import Display
from hrm_deeploop.runs.engines.jobs import FailedError

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0  # seconds; everything is polled

# No `if __name__ == "__main__"`: what a notebook defines must do.
COUNTING = """
import os, pickle, signal, sys, time
from pathlib import Path
from hrm_deeploop.runs.engines import Progress, StoppedError, run_jobs

FOLDER, ENDLESS = Path(sys.argv[1]), 10**9

def count(name, report):
    path, received, before = FOLDER / name, [], {}
    def receive(number, frame):
        received.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)
    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, receive)
    done = int(path.read_text()) if path.exists() else 0
    (FOLDER / f"{name}.pid").write_text(str(os.getpid()))
    while done < ENDLESS:
        done += 1
        time.sleep(0.02)
        report(Progress(done, ENDLESS, "counting"))
        if received:
            time.sleep(1)
            path.write_text(str(done))
            (FOLDER / f"{name}.saved").write_text(str(received))
            raise StoppedError(received[0])
    return done
"""
RUN = """
try:
    run_jobs(count, ["a", "b", "c"], titles=["a", "b", "c"], workers=2, description="count")
except StoppedError as stopped:
    sys.exit(128 + stopped.number)
"""


def wait_until(holds, what):
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} seconds: {what}"
        time.sleep(0.02)


def is_alive(pid):
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def children_of(pid):
    # Not only of the main thread: whichever thread starts a process has it.
    found = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for children in found for child in children]


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads /proc")


@pytest.fixture
def start(tmp_path):
    """Start a script as the leader of a process group; whatever is left of it is killed."""
    started = []

    def begin(script):
        path = tmp_path / "script.py"
        path.write_text(script)
        with (tmp_path / "stderr").open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, str(path), str(tmp_path)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def pids_of(folder, names, process):
    """The processes that count, once they do."""
    paths = [folder / f"{name}.pid" for name in names]

    def all_count():
        assert process.poll() is None, (folder / "stderr").read_text()
        return all(path.exists() and path.read_text() for path in paths)

    wait_until(all_count, f"{names} count")
    return [int(path.read_text()) for path in paths]


def test_results_keep_the_order_of_the_jobs_which_run_in_several_processes(tmp_path):
    def meet(number, report):
        (tmp_path / f"{number}").touch()
        other = tmp_path / f"{number ^ 1}"
        while not other.exists():  # two jobs run at a time, or this never ends
            time.sleep(0.01)
        return number, os.getpid()

    found = run_jobs(meet, range(4), titles="abcd", workers=2)
    assert [number for number, _ in found] == [0, 1, 2, 3]
    pids = {pid for _, pid in found}
    assert len(pids) == 2
    assert os.getpid() not in pids
    assert not any(is_alive(pid) for pid in pids)


def test_a_class_that_cannot_be_imported_makes_the_journey_and_stays_itself():
    class Local:
        value = 3

    def give_back(job, report):
        job.value += 1
        return job

    (found,) = run_jobs(give_back, [Local()], titles=["a"], workers="auto")
    assert type(found) is Local
    assert found.value == 4


def test_one_worker_is_this_process_and_a_signal_is_the_jobs_own(capsys):
    def stop(job, report):
        report(Progress(1, 2, "half"))
        if job == 1:
            raise StoppedError(signal.SIGTERM)
        return os.getpid()

    assert run_jobs(stop, [0], titles=["a"], workers=1) == [os.getpid()]
    with pytest.raises(StoppedError) as stopped:
        run_jobs(stop, [0, 1, 2], titles="abc", workers=1)
    assert stopped.value.number == signal.SIGTERM


def test_without_a_terminal_a_finished_job_is_one_line(capsys):
    def tell(job, report):
        for done in range(1000):
            report(Progress(done, 1000, "x"))

    run_jobs(tell, [0, 1], titles=["first", "second"], workers=2, description="tell")
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert len(lines) == 2
    assert "tell: 1 of 2 done: " in lines[0]
    assert "tell: 2 of 2 done: " in lines[1]


def test_on_a_terminal_every_job_that_runs_has_a_line(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Display(["first", "second"], description="tell") as display:
        display.start(0)
        display.start(1)
        display.report(0, Progress(10, 40, "loss 0.5"))
        display.write("between")
        display.end(0)
    shown = capsys.readouterr().err
    assert "10/40, loss 0.5" in shown
    assert "second: starting" in shown
    assert "between\n" in shown
    assert "tell: 1 of 2  50%" in shown


def test_eta_leaves_out_what_an_earlier_command_did(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Display(["a"], description="tell") as display:
        display.start(0)
        display.report(0, Progress(90, 100, ""))
        assert display._overall is not None
        assert display._overall.initial == 0.9


def test_a_worker_computes_with_one_thread():
    def ask(job, report):
        return {name: os.environ[name] for name in job}

    names = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"]
    (found,) = run_jobs(ask, [names], titles=["a"], workers="auto")
    assert set(found.values()) == {"1"}


@pytest.mark.slow
def test_torch_has_one_thread_in_a_worker():
    def ask(job, report):
        import torch

        return torch.get_num_threads()

    assert run_jobs(ask, [0, 0], titles="ab", workers=2) == [1, 1]


def test_auto_is_a_process_a_core_and_never_more_than_jobs(monkeypatch):
    monkeypatch.setattr(processes, "num_cores", lambda: 8)
    plan = processes.plan_workers("auto", num_jobs=100, num_gpus=0, environment={})
    assert len(plan) == 8
    assert all(variables["OMP_NUM_THREADS"] == "1" for variables in plan)
    assert len(processes.plan_workers("auto", num_jobs=3, num_gpus=0, environment={})) == 3
    assert len(processes.plan_workers(16, num_jobs=100, num_gpus=0, environment={})) == 16


@pytest.mark.parametrize(
    ("workers", "environment", "seen"),
    [
        ("auto", {}, ["0", "1"]),
        ("auto", {processes.VISIBLE_DEVICES: "3,GPU-5"}, ["3", "GPU-5"]),
        (3, {}, ["0", "1", "0"]),
    ],
)
def test_a_process_sees_one_gpu_of_those_that_this_one_sees(
    workers, environment, seen, monkeypatch
):
    monkeypatch.setattr(processes, "num_cores", lambda: 8)
    plan = processes.plan_workers(workers, num_jobs=9, num_gpus=2, environment=environment)
    assert [variables[processes.VISIBLE_DEVICES] for variables in plan] == seen
    assert {variables["OMP_NUM_THREADS"] for variables in plan} == {str(8 // len(seen))}


def test_cores_are_those_that_the_process_may_use(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5}, raising=False)
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(processes, "CPU_QUOTA", quota)
    assert processes.num_cores() == 4
    quota.write_text("max 100000\n")
    assert processes.num_cores() == 4
    quota.write_text("150000 100000\n")
    assert processes.num_cores() == 2


def test_what_a_worker_logs_and_warns_of_reaches_the_handlers_here(caplog):
    def speak(job, report):
        import warnings

        logging.getLogger("engines.told").info("job %d", job)
        logging.getLogger("engines.quiet").info("not shown")
        warnings.warn("careful", stacklevel=1)

    with caplog.at_level(logging.INFO, logger="engines.told"):
        run_jobs(speak, [7], titles=["a"], workers="auto")
    messages = [record.getMessage() for record in caplog.records]
    assert "job 7" in messages
    assert "not shown" not in messages
    assert any("careful" in message for message in messages)


def load_count(folder, monkeypatch):
    """The function ``count`` of the scripts, and what it needs."""
    monkeypatch.setattr(sys, "argv", ["script", str(folder)])
    names = {"__name__": "__main__"}
    exec(COUNTING, names)  # so that it is pickled by value
    return names["count"]


def test_the_exception_of_a_job_is_raised_here_and_the_others_save(tmp_path, monkeypatch):
    count = load_count(tmp_path, monkeypatch)

    def fail_or_count(job, report):
        if job == "counts":
            return count(job, report)
        while not (tmp_path / "counts.pid").exists():
            time.sleep(0.01)
        raise ValueError("lr=-1: wanted a positive number")

    with pytest.raises(ValueError, match="lr=-1") as caught:
        run_jobs(
            fail_or_count, ["fails", "counts", "never"], titles=["bad", "good", "c"], workers=2
        )
    (note,) = caught.value.__notes__
    assert "in the worker that ran bad" in note
    assert "fail_or_count" in note
    assert int((tmp_path / "counts").read_text()) > 0
    assert (tmp_path / "counts.saved").exists()
    assert not (tmp_path / "never.pid").exists()


def test_an_exception_that_cannot_be_pickled_comes_as_the_nearest_that_can():
    class OddError(ValueError):
        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    class HeldError(Exception):
        pass

    held = HeldError("it is held")
    held.lock = threading.Lock()
    odd = FailedError.of(OddError(1, 2)).unpack("a")
    assert (type(odd), str(odd)) == (ValueError, "1 and 2")
    other = FailedError.of(held).unpack("a")
    assert (type(other), str(other)) == (RuntimeError, "HeldError: it is held")


def test_a_job_that_cannot_be_pickled_is_refused_before_anything_runs(tmp_path):
    def touch(job, report):
        (tmp_path / "ran").touch()

    with pytest.raises(TypeError, match="pickle"):
        run_jobs(touch, [0, threading.Lock()], titles="ab", workers=2)
    assert not (tmp_path / "ran").exists()


def test_a_killed_worker_is_named_by_its_job_and_the_others_save(tmp_path, monkeypatch):
    count = load_count(tmp_path, monkeypatch)

    def die_or_count(job, report):
        if job == "counts":
            return count(job, report)
        while not (tmp_path / "counts.pid").exists():
            time.sleep(0.01)
        return os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ChildProcessError, match=r"while it ran bad .*killed by signal 9.*memory"):
        run_jobs(die_or_count, ["dies", "counts"], titles=["bad", "good"], workers=2)
    assert (tmp_path / "counts.saved").exists()


@pytest.mark.parametrize(
    ("number", "whole_group"),
    [
        pytest.param(signal.SIGINT, True, id="terminal"),
        pytest.param(signal.SIGINT, False, id="notebook", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, True, id="batch system", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, False, id="kill", marks=pytest.mark.slow),
    ],
)
def test_a_signal_has_all_running_jobs_save_and_starts_no_more(
    number, whole_group, start, tmp_path
):
    process = start(COUNTING + RUN)
    pids = pids_of(tmp_path, "ab", process)
    (os.killpg if whole_group else os.kill)(process.pid, number)
    assert process.wait(PATIENCE) == 128 + number
    for name in "ab":
        assert (tmp_path / f"{name}.saved").read_text() == f"[{int(number)}]"
        assert int((tmp_path / name).read_text()) > 0
    assert not (tmp_path / "c.pid").exists()
    assert not any(is_alive(pid) for pid in pids)
    assert "Traceback" not in (tmp_path / "stderr").read_text()


@pytest.mark.slow
def test_a_signal_to_one_worker_stops_all(start, tmp_path):
    process = start(COUNTING + RUN)
    pids = pids_of(tmp_path, "ab", process)
    os.kill(pids[0], signal.SIGTERM)
    assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert all((tmp_path / f"{name}.saved").exists() for name in "ab")


@pytest.mark.slow
def test_a_second_interrupt_ends_all_at_once(start, tmp_path):
    process = start(COUNTING.replace("time.sleep(1)", "time.sleep(10**6)") + RUN)
    pids = pids_of(tmp_path, "ab", process)
    process.send_signal(signal.SIGINT)
    wait_until(lambda: "stopping" in (tmp_path / "stderr").read_text(), "the first is noticed")
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) != 0
    assert "KeyboardInterrupt" in (tmp_path / "stderr").read_text()
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "the workers end")
    assert not (tmp_path / "a.saved").exists()


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("while_it", ["starts", "unpickles"])
def test_an_interrupt_of_a_worker_that_starts_prints_no_trace(while_it, start, tmp_path):
    slow = """
def unpickle(name):
    (FOLDER / f"{name}.unpickled").touch()
    time.sleep(10**6)
class Slow(str):
    def __reduce__(self):
        return unpickle, (str(self),)
"""
    script = COUNTING + slow + RUN.replace('["a", "b", "c"],', '[Slow(n) for n in "abc"],', 1)
    process = start(script)
    if while_it == "starts":
        wait_until(lambda: children_of(process.pid), "a worker is there")
    else:
        wait_until(lambda: len(list(tmp_path.glob("*.unpickled"))) == 2, "jobs are unpickled")
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    assert "Traceback" not in (tmp_path / "stderr").read_text()


def test_workers_end_when_their_parent_is_killed(start, tmp_path):
    process = start(COUNTING + RUN)
    pids = pids_of(tmp_path, "ab", process)
    process.kill()
    process.wait()
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "the workers end")
    assert not (tmp_path / "a.saved").exists()


@pytest.mark.slow
def test_a_stopped_call_goes_on_when_it_is_repeated(start, tmp_path):
    process = start(COUNTING + RUN)
    pids_of(tmp_path, "ab", process)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    before = int((tmp_path / "a").read_text())
    script = COUNTING.replace("10**9", str(before + 3)) + RUN
    (tmp_path / "b").unlink()
    process = start(script)
    assert process.wait(PATIENCE) == 0
    assert "3 of 3 done" in (tmp_path / "stderr").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(workers=0), "workers=0"),
        (dict(address="auto"), "address=auto needs cluster=ray"),
        (dict(titles=["one", "more"]), "1 jobs need as many titles"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        run_jobs(lambda job, report: None, [0], **{"titles": ["a"], **options})


def test_without_ray_the_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'hrm-deeploop\[ray\]'"):
        run_jobs(lambda job, report: None, [0], titles=["a"], cluster="ray")


def test_no_jobs_start_nothing():
    assert run_jobs(lambda job, report: None, [], titles=[], workers="auto") == []
