"""The one display of all jobs: an overall bar with ETA and a line for every job that runs.

Without a terminal there are no bars, but a line for every job that has ended.
"""

import sys
import time
from collections.abc import Sequence
from logging import LogRecord, getLogger
from types import TracebackType

from tqdm import tqdm

from hrm_deeploop.runs.engines.jobs import Progress

REDRAW_EVERY = 0.2  # seconds
OVERALL = "{desc} {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}]"
LINE = "  {desc} {percentage:3.0f}%|{bar:20}| {n_fmt}/{total_fmt}{postfix}"
WAITING = "  {desc}"


class Display:
    """Shows on stderr what runs and what has ended. Use as a context manager.

    Args:
        titles: of all jobs, in their order.
        description: of the whole, "compare".
    """

    def __init__(self, titles: Sequence[str], *, description: str) -> None:
        self._titles, self._description = titles, description
        self._num_ended = 0
        self._shares: dict[int, float] = {}  # of a job that is done, at most 1
        self._started: dict[int, float] = {}
        self._slots: list[int | None] = []  # which job a line shows
        self._lines: list[tqdm] = []
        self._drawn: dict[int, float] = {}
        self._began = time.monotonic()
        self._overall: tqdm | None = None
        if sys.stderr.isatty():
            self._overall = tqdm(
                total=len(titles),
                bar_format=OVERALL,
                position=0,
                dynamic_ncols=True,
                file=sys.stderr,
            )

    def __enter__(self) -> "Display":
        self._draw_overall()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for line in reversed(self._lines):
            line.close()
        if self._overall is not None:
            self._overall.close()

    def start(self, job: int) -> None:
        """Give a job a line; a job that is started again keeps the one it has."""
        if job in self._started:
            return
        self._started[job] = time.monotonic()
        if self._overall is None:
            return
        if None not in self._slots:
            self._slots.append(None)
            self._lines.append(
                tqdm(
                    bar_format=WAITING,
                    position=len(self._slots),
                    leave=False,
                    dynamic_ncols=True,
                    file=sys.stderr,
                )
            )
        slot = self._slots.index(None)
        self._slots[slot] = job
        self._set_line(slot, f"{self._titles[job]}: starting", WAITING)

    def report(self, job: int, progress: Progress) -> None:
        """Show how far a job is."""
        if self._overall is None or job not in self._slots:
            return
        share = min(1.0, progress.done / max(progress.total, 1))
        if job not in self._shares:
            # What an earlier command did took none of this one's time.
            self._overall.initial += share
        self._shares[job] = max(share, self._shares.get(job, 0.0))
        now = time.monotonic()
        if now - self._drawn.get(job, 0.0) < REDRAW_EVERY and progress.done < progress.total:
            return
        self._drawn[job] = now
        slot = self._slots.index(job)
        line = self._lines[slot]
        line.n, line.total = progress.done, progress.total
        line.set_postfix_str(progress.note, refresh=False)
        self._set_line(slot, self._titles[job], LINE)
        self._draw_overall()

    def end(self, job: int) -> None:
        """Count a job as finished."""
        self._num_ended += 1
        self._leave(job)
        self._shares[job] = 1.0
        if self._overall is not None:
            self._draw_overall()
            return
        seconds = time.monotonic() - self._started[job]
        self.write(
            f"{self._description}: {self._num_ended} of {len(self._titles)} done: "
            f"{self._titles[job]} ({tqdm.format_interval(seconds)}; "
            f"{tqdm.format_interval(time.monotonic() - self._began)} in all)"
        )

    def drop(self, job: int) -> None:
        """Take away the line of a job that has not finished."""
        self._leave(job)

    def write(self, text: str) -> None:
        """Write a line to stderr, above the bars."""
        tqdm.write(text, file=sys.stderr)

    def log(self, record: LogRecord) -> None:
        """Hand a worker's log record to this process's handlers, above the bars."""
        logger = getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            with tqdm.external_write_mode(file=sys.stderr):
                logger.handle(record)

    def _leave(self, job: int) -> None:
        if job in self._slots:
            slot = self._slots.index(job)
            self._slots[slot] = None
            self._set_line(slot, "", WAITING)

    def _set_line(self, slot: int, text: str, bar_format: str) -> None:
        line = self._lines[slot]
        line.bar_format = bar_format
        line.set_description_str(text)

    def _draw_overall(self) -> None:
        if self._overall is None:
            return
        self._overall.n = sum(self._shares.values())
        self._overall.set_description_str(
            f"{self._description}: {self._num_ended} of {len(self._titles)}"
        )
