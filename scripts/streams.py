"""Standard streams: logged lines that do not tear a bar, streams that are closed or full."""

import io
import logging
import os
import sys
from pathlib import Path

from tqdm import tqdm


class _BesideBars(logging.Handler):
    """Writes lines to stderr without tearing a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


def say_on_stderr() -> None:
    """Show what the library logs, from INFO on, as plain lines."""
    logger = logging.getLogger()
    if not any(isinstance(handler, _BesideBars) for handler in logger.handlers):
        logger.addHandler(_BesideBars())
    for package in ("arc_data", "hrm_deeploop", "eval"):
        logging.getLogger(package).setLevel(logging.INFO)


def prepare_streams() -> None:
    """Have every stream take any text.

    What the shell has closed is opened: whoever prints would meet None, or a file of the run.
    """
    for stream in ("stdin", "stdout", "stderr"):
        if getattr(sys, stream) is None:
            mode = "r" if stream == "stdin" else "w"
            setattr(sys, stream, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):  # ids and names of files may hold any character
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def finish_stdout(text: str) -> None:
    """Write a last text, and out what was printed before.

    Raises:
        OSError: that names stdout, which the system's does not.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_stdout()
        raise OSError(error.errno, f"stdout: {error.strerror}") from error


def drop_stdout() -> None:
    """Have what is still to be written to stdout go nowhere, at the end of the process too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
