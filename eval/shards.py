"""Predictions on their way to the file: parts on disk, so that nothing is predicted twice.

Beside the predictions file lies a folder of parts while it is being made. A part holds some
answers and the numbers of their rows. Whoever continues, with any number of ranks and any batch
size, reads which rows have answered and predicts the others.
"""

import json
import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from arc_data.atomic import write_atomically
from arc_data.task import Task
from eval.answers import Answers
from eval.npz import NPZ_ERRORS, Expected, Npz
from eval.predictions import (
    COLUMNS,
    EXPECTED,
    About,
    Predictions,
    join,
    load_columns,
    write_npz,
)

KEY_FILE = "key.json"
SECONDS_PER_PART = 20.0


class Shards:
    """The folder of shards beside the predictions file ``path``.

    Args:
        path: of the finished file.
        key: what decides the answers; parts with another key are of no use and are deleted.
        rank: of this process; each writes its own parts.
    """

    def __init__(self, path: Path, key: dict[str, Any], *, rank: int = 0) -> None:
        self.folder = path.with_name(path.name + ".parts")
        self.rank = rank
        self._key = json.dumps(key, sort_keys=True)
        self._waiting: list[Answers] = []
        self._last_write = time.monotonic()

    def open(self) -> bool:
        """Make the folder; whether parts of another key were in it. For one rank alone."""
        key_file = self.folder / KEY_FILE
        found = None
        if key_file.is_file():
            found = key_file.read_text(encoding="ascii", errors="replace")
        stale = self.folder.exists() and found != self._key
        if stale:
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(key_file, self._key)
        return stale and found is not None

    def answered(self, num_rows: int) -> Bool[np.ndarray, " rows"]:
        """Which rows have their final answer on disk."""
        answered = np.zeros(num_rows, dtype=bool)
        for path in self._files():
            columns = _read(path)
            number = columns["number"]
            if len(number) and (number.min() < 0 or number.max() >= num_rows):
                raise ValueError(f"{path}: not a part of these predictions; delete it")
            answered[number[columns["final"]]] = True
        return answered

    def add(self, answers: Answers) -> None:
        """Keep some answers; they are written together every while."""
        self._waiting.append(answers)
        if time.monotonic() - self._last_write > SECONDS_PER_PART:
            self.write()

    def write(self) -> None:
        """Write what is kept."""
        if self._waiting:
            predictions = join([answers.predictions for answers in self._waiting])
            columns = {name: getattr(predictions, name) for name in COLUMNS}
            columns["number"] = np.concatenate([answers.number for answers in self._waiting])
            write_npz(self.folder / f"rank{self.rank:04}-{self._next_number():06}.npz", columns)
        self._waiting = []
        self._last_write = time.monotonic()

    def _next_number(self) -> int:
        mine = sorted(self.folder.glob(f"rank{self.rank:04}-*.npz"))
        return 1 + int(mine[-1].stem.split("-")[1]) if mine else 0

    def finish(self, tasks: tuple[Task, ...], about: About, num_rows: int) -> Predictions:
        """All answers in the order of their rows. For one rank alone.

        Raises:
            ValueError: if a row has none, as when another evaluation writes to the same folder.
        """
        num_missing = int((~self.answered(num_rows)).sum())
        if num_missing:
            raise ValueError(
                f"{self.folder}: {num_missing} of {num_rows} answers are not there (does another "
                "evaluation write to it?); the same command predicts them"
            )
        parts = [_read(path) for path in self._files()]
        number = np.concatenate([part.pop("number") for part in parts])
        joined = join([Predictions(tasks=tasks, about=about, **part) for part in parts])
        order = _first_of_each(number, joined)
        return joined.take(order)

    def close(self) -> None:
        """Delete the folder, once its content is in the file."""
        shutil.rmtree(self.folder)

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.npz"))


def _first_of_each(number: np.ndarray, joined: Predictions) -> Int64[np.ndarray, " rows"]:
    """Rows by number and segments, each once.

    A row that was stopped between two recorded answers starts anew and repeats the first.
    """
    order = np.lexsort((joined.segments, joined.final, number))
    keys = np.stack((number, joined.final, joined.segments), axis=1)[order]
    repeats = np.zeros(len(order), dtype=bool)
    repeats[1:] = (keys[1:] == keys[:-1]).all(axis=1)
    return order[~repeats]


def _read(path: Path) -> dict[str, Any]:
    try:
        with closing(Npz(path, {**EXPECTED, "number": Expected("iu", 8)})) as file:
            return load_columns(file, "number")
    except NPZ_ERRORS as error:
        raise ValueError(f"{path}: not a part of predictions ({error}); delete it") from error
