"""What a logger is, and the one that logs nothing more."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hrm_deeploop.registry import Registry

PROJECT = "hrm_deeploop"


@runtime_checkable
class Logger(Protocol):
    """Takes the rows of a run's log."""

    def write(self, row: Mapping[str, float | int]) -> None:
        """Log one row, which holds ``step``."""

    def close(self) -> None:
        """Log no more."""


Start = Callable[[Path, Mapping[str, Any]], Logger | None]
"""Starts the log of a run, from its directory and its configuration."""
LOGGERS: Registry[Start] = Registry("logger", "logger")


def logger(name: str) -> Callable[[Start], Start]:
    """Register a function that starts a log as ``name``.

    It is called once a training, and may import what it needs then.
    """
    return LOGGERS.register(name)


@logger("none")
def start_none(directory: Path, config: Mapping[str, Any]) -> None:
    """Log nothing more."""
    del directory, config
