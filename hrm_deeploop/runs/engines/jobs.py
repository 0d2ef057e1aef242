"""What a job tells while it runs, and how it says that a signal ended it."""

import time
from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """How far a job is."""

    done: int
    total: int
    note: str  # anything else worth showing, "loss 0.51"


Report = Callable[[Progress], None]


class StoppedError(Exception):
    """A signal ended the work after it was saved; the same command goes on."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        return f"stopped by signal {self.number}; the same command goes on"


class Throttle:
    """A report that passes on the first progress, the last, and between them one an interval."""

    def __init__(self, report: Report, seconds: float) -> None:
        self._report, self._seconds = report, seconds
        self._last = -seconds

    def __call__(self, progress: Progress) -> None:
        """Pass the progress on if it is time."""
        now = time.monotonic()
        if now - self._last >= self._seconds or progress.done >= progress.total:
            self._last = now
            self._report(progress)
