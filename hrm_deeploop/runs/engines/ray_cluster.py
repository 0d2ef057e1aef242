"""Jobs as tasks of a Ray cluster: the cores or GPUs of one machine or of many.

A task whose worker or machine dies is run again, elsewhere if need be, and its job goes on from
what it had saved. To stop, tasks that wait are cancelled, and Ray simulates a SIGINT in those that
run: it reaches the job's own handler once. (Ray blocks a terminal's SIGINT in its processes.)
"""

import io
import os
import pickle
import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import partial
from logging import ERROR, LogRecord, getLogger
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import cloudpickle

from hrm_deeploop.runs.engines.display import Display
from hrm_deeploop.runs.engines.jobs import FailedError, Progress, Report, StoppedError, Throttle
from hrm_deeploop.runs.engines.processes import num_cores, thread_variables
from hrm_deeploop.runs.engines.records import forward_logs, log_levels
from hrm_deeploop.stop_signals import STOP_SIGNALS, StopSignals

if TYPE_CHECKING:
    from ray import ObjectRef

MAX_RETRIES = 3  # of a job, after a worker or a machine died under it
LOOK_EVERY = 0.5  # seconds
OBJECT_STORE = 100 * 2**20  # bytes; jobs and results are small

log = getLogger(__name__)


class Started(NamedTuple):
    """A worker has taken a job."""

    host: str


class Board:
    """What the tasks tell; an actor on the caller's machine."""

    def __init__(self) -> None:
        self._told: list[tuple[int, Started | Progress | LogRecord]] = []

    def tell(self, job: int, message: Started | Progress | LogRecord) -> None:
        """Note what a job tells."""
        self._told.append((job, message))

    def take(self) -> list[tuple[int, Started | Progress | LogRecord]]:
        """Return what is new."""
        told, self._told = self._told, []
        return told


class Surroundings(NamedTuple):
    """What a task needs of the process that asked for it."""

    directory: str  # that relative paths are relative to
    levels: Mapping[str, int]  # of its loggers


def perform(payload: bytes, number: int, board: Any, surroundings: Surroundings) -> bytes:
    """Do a job, in a task; job and result are cloudpickled.

    Args:
        number: of the job.
        board: the actor that is told how far it is.

    Raises:
        ValueError: if this machine does not have the directory.
        FailedError: if the job failed.
    """
    host = os.uname().nodename
    if not Path(surroundings.directory).is_dir():
        raise ValueError(
            f"{surroundings.directory} does not exist on {host}: start from a directory that all "
            "machines of the cluster share"
        )
    os.chdir(surroundings.directory)
    tell = partial(board.tell.remote, number)
    tell(Started(host))
    with forward_logs(surroundings.levels, tell):
        try:
            function, job = pickle.loads(payload)
            return cloudpickle.dumps(function(job, Throttle(tell, LOOK_EVERY)))
        except StoppedError:
            raise
        except Exception as error:
            # Ray's own pickle would make another class of one that can't be imported.
            raise FailedError.of(error) from error


@contextmanager
def connected(address: str | None, num_cpus: int | None) -> Iterator[None]:
    """Connect to the cluster at an address, or start one on this machine and end it.

    A connection that the process already has is used and left. Signal handlers are as before
    afterwards.

    Raises:
        ValueError: if Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ValueError(
            "cluster=ray needs the package ray: pip install 'hrm-deeploop[ray]'"
        ) from error
    if ray.is_initialized():
        yield
        return
    local: dict[str, Any] = {}
    if address is None:
        local = {
            "num_cpus": num_cpus,
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE,
        }
    is_main = current_thread() is main_thread()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        # "local" starts a cluster even where one is running; None would take that one.
        # Ray tells of dead workers on stdout, which belongs to results.
        with redirect_stdout(_ToLog()):
            ray.init(address or "local", log_to_driver=False, logging_level=ERROR, **local)
            yield
    finally:
        ray.shutdown()
        if is_main:
            for number, handler in before.items():
                signal.signal(number, handler)


class _ToLog(io.TextIOBase):
    """Logs what is written to it."""

    def write(self, text: str) -> int:
        """Log a text."""
        if text.strip():
            log.debug("ray: %s", text.strip())
        return len(text)


class _Tasks:
    """The tasks of one call and what has come of its jobs."""

    def __init__(
        self,
        function: Callable[[Any, Report], Any],
        jobs: Sequence[Any],
        titles: Sequence[str],
        display: Display,
        *,
        limit: int,
        is_local: bool,
    ) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._payloads = [cloudpickle.dumps((function, job)) for job in jobs]
        self._titles, self._display, self._limit = titles, display, limit
        self._waiting = deque(range(len(jobs)))
        self._running: dict[ObjectRef[bytes], int] = {}
        self._results: dict[int, Any] = {}
        self._num_starts: Counter[int] = Counter()
        self._num_stopped: Counter[int] = Counter()
        self._failure: BaseException | None = None
        self._stopped_by: int | None = None

        has_gpus = ray.cluster_resources().get("GPU", 0) > 0
        variables = {} if has_gpus else thread_variables(1)
        if is_local:  # the machines of a cluster have the package installed
            variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        environment = {"env_vars": variables}
        # It lives with this process: other machines may die.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        board: Any = ray.remote(Board)
        self._board = board.options(
            num_cpus=0, scheduling_strategy=here, runtime_env=environment
        ).remote()
        self._surroundings = Surroundings(str(Path.cwd()), log_levels())
        self._perform: Any = ray.remote(perform)
        self._options = {
            "num_cpus": 1,
            "num_gpus": int(has_gpus),
            "max_retries": MAX_RETRIES,
            "retry_exceptions": False,
            "runtime_env": environment,
        }

    def run(self) -> list[Any]:
        """Run all jobs and return their results."""
        import ray

        is_main = current_thread() is main_thread()
        try:
            with StopSignals() if is_main else nullcontext() as signals:
                self._submit()
                while self._running:
                    ended, _ = ray.wait(list(self._running), timeout=LOOK_EVERY)
                    self._show()
                    for task in ended:
                        self._collect(task)
                    self._submit()
                    if signals is not None and signals.received is not None:
                        self._stop(signals.received)
                if signals is not None and signals.received is not None:
                    self._stop(signals.received)
        finally:
            for task in self._running:  # none is left, unless this is left by an exception
                ray.cancel(task, force=True)
            ray.kill(self._board)
        if self._failure is not None:
            raise self._failure
        if self._stopped_by is not None:
            raise StoppedError(self._stopped_by)
        return [self._results[number] for number in range(len(self._titles))]

    def _submit(self) -> None:
        while self._waiting and len(self._running) < self._limit:
            job = self._waiting.popleft()
            task = self._perform.options(name=self._titles[job], **self._options).remote(
                self._payloads[job], job, self._board, self._surroundings
            )
            self._running[task] = job

    def _show(self) -> None:
        import ray

        for job, message in ray.get(self._board.take.remote()):
            if isinstance(message, LogRecord):
                self._display.log(message)
            elif isinstance(message, Progress):
                self._display.report(job, message)
            else:
                self._num_starts[job] += 1
                self._display.start(job)
                if self._num_starts[job] > 1:
                    self._display.write(f"{self._titles[job]} goes on, on {message.host}")

    def _collect(self, task: "ObjectRef[bytes]") -> None:
        """Take a task's result, or see why there is none."""
        import ray
        from ray.exceptions import (
            NodeDiedError,
            OutOfMemoryError,
            RayTaskError,
            TaskCancelledError,
            WorkerCrashedError,
        )

        job = self._running.pop(task)
        try:
            self._results[job] = pickle.loads(ray.get(task))
        except TaskCancelledError:
            self._stop(signal.SIGINT)
        except (WorkerCrashedError, NodeDiedError, OutOfMemoryError) as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            message = (
                f"a worker ended while it ran {self._titles[job]}, {MAX_RETRIES + 1} times "
                f"({reason}); the same command goes on"
            )
            self._fail(ChildProcessError(message))
        except RayTaskError as error:
            if isinstance(error.cause, StoppedError):
                self._go_on_elsewhere(job, error.cause.number)
                return
            if isinstance(error.cause, FailedError):
                self._fail(error.cause.unpack(self._titles[job]))
            else:
                self._fail(error.cause if isinstance(error.cause, ValueError) else error)
        else:
            self._display.start(job)
            self._display.end(job)
            return
        self._display.drop(job)

    def _go_on_elsewhere(self, job: int, number: int) -> None:
        """Submit a job again that saved because its machine, not this one, is going down."""
        self._num_stopped[job] += 1
        if self._stopped_by is None and self._num_stopped[job] <= MAX_RETRIES:
            self._waiting.append(job)
            return
        self._display.drop(job)
        self._stop(number)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        else:
            self._display.write(f"and {type(error).__name__}: {error}")
        self._stop(signal.SIGTERM)

    def _stop(self, number: int) -> None:
        """Start no more jobs and have the running ones save; only the first call does anything."""
        import ray

        if self._stopped_by is not None:
            return
        self._stopped_by = int(number)
        self._waiting.clear()
        for task in self._running:
            ray.cancel(task, force=False)
        if self._running:
            self._display.write("stopping; the jobs that run save first")


def run(
    function: Callable[[Any, Report], Any],
    jobs: Sequence[Any],
    titles: Sequence[str],
    *,
    workers: int | Literal["auto"],
    address: str | None,
    description: str,
) -> list[Any]:
    """Run the jobs on a cluster; ``run_jobs`` says what is raised when."""
    limit = len(jobs) if workers == "auto" else workers
    num_cpus = num_cores() if workers == "auto" else workers
    with connected(address, num_cpus), Display(titles, description=description) as display:
        is_local = address is None
        tasks = _Tasks(function, jobs, titles, display, limit=limit, is_local=is_local)
        return tasks.run()
