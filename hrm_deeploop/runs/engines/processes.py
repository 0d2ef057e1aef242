"""Jobs in processes of this machine: one a GPU, or one a core with one thread.

A worker is a process of its own session, so that a terminal's Ctrl-C reaches this process alone,
which passes it on: running jobs save and stop, waiting ones are not started. Workers whose parent
has gone stop by themselves.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Literal

import cloudpickle

from hrm_deeploop.device import num_accelerators, one_accelerator
from hrm_deeploop.fit import StopSignals
from hrm_deeploop.runs.engines import Progress, Report, StoppedError
from hrm_deeploop.runs.engines.display import Display

CONNECTION, PARENT = "HRM_DEEPLOOP_CONNECTION", "HRM_DEEPLOOP_PARENT"
# One thread a worker, also while torch compiles.
SINGLE_THREADED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")
SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_BETWEEN_REPORTS = 0.5
SECONDS_TO_SAVE = 60.0  # for workers that are stopped because something else has gone wrong


class Worker:
    """One process, and the job that it has."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.connection, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hrm_deeploop.runs.engines.processes"],
                env={
                    **environment,
                    CONNECTION: str(theirs.fileno()),
                    PARENT: str(os.getpid()),
                    "PYTHONPATH": os.pathsep.join(sys.path),
                },
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.job: int | None = None

    def stop(self) -> None:
        """Have the process save what it does, and stop; an idle one just ends."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)


def run(
    function: Callable[[Any, Report], Any],
    jobs: Sequence[Any],
    display: Display,
    *,
    workers: int | Literal["auto"],
) -> list[Any]:
    """Run the jobs in at most so many processes; see :func:`~hrm_deeploop.runs.engines.run_jobs`.

    Raises:
        ValueError: where a process can't hand a connection on to another, as on Windows.
    """
    if os.name != "posix":
        raise ValueError(f"workers={workers}: needs a POSIX system; allowed here is 1")
    num_gpus = num_accelerators()
    if workers == "auto":
        workers = num_gpus or _num_cores()
    pool = _Pool(function, jobs, display)
    try:
        with StopSignals() as stop:
            for number in range(min(workers, len(jobs))):
                environment = {**os.environ, **one_accelerator(number, num_gpus)}
                if not num_gpus:
                    environment |= dict.fromkeys(SINGLE_THREADED, "1")
                pool.add(Worker(environment))
            return pool.run(stop)
    finally:
        pool.close()


class _Pool:
    """Workers, the jobs that wait for them, and what came of those that are done."""

    def __init__(
        self, function: Callable[[Any, Report], Any], jobs: Sequence[Any], display: Display
    ) -> None:
        self._payloads = [cloudpickle.dumps((function, job)) for job in jobs]
        self._waiting = deque(range(len(jobs)))
        self._results: list[Any] = [None] * len(jobs)
        self._display = display
        self._workers: dict[Connection, Worker] = {}
        self._failure: BaseException | None = None
        self._stopped_by: int | None = None
        self._is_stopping = False

    def add(self, worker: Worker) -> None:
        """Take a worker in, and give it a job."""
        self._workers[worker.connection] = worker
        self._assign(worker)

    def _assign(self, worker: Worker) -> None:
        worker.job = None
        if self._waiting and not (self._is_stopping or self._stopped_by or self._failure):
            worker.job = self._waiting.popleft()
            worker.connection.send(self._payloads[worker.job])
            self._display.start(worker.job)
        else:
            worker.connection.close()  # which ends it
            del self._workers[worker.connection]

    def run(self, stop: StopSignals) -> list[Any]:
        """Wait for all jobs, or for those that run if something ends the work."""
        while self._workers:
            for connection in wait(list(self._workers), timeout=SECONDS_BETWEEN_LOOKS):
                assert isinstance(connection, Connection)
                self._hear(self._workers[connection])
            self._stopped_by = stop.received or self._stopped_by
            if (self._stopped_by or self._failure) and not self._is_stopping:
                self._is_stopping = True
                for worker in self._workers.values():
                    worker.stop()
        if self._failure is not None:
            raise self._failure
        if self._stopped_by is not None:
            raise StoppedError(self._stopped_by)
        return self._results

    def _hear(self, worker: Worker) -> None:
        """Take a message of a worker."""
        try:
            kind, value = worker.connection.recv()
        except (EOFError, ConnectionError):
            self._bury(worker)
            return
        number = worker.job
        assert number is not None
        if kind == "progress":
            self._display.tell(number, Progress(*value))
            return
        if kind == "log":
            logging.getLogger(value.name).handle(value)
            return
        if kind == "done":
            self._results[number] = cloudpickle.loads(value)
            self._display.finish(number)
        elif kind == "stopped":
            self._stopped_by = value
        else:
            self._failure = self._failure or cloudpickle.loads(value)
        self._assign(worker)

    def _bury(self, worker: Worker) -> None:
        """A worker has ended by itself: as it was told, or by the hand of somebody else."""
        del self._workers[worker.connection]
        status = worker.process.wait()
        if self._is_stopping or worker.job is None:
            return
        how = f"exit status {status}"
        if status < 0:
            how = f"killed by {signal.Signals(-status).name}"
        memory = ": out of memory?" if -status == signal.SIGKILL else ""
        self._failure = self._failure or ValueError(
            f"a worker ended while it ran {self._display.titles[worker.job]} ({how}{memory}); "
            "the same command goes on"
        )

    def close(self) -> None:
        """Leave no process behind, whatever has happened."""
        left = list(self._workers.values())
        for worker in left:
            worker.stop()
        until = time.monotonic() + SECONDS_TO_SAVE
        for worker in left:
            try:
                worker.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()


def _num_cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _ToParent(logging.Handler):
    """Hands what is logged to the parent."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args, record.exc_info = self.format(record), None, None
        self._connection.send(("log", record))


def _work() -> None:
    """Do jobs until there are no more."""
    with Connection(int(os.environ.pop(CONNECTION))) as connection:
        _watch(int(os.environ.pop(PARENT)))
        logging.getLogger().addHandler(_ToParent(connection))
        for package in ("arc_data", "hrm_deeploop", "eval"):
            logging.getLogger(package).setLevel(logging.INFO)
        with suppress(EOFError, ConnectionError):  # the parent has no more jobs, or is gone
            while True:
                connection.send(_do(connection.recv(), connection))


def _do(payload: bytes, connection: Connection) -> tuple[str, Any]:
    """Do one job; returns what came of it."""
    reported = 0.0

    def report(progress: Progress) -> None:
        nonlocal reported
        now = time.monotonic()
        if now - reported > SECONDS_BETWEEN_REPORTS or progress.done >= progress.total:
            reported = now
            connection.send(("progress", tuple(progress)))

    try:
        function, job = cloudpickle.loads(payload)
        return "done", cloudpickle.dumps(function(job, report))
    except StoppedError as stopped:
        return "stopped", stopped.number
    except Exception as error:  # noqa: BLE001 - the parent raises it
        where = "".join(traceback.format_tb(error.__traceback__))
        error.add_note(f"in a worker:\n{where}")
        return "failed", cloudpickle.dumps(error)


def _watch(parent: int) -> None:
    """Stop this process, saving, once its parent is gone."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=look, daemon=True).start()


if __name__ == "__main__":
    _work()
