"""Log records of workers, on their way to the handlers of the process that started them."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from logging.handlers import QueueHandler


def log_levels() -> dict[str, int]:
    """Return the level of every logger that has one; the root logger's name is empty."""
    found = {"": logging.root.level}
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET:
            found[name] = logger.level
    return found


class _Forwarding(QueueHandler):
    """Makes records picklable and sends them."""

    def __init__(self, send: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(None)  # pyright: ignore[reportArgumentType]
        self._send = send

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a prepared record."""
        self._send(record)


@contextmanager
def forward_logs(
    levels: Mapping[str, int], send: Callable[[logging.LogRecord], None]
) -> Iterator[None]:
    """Send what is logged here, warnings included, instead of writing it.

    Args:
        levels: by the name of the logger, from ``log_levels``.
        send: called in whichever thread logs.
    """
    before = logging.root.handlers
    logging.root.handlers = [_Forwarding(send)]
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        logging.root.handlers = before
