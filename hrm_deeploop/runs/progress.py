"""Progress of a training or an evaluation: a bar, or whoever wants to be told."""

from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from hrm_deeploop.device import Ranks
from hrm_deeploop.fit import Report


@contextmanager
def show_progress(
    title: str, unit: str, *, total: int, done: int, ranks: Ranks, report: Report | None
) -> Iterator[Report]:
    """Hand out ``report`` if there is one, else a progress bar with ETA on the main rank."""
    if report is not None:
        yield report
        return
    with tqdm(
        total=total,
        initial=done,
        desc=title,
        unit=unit,
        dynamic_ncols=True,
        mininterval=0.5,
        disable=not ranks.is_main,
    ) as bar:

        def tell(count: int, note: str) -> None:
            bar.set_postfix_str(note, refresh=False)
            bar.update(count - bar.n)

        yield tell
