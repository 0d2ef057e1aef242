"""What the library logs, as plain lines on stderr that do not tear a progress bar."""

import logging
import sys

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
