"""Signals that ask for an orderly end: finish the step, save, and leave."""

import signal
from types import FrameType
from typing import Any

# A terminal's Ctrl-C, a batch system's end of time, a connection that drops, and the warnings that
# SLURM's --signal and submitit send.
STOP_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


class StopSignals:
    """Turns the first of ``STOP_SIGNALS`` into a request to stop after the step.

    Use as a context manager. A second one acts as it would have without us. SIGHUP stays ignored
    where the process was started so, as ``nohup`` does.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        for number in STOP_SIGNALS:
            # A shell's background jobs ignore SIGINT, and are stopped by it all the same.
            if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def is_asked(self) -> bool:
        """Tell whether one has come."""
        return self.received is not None

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self.received = int(number)
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def __exit__(self, *_: object) -> None:
        self._restore()
