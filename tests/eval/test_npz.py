"""Crafted ``.npz`` files: sizes and types that are not what they say, refused before any memory."""

import io
import json
import resource
import zipfile

import numpy as np
import pytest
from numpy.lib import format as npy

from eval.predictions import load_predictions

HUGE = 10 * 2**40


def entry(array):
    buffer = io.BytesIO()
    npy.write_array(buffer, np.asarray(array), allow_pickle=True)
    return buffer.getvalue()


def header(shape, dtype="|u1"):
    """An entry that says it holds so much, and holds nothing."""
    buffer = io.BytesIO()
    npy.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def zeros(num_bytes, dtype="|u1", shape=None):
    size = np.dtype(dtype).itemsize
    return header(shape or (num_bytes // size,), dtype) + bytes(num_bytes)


class Text:
    """An object that pickles."""


CRAFTED = {
    "cells of 10 TB": {"cells": header((HUGE,))},
    "task of 10 TB": {"task": header((HUGE,), "<i8")},
    "colors of 10 TB": {"colors": header((HUGE, 10))},
    "shape that overflows": {"task": header((2**62, 2**62), "<i8")},
    "negative shape": {"task": header((-1,), "<i8")},
    "zeros in cells": {"cells": zeros(2**26)},
    "zeros in tasks": {"tasks": zeros(2**29)},
    "zeros in about": {"about": zeros(2**29)},
    "objects": {"task": entry(np.array([Text()], dtype=object))},
    "text for numbers": {"task": entry(np.array(["a"]))},
    "floats for numbers": {"task": entry(np.array([0.0]))},
    "complex halt": {"halt": entry(np.array([0.5j]))},
    "records": {"halt": entry(np.zeros(1, dtype=[("a", "f4")]))},
    "no dimension": {"task": entry(np.int64(0))},
    "numbers for final": {"final": entry(np.array([1]))},
    "halt of nan": {"halt": entry(np.array([np.nan], dtype=np.float32))},
    "tasks are no list": {"tasks": entry(np.frombuffer(b"{}", np.uint8))},
    "tasks of no JSON": {"tasks": entry(np.frombuffer(b"[" * 100_000, np.uint8))},
    "a task is a number": {"tasks": entry(np.frombuffer(b"[3]", np.uint8))},
    "about is a list": {"about": entry(np.frombuffer(b"[]", np.uint8))},
    "no .npy": {"task": b"nothing"},
    "empty entry": {"task": b""},
    "a column too few": {"task": None},
    "a split of another kind": {
        "tasks": entry(np.frombuffer(json.dumps([{"id": "a", "split": 3}]).encode(), np.uint8))
    },
}


@pytest.fixture
def entries(tmp_path, make_predictions, plain):
    path = tmp_path / "whole.npz"
    make_predictions([("t", 0, plain, [[1]], 0.5)]).save(path)
    with zipfile.ZipFile(path) as file:
        return {name.removesuffix(".npy"): file.read(name) for name in file.namelist()}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_file_is_refused_before_memory_is_taken(name, entries, tmp_path):
    path = tmp_path / "predictions.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for key, content in (entries | CRAFTED[name]).items():
            if content is not None:
                file.writestr(f"{key}.npy", content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"predictions\.npz: not a predictions file"):
        load_predictions(path)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 2**17  # KiB: 128 MiB


def test_the_whole_file_is_read(entries, tmp_path):
    path = tmp_path / "predictions.npz"
    with zipfile.ZipFile(path, "w") as file:
        for key, content in entries.items():
            file.writestr(f"{key}.npy", content)
    assert len(load_predictions(path)) == 1
