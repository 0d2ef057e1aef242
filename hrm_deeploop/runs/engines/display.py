"""One progress display for jobs that run side by side: a bar for all, a line for each."""

import logging
import sys
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from hrm_deeploop.runs.engines import Progress

log = logging.getLogger(__name__)


class Display:
    """Bars on a terminal; elsewhere a line of the log for every job that has ended.

    Args:
        titles: of the jobs.
        description: of all of them.
    """

    def __init__(self, titles: Sequence[str], description: str) -> None:
        self.titles = titles
        self._description = description
        self._is_terminal = sys.stderr.isatty()
        self._num_done = 0
        self._all: Any = None
        self._bars: dict[int, Any] = {}

    def __enter__(self) -> "Display":
        if self._is_terminal:
            self._all = tqdm(
                total=len(self.titles),
                desc=self._description,
                unit="cell",
                position=0,
                dynamic_ncols=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        for bar in (*self._bars.values(), self._all):
            if bar is not None:
                bar.close()

    def start(self, number: int) -> None:
        """Show that a job runs."""
        if not self._is_terminal:
            log.info("%s: %s", self._description, self.titles[number])
            return
        taken = {bar.pos for bar in self._bars.values()}
        free = next(i for i in range(1, len(self.titles) + 2) if -i not in taken)
        self._bars[number] = tqdm(
            desc=f"  {self.titles[number]}",
            position=free,
            leave=False,
            dynamic_ncols=True,
            bar_format="{desc}: {percentage:3.0f}%|{bar:20}| {n_fmt}/{total_fmt} {postfix}",
        )

    def tell(self, number: int, progress: Progress) -> None:
        """Show how far a job is."""
        bar = self._bars.get(number)
        if bar is not None:
            bar.total = progress.total
            bar.set_postfix_str(progress.note, refresh=False)
            bar.update(progress.done - bar.n)

    def finish(self, number: int) -> None:
        """Show that a job has ended."""
        self._num_done += 1
        bar = self._bars.pop(number, None)
        if bar is not None:
            bar.close()
        if self._all is not None:
            self._all.update()
        else:
            done = f"{self._num_done}/{len(self.titles)}"
            log.info("%s: %s done, %s", self._description, self.titles[number], done)
