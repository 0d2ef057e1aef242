"""Engines: jobs run side by side, in processes of this machine or as tasks of a Ray cluster.

A job is any picklable value, and one function is called with each. A job that is stopped keeps what
it has done by itself, and goes on from there when it is called again.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple


class Progress(NamedTuple):
    """How far a job is."""

    done: int
    total: int
    note: str


Report = Callable[[Progress], None]
"""Told by a job how far it is."""


class StoppedError(Exception):
    """A signal ended the work; the same call goes on."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run_jobs(
    function: Callable[[Any, Report], Any],
    jobs: Sequence[Any],
    *,
    titles: Sequence[str],
    workers: int | Literal["auto"] = 1,
    cluster: Literal["ray"] | None = None,
    address: str | None = None,
    description: str = "jobs",
) -> list[Any]:
    """Call ``function`` with every job and what it may report to; returns its results in order.

    Functions and classes that a notebook defines work in every engine.

    Args:
        function: called as ``function(job, report)``.
        jobs: what it is called with.
        titles: what the progress display calls the jobs.
        workers: processes on this machine. 1 is this process itself; ``auto`` starts one a GPU, or
            without GPUs one a core, each with one thread.
        cluster: ``ray`` makes the jobs tasks of a Ray cluster, which are tried again when a worker
            dies.
        address: of a running Ray cluster; None starts one on this machine.
        description: what the progress display calls all of them.

    Raises:
        StoppedError: if SIGINT or SIGTERM came; running jobs got it and have ended.
        ValueError: if the engine is not there, or a worker died.
        Exception: what a job raised; the others were stopped.
    """
    from hrm_deeploop.runs.engines.display import Display

    with Display(titles, description) as display:
        if cluster == "ray":
            from hrm_deeploop.runs.engines import ray_cluster

            return ray_cluster.run(function, jobs, display, address=address)
        if workers == 1:
            return [_run_here(function, job, i, display) for i, job in enumerate(jobs)]
        from hrm_deeploop.runs.engines import processes

        return processes.run(function, jobs, display, workers=workers)


def _run_here(function: Callable[[Any, Report], Any], job: Any, number: int, display: Any) -> Any:
    display.start(number)
    result = function(job, lambda progress: display.tell(number, progress))
    display.finish(number)
    return result
