"""Runs many independent jobs: here one by one, on every core or GPU, or on a Ray cluster.

A job is anything that can be pickled; a function does it, tells its progress and may be stopped. An
engine knows nothing else of what a job is. A job that is stopped is expected to save and to raise
``StoppedError``, and to go on from there when it is run again.
"""

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from hrm_deeploop.runs.engines import serial
from hrm_deeploop.runs.engines.display import Display
from hrm_deeploop.runs.engines.jobs import Progress, Report, StoppedError

__all__ = ["Progress", "Report", "StoppedError", "run_jobs"]

Job = TypeVar("Job")
Result = TypeVar("Result")


def run_jobs(
    function: Callable[[Job, Report], Result],
    jobs: Sequence[Job],
    *,
    titles: Sequence[str],
    workers: int | Literal["auto"] = 1,
    cluster: Literal["ray"] | None = None,
    address: str | None = None,
    description: str = "jobs",
) -> list[Result]:
    """Run ``function(job, report)`` for every job and show the progress of all on stderr.

    Function, jobs and results travel by value where they can't be imported, so those of a notebook
    work too. A signal or the failure of one job stops the others in order: they save.

    Args:
        titles: names of the jobs, for the display and for errors.
        workers: how many jobs run at a time. 1 runs them in this process. ``auto`` takes a process
            per GPU of this machine, or per core where there is no GPU; of a cluster all it has.
            On CPUs each process computes with one thread.
        cluster: ``ray`` makes every job a task of a Ray cluster.
        address: of a running Ray cluster, or ``auto``; None starts one on this machine.

    Returns:
        The results, in the order of the jobs.

    Raises:
        StoppedError: if a signal ended the work; the same call goes on.
        ChildProcessError: if a worker died.
        ValueError: if the engine is not available, or what a job raised; so for any exception.
    """
    if len(titles) != len(jobs):
        raise ValueError(f"{len(jobs)} jobs need as many titles, got {len(titles)}")
    if workers != "auto" and workers < 1:
        raise ValueError(f"workers={workers}: allowed are auto and 1 or more")
    if address is not None and cluster is None:
        raise ValueError(f"address={address} needs cluster=ray")
    if not jobs:
        return []
    # The engines that are not asked for are not imported: torch or Ray come with them.
    if cluster is not None:
        from hrm_deeploop.runs.engines import ray_cluster

        return ray_cluster.run(
            function, jobs, titles, workers=workers, address=address, description=description
        )
    if workers == 1:
        with Display(titles, description=description) as display:
            return serial.run(function, jobs, display)
    from hrm_deeploop.runs.engines import processes

    with Display(titles, description=description) as display:
        return processes.run(function, jobs, titles, workers=workers, display=display)
