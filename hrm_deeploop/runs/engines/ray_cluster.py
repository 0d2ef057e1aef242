"""Jobs as tasks of a Ray cluster (Moritz et al. 2018, arXiv:1712.05889).

A task has a GPU where the cluster has any, else a core and one thread. It is tried again where its
worker dies, and goes on from what the job has kept. A board, which is an actor, carries what the
tasks report to this process, and the word to stop back to them.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from hrm_deeploop.fit import StopSignals
from hrm_deeploop.runs.engines import Progress, Report, StoppedError
from hrm_deeploop.runs.engines.display import Display

MAX_RETRIES = 3  # of a task whose worker died
SECONDS_BETWEEN_LOOKS = 0.5

log = logging.getLogger(__name__)


class Board:
    """What all tasks and the driver read and write."""

    def __init__(self) -> None:
        self._progress: dict[int, tuple[int, int, str]] = {}
        self._started: set[int] = set()
        self._is_stopped = False

    def tell(self, number: int, progress: tuple[int, int, str] | None) -> bool:
        """Note how far a job is; returns whether it is to stop."""
        self._started.add(number)
        if progress is not None:
            self._progress[number] = progress
        return self._is_stopped

    def stop(self) -> None:
        """Have all jobs stop."""
        self._is_stopped = True

    def read(self) -> tuple[set[int], dict[int, tuple[int, int, str]]]:
        """Return which jobs have started, and how far each is."""
        return self._started, self._progress


def run(
    function: Callable[[Any, Report], Any],
    jobs: Sequence[Any],
    display: Display,
    *,
    address: str | None,
) -> list[Any]:
    """Run the jobs on a cluster; see :func:`~hrm_deeploop.runs.engines.run_jobs`.

    Raises:
        ValueError: if ray is not installed, or there is no cluster at the address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ValueError(
            "cluster=ray needs the package ray: pip install 'hrm-deeploop[ray]'"
        ) from error
    is_ours = not ray.is_initialized()
    if is_ours:
        _connect(ray, address)
    try:
        with StopSignals() as stop:
            return _run(ray, function, jobs, display, stop)
    finally:
        if is_ours:
            ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    options: dict[str, Any] = {"logging_level": logging.WARNING, "log_to_driver": False}
    if address is None:
        options["include_dashboard"] = False
    else:
        options["address"] = address
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError) as error:
        text = str(error).split("\n", maxsplit=1)[0]
        raise ValueError(f"address={address}: no Ray cluster answers there ({text})") from error


def _run(
    ray: Any,
    function: Callable[[Any, Report], Any],
    jobs: Sequence[Any],
    display: Display,
    stop: StopSignals,
) -> list[Any]:
    has_gpus = ray.cluster_resources().get("GPU", 0) >= 1
    board = ray.remote(num_cpus=0)(Board).remote()
    task = ray.remote(
        max_retries=MAX_RETRIES, num_cpus=0 if has_gpus else 1, num_gpus=1 if has_gpus else 0
    )(_do)
    # Read here, where a terminal and the user's modules are; a task's own are Ray's.
    environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(_search_path())}}
    numbers = {
        task.options(runtime_env=environment).remote(function, job, number, board): number
        for number, job in enumerate(jobs)
    }
    results: list[Any] = [None] * len(jobs)
    shown: set[int] = set()
    failure: BaseException | None = None
    is_stopping = False
    while numbers:
        done, _ = ray.wait(list(numbers), timeout=SECONDS_BETWEEN_LOOKS)
        started, progress = ray.get(board.read.remote())
        for number in sorted(started - shown):
            display.start(number)
            shown.add(number)
        for number, values in progress.items():
            if number in numbers.values():
                display.tell(number, Progress(*values))
        for reference in done:
            number = numbers.pop(reference)
            try:
                results[number] = ray.get(reference)
                display.finish(number)
            except ray.exceptions.TaskCancelledError:
                continue
            except ray.exceptions.RayTaskError as error:
                cause = error.cause
                if not isinstance(cause, StoppedError):
                    failure = failure or cause
            except ray.exceptions.RayError as error:
                text = str(error).split("\n", maxsplit=1)[0]
                failure = failure or ValueError(
                    f"{display.titles[number]}: its worker died {MAX_RETRIES + 1} times ({text}); "
                    "the same command goes on"
                )
        if (stop.received or failure) and not is_stopping:
            is_stopping = True
            ray.get(board.stop.remote())
            for reference, number in numbers.items():
                if number not in started:
                    ray.cancel(reference)
    if failure is not None:
        raise failure
    if stop.received is not None:
        raise StoppedError(stop.received)
    return results


def _search_path() -> list[str]:
    """Return where this process finds modules, for the workers of a local cluster."""
    import sys

    return [place for place in sys.path if place]


def _do(function: Callable[[Any, Report], Any], job: Any, number: int, board: Any) -> Any:
    """Do one job in a worker of the cluster."""
    import ray

    latest: list[tuple[int, int, str] | None] = [None]
    ended = threading.Event()

    def exchange() -> None:
        while not ended.is_set():
            with suppress(ray.exceptions.RayError):
                if ray.get(board.tell.remote(number, latest[0])):
                    os.kill(os.getpid(), signal.SIGINT)  # which a training takes as any other
                    return
            ended.wait(2 * SECONDS_BETWEEN_LOOKS)

    threading.Thread(target=exchange, daemon=True).start()
    try:
        return function(job, lambda progress: latest.__setitem__(0, tuple(progress)))
    except KeyboardInterrupt as error:  # it came before there was anything to save
        raise StoppedError(signal.SIGINT) from error
    finally:
        ended.set()
        time.sleep(0)
