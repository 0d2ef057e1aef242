"""Where a run's numbers go: ``metrics.jsonl`` always, and to a logger when asked for."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from arc_data.atomic import write_atomically
from hrm_deeploop.loggers import LOGGERS, Logger

log = logging.getLogger(__name__)


class MetricsLog:
    """Appends one JSON object a line to ``path``; a resumed run drops lines after its step.

    Names carry their split: ``train/lm_loss``.
    """

    def __init__(self, path: Path, *, resumed_step: int = 0, logger: Logger | None = None) -> None:
        self._logger = logger
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if resumed_step and not path.is_file():
            log.warning("%s: is gone; the log goes on from step %s", path, resumed_step)
        kept = [row for row in read_metrics(path) if row["step"] <= resumed_step]
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept))
        self._file = path.open("a", encoding="utf-8")

    def write(self, row: Mapping[str, float | int]) -> None:
        """Log one row; it must hold ``step``."""
        try:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
        except OSError as error:  # a full disk, which names no file
            raise type(error)(error.errno, f"{self._path}: {error.strerror}") from error
        if self._logger is not None:
            self._logger.write(row)

    def close(self) -> None:
        self._file.close()
        if self._logger is not None:
            self._logger.close()


@contextmanager
def open_log(
    path: Path,
    *,
    is_main: bool,
    logger: str,
    config: Mapping[str, Any],
    resumed_step: int,
) -> Iterator[MetricsLog | None]:
    """The log of a run on its main rank, closed at the end; None on the other ranks."""
    if not is_main:
        yield None
        return
    started = LOGGERS[logger](path.parent, config)
    rows = MetricsLog(path, resumed_step=resumed_step, logger=started)
    try:
        yield rows
    finally:
        rows.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a ``metrics.jsonl``; a last line that a killed run left unfinished is dropped.

    Raises:
        ValueError: naming the line that is none.
    """
    if not path.exists():
        return []
    rows = []
    try:
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
            rows.append(json.loads(line))
            if not isinstance(rows[-1], dict) or type(rows[-1].get("step")) is not int:
                raise ValueError("an object with an integer step was expected")
            if not all(type(value) in (int, float) for value in rows[-1].values()):
                raise ValueError("numbers by name were expected")
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}, line {len(rows)}: not a line of metrics ({error})") from error
    return rows
