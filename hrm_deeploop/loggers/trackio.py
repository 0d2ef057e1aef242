"""Trackio: experiments tracked in a local database, without an account."""

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

from hrm_deeploop.loggers.base import PROJECT, logger


class TrackioLog:
    """The log of one run of Trackio."""

    def __init__(self, package: Any) -> None:
        self._package = package

    def write(self, row: Mapping[str, float | int]) -> None:
        """Log one row at its step."""
        values = {key: value for key, value in row.items() if key != "step"}
        self._package.log(values, step=row["step"])

    def close(self) -> None:
        """Write what is waiting, and finish the run."""
        with redirect_stdout(sys.stderr):
            self._package.finish()


@logger("trackio")
def start_trackio(directory: Path, config: Mapping[str, Any]) -> TrackioLog:
    """Start, or go on with, the run that is named for ``directory``; ``trackio show`` draws it.

    Raises:
        ValueError: if the package is not installed.
    """
    try:
        trackio: Any = import_module("trackio")
    except ImportError as error:
        raise ValueError(
            "logger=trackio needs the package trackio: pip install 'hrm-deeploop[trackio]'"
        ) from error
    with redirect_stdout(sys.stderr):  # it greets on stdout, which may be JSON
        trackio.init(
            project=PROJECT, name=directory.name, config=dict(config), resume="allow", embed=False
        )
    return TrackioLog(trackio)
