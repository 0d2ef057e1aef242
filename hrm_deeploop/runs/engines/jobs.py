"""What a job tells while it runs, and how it says that a signal ended it."""

import pickle
import time
import traceback
from collections.abc import Callable
from pickle import PickleError
from typing import NamedTuple

import cloudpickle


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


class FailedError(Exception):
    """What a job raised in another process, on its way to this one."""

    def __init__(self, pickled: bytes, traceback: str) -> None:
        super().__init__(pickled, traceback)
        self._pickled, self._traceback = pickled, traceback

    @classmethod
    def of(cls, error: BaseException) -> "FailedError":
        """Pack an exception, as the nearest builtin one if it can't be pickled itself."""
        try:
            pickled = cloudpickle.dumps(error)
            pickle.loads(pickled)
        except (TypeError, ValueError, AttributeError, RuntimeError, OSError, PickleError):
            kinds = (kind for kind in (ValueError, OSError) if isinstance(error, kind))
            kind = next(kinds, None)
            name = type(error).__name__
            nearest = kind(str(error)) if kind else RuntimeError(f"{name}: {error}")
            pickled = cloudpickle.dumps(nearest)
        return cls(pickled, "".join(traceback.format_exception(error)))

    def unpack(self, title: str) -> BaseException:
        """Return the exception, with where it was raised as a note."""
        error = pickle.loads(self._pickled)
        error.add_note(f"in the worker that ran {title}:\n{self._traceback}")
        return error


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
