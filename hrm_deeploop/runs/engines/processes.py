"""Jobs side by side in processes of this machine: one a GPU, or one a core with one thread.

The processes are started as ``python -c`` and get functions by value. Neither ``multiprocessing``
nor ``concurrent.futures`` would do: both run the caller's script again in every process, both pass
a terminal's signals on to jobs that are saving, and a pool does not say which job a dead process
ran.
"""

import math
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from logging import LogRecord
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, NamedTuple

import cloudpickle
import torch

from hrm_deeploop.runs.engines import worker
from hrm_deeploop.runs.engines.display import Display
from hrm_deeploop.runs.engines.jobs import Progress, Report, StoppedError
from hrm_deeploop.runs.engines.records import log_levels
from hrm_deeploop.stop_signals import StopSignals

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
LOOK_EVERY = 0.2  # seconds, for signals
GOODBYE = 60.0  # seconds that an idle worker may take to end


def num_cores() -> int:
    """Count the cores that this process may use."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    if CPU_QUOTA.is_file():  # of a container
        quota, period = CPU_QUOTA.read_text().split()
        if quota != "max":
            count = min(count, math.ceil(int(quota) / int(period)))
    return max(1, count)


def thread_variables(num_threads: int) -> dict[str, str]:
    """Return the environment of a process that computes with so many threads.

    The variables count if they are set before torch is imported.
    """
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {
        **dict.fromkeys(names, str(num_threads)),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # more are processes that outlive a signal
    }


def plan_workers(
    workers: int | Literal["auto"], *, num_jobs: int, num_gpus: int, environment: Mapping[str, str]
) -> list[dict[str, str]]:
    """Return what each process adds to the environment; their number is that of processes.

    More processes than GPUs share them in turn.

    Args:
        workers: at most so many processes; ``auto`` is the number of GPUs, or of cores without.
        environment: of this process, which may see some GPUs of the machine alone.
    """
    cores = num_cores()
    count = min(num_jobs, (num_gpus or cores) if workers == "auto" else workers)
    if num_gpus == 0:
        return [thread_variables(1) for _ in range(count)]
    seen = environment.get(VISIBLE_DEVICES)
    names = seen.split(",") if seen else [str(number) for number in range(num_gpus)]
    return [
        {
            **thread_variables(max(1, cores // count)),
            VISIBLE_DEVICES: names[number % num_gpus],
        }
        for number in range(count)
    ]


class _Process(NamedTuple):
    process: subprocess.Popen[bytes]
    connection: Connection


def _start(variables: Mapping[str, str]) -> _Process:
    """Start a worker; it has the modules that this process can import."""
    ours, theirs = multiprocessing.Pipe()
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from {worker.__name__} import main; main({theirs.fileno()})"
    )
    # A worker inherits the mask, so no signal can meet it while it imports.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, worker.BLOCKED)
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **variables},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
    found = _Process(process, ours)
    _send(found, worker.Begin(log_levels()))
    return found


def _send(to: _Process, message: worker.Begin | worker.Run | worker.Stop | worker.End) -> None:
    """Send a message; a worker that is dead is noticed when it is read from."""
    with suppress(OSError):
        to.connection.send(message)


class _Crew:
    """The workers of one call and what has come of its jobs."""

    def __init__(
        self,
        function: Callable[[Any, Report], Any],
        jobs: Sequence[Any],
        titles: Sequence[str],
        display: Display,
    ) -> None:
        # What can't be pickled is refused before anything runs.
        self._payloads = [cloudpickle.dumps((function, job)) for job in jobs]
        self._titles = titles
        self._display = display
        self._waiting = deque(range(len(jobs)))
        self._workers: list[_Process] = []
        self._running: dict[_Process, int] = {}  # which job a worker runs
        self._results: dict[int, Any] = {}
        self._failure: BaseException | None = None
        self._stopped_by: int | None = None

    def run(self, plan: Sequence[Mapping[str, str]]) -> list[Any]:
        """Run all jobs and return their results."""
        is_main = threading.current_thread() is threading.main_thread()
        try:
            # Only the main thread may handle signals.
            with StopSignals() if is_main else nullcontext() as signals:
                for variables in plan:
                    started = _start(variables)
                    self._workers.append(started)
                    self._give_job(started)
                while self._running:
                    self._read()
                    if signals is not None and signals.received is not None:
                        self._stop(signals.received)
                if signals is not None and signals.received is not None:
                    self._stop(signals.received)
                self._dismiss()
        finally:
            for process, connection in self._workers:
                connection.close()
                process.kill()  # none is left, unless this is left by an exception
                process.wait()
        if self._failure is not None:
            raise self._failure
        if self._stopped_by is not None:
            raise StoppedError(self._stopped_by)
        return [self._results[number] for number in range(len(self._titles))]

    def _give_job(self, to: _Process) -> None:
        if not self._waiting:
            return
        job = self._waiting.popleft()
        self._running[to] = job
        self._display.start(job)
        _send(to, worker.Run(self._payloads[job]))

    def _read(self) -> None:
        """Take one message of every worker that has sent some."""
        by_connection = {found.connection: found for found in self._running}
        for connection in wait(list(by_connection), LOOK_EVERY):
            found = by_connection[connection]  # pyright: ignore[reportArgumentType]
            try:
                message = found.connection.recv()
            except (EOFError, OSError):
                self._bury(found)
                continue
            self._take(found, message)

    def _take(self, found: _Process, message: worker.Message) -> None:
        if isinstance(message, Progress):
            self._display.report(self._running[found], message)
            return
        if isinstance(message, LogRecord):
            self._display.log(message)
            return
        job = self._running.pop(found)
        if isinstance(message, worker.Finished):
            self._results[job] = pickle.loads(message.result)
            self._display.end(job)
            self._give_job(found)
            return
        self._display.drop(job)
        if isinstance(message, worker.Stopped):
            self._stop(message.number)
            return
        self._fail(message.unpack(self._titles[job]))

    def _bury(self, found: _Process) -> None:
        """Say which job a dead worker ran and how it ended."""
        job = self._running.pop(found)
        self._display.drop(job)
        try:
            status = found.process.wait(GOODBYE)
        except subprocess.TimeoutExpired:
            how = "it closed its connection"
        else:
            how = f"exit status {status}" if status >= 0 else f"killed by signal {-status}"
            if -status == signal.SIGKILL:
                how += ": out of memory?"
        title = self._titles[job]
        message = f"a worker ended while it ran {title} ({how}); the same command goes on"
        self._fail(ChildProcessError(message))

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        else:
            self._display.write(f"and {type(error).__name__}: {error}")
        self._stop(signal.SIGTERM)

    def _stop(self, number: int) -> None:
        """Start no more jobs and have the running ones save; only the first call does anything."""
        if self._stopped_by is not None:
            return
        self._stopped_by = int(number)
        self._waiting.clear()
        for found in self._running:
            _send(found, worker.Stop(number))
        if self._running:
            titles = ", ".join(self._titles[job] for job in self._running.values())
            self._display.write(f"stopping; these save first: {titles}")

    def _dismiss(self) -> None:
        """Wait for idle workers to end."""
        for found in self._workers:
            _send(found, worker.End())
        for found in self._workers:
            with suppress(subprocess.TimeoutExpired):
                found.process.wait(GOODBYE)


def run(
    function: Callable[[Any, Report], Any],
    jobs: Sequence[Any],
    titles: Sequence[str],
    *,
    workers: int | Literal["auto"],
    display: Display,
) -> list[Any]:
    """Run the jobs in processes of this machine; ``run_jobs`` says what is raised when."""
    plan = plan_workers(
        workers,
        num_jobs=len(jobs),
        num_gpus=torch.accelerator.device_count(),
        environment=os.environ,
    )
    return _Crew(function, jobs, titles, display).run(plan)
