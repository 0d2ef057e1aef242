"""Compute batches ahead of the step that asks for them, in a background thread.

The batches are a pure function of the step, so nothing can be lost or repeated: a step that was not
foreseen is simply computed when it is asked for.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """``draw`` with its next ``depth`` steps up to ``end`` (exclusive) computed in advance.

    Use as a context manager. An error of ``draw`` is raised by the call for its step.
    """

    def __init__(self, draw: Callable[[int], T], *, depth: int, end: int) -> None:
        self._draw = draw
        self._depth = depth
        self._end = end
        self._ahead: dict[int, Future[T]] = {}
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")

    def __call__(self, step: int) -> T:
        wanted = range(step, min(step + 1 + self._depth, max(self._end, step + 1)))
        for stale in [s for s in self._ahead if s not in wanted]:
            self._ahead.pop(stale).cancel()
        for s in wanted:
            if s not in self._ahead:
                self._ahead[s] = self._executor.submit(self._draw, s)
        return self._ahead.pop(step).result()

    def __enter__(self) -> "Prefetch[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(cancel_futures=True)
