"""Reading ``.npz`` files whose headers are not trusted: sizes and types before any memory is taken.

A few kilobytes can say that they hold terabytes, or expand to gigabytes of zeros. So the header of
every entry is read first, and a caller says what an entry may be before it is loaded.
"""

import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.lib import format as npy

MAX_ROWS = 2**26  # of a column: some 100 times ARC-AGI-1's evaluation with 1000 augmentations
MAX_TEXT = 2**28  # bytes of an entry that holds text


class Entry(NamedTuple):
    """What an entry says of itself."""

    shape: tuple[int, ...]
    dtype: np.dtype


class Expected(NamedTuple):
    """What an entry may be: kinds as of ``numpy.dtype.kind``, and the sides after the first."""

    kinds: str
    max_itemsize: int
    inner: tuple[int, ...] = ()


# What numpy and zipfile raise for files that are damaged or something else.
NPZ_ERRORS = (
    *(OSError, EOFError, KeyError, ValueError, TypeError, RuntimeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, OverflowError, AttributeError, IndexError),
)


class Npz:
    """An open ``.npz`` whose entries have been looked at and none loaded.

    Raises:
        ValueError: if an entry is not there, or not what is expected of it.
    """

    def __init__(self, path: Path, expected: Mapping[str, Expected]) -> None:
        self._file = zipfile.ZipFile(path)
        try:
            self.entries = {name: self._look(name, what) for name, what in expected.items()}
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def load(self, name: str) -> np.ndarray:
        """Load an entry that was looked at."""
        with self._file.open(f"{name}.npy") as stream:
            return npy.read_array(stream, allow_pickle=False)

    def _look(self, name: str, expected: Expected) -> Entry:
        try:
            info = self._file.getinfo(f"{name}.npy")
        except KeyError as error:
            raise ValueError(f"it has no entry {name}") from error
        with self._file.open(info) as stream:
            version = npy.read_magic(stream)
            if version not in ((1, 0), (2, 0)):
                raise ValueError(f"entry {name} has version {version} of numpy's format")
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, _, dtype = read(stream)
            header_size = stream.tell()
        if dtype.kind not in expected.kinds or dtype.itemsize > expected.max_itemsize:
            raise ValueError(f"entry {name} has values of type {dtype}")
        if len(shape) == 0 or shape[1:] != expected.inner or min(shape) < 0:
            raise ValueError(f"entry {name} has the shape {shape}")
        if math.prod(shape) * dtype.itemsize != info.file_size - header_size:
            raise ValueError(f"entry {name} has another size than its shape {shape} says")
        return Entry(shape, dtype)
