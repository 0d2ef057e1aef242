"""Jobs one after the other, in this process."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hrm_deeploop.runs.engines.display import Display
from hrm_deeploop.runs.engines.jobs import Report


def run(function: Callable[[Any, Report], Any], jobs: Sequence[Any], display: Display) -> list[Any]:
    """Run the jobs; a signal does what the running job makes of it."""
    results = []
    for number, job in enumerate(jobs):
        display.start(number)
        results.append(function(job, partial(display.report, number)))
        display.end(number)
    return results
