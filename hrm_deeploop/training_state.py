"""Checks of a saved training state, before anything of it is taken over."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

KEYS = frozenset(("step", "log_sums", "optimizer", "scheduler", "num_averaged", "carry"))
COUNTS = ("step", "num_averaged")


class Bounds(NamedTuple):
    """What the numbers of a carry may be; each is from 0 to one below."""

    num_rows: int  # of the global batch
    vocab_size: int
    num_puzzles: int
    seq_len: int
    max_steps: int


def check_training_state(saved: Any, bounds: Bounds) -> None:
    """Refuse what is not a training state of this version, and a carry out of range.

    Raises:
        ValueError: naming the key, and what it holds.
    """
    if not isinstance(saved, Mapping) or set(saved) != KEYS:
        given = set(saved) if isinstance(saved, Mapping) else set()
        missing, unknown = sorted(KEYS - given), sorted(map(str, given - KEYS))
        raise ValueError(
            f"not a training state (missing: {', '.join(missing) or 'none'}; unknown: "
            f"{', '.join(unknown) or 'none'})"
        )
    for name in COUNTS:
        if type(saved[name]) is not int or saved[name] < 0:
            raise ValueError(f"{name}: expected a count, got {_shown(saved[name])}")
    for name in ("log_sums", "optimizer", "scheduler"):
        if not isinstance(saved[name], Mapping):
            raise ValueError(f"{name}: expected names and values, got {_shown(saved[name])}")
    if saved["carry"] is not None:
        _check_carry(saved["carry"], bounds)


def _check_carry(carry: Any, bounds: Bounds) -> None:
    if not isinstance(carry, Sequence) or not all(isinstance(part, Mapping) for part in carry):
        raise ValueError(f"carry: expected parts with tensors by name, got {_shown(carry)}")
    num_rows = 0
    limits = {
        "inputs": bounds.vocab_size,
        "labels": bounds.vocab_size,
        "puzzle_ids": bounds.num_puzzles,
        "positions": bounds.seq_len,
        "steps": bounds.max_steps + 1,
    }
    for number, part in enumerate(carry):
        lengths = set()
        for name, tensor in part.items():
            if not isinstance(tensor, Tensor) or tensor.ndim == 0:
                raise ValueError(f"carry {number}, {name}: expected a tensor, got {_shown(tensor)}")
            lengths.add(len(tensor))
            if name in limits:
                _check_range(tensor, limits[name], f"carry {number}, {name}")
            elif tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise ValueError(f"carry {number}, {name}: holds values that are not finite")
        missing = {"inputs", "labels", "puzzle_ids", "steps", "halted"} - set(part)
        if missing or len(lengths) != 1:
            what = f"lacks {', '.join(sorted(missing))}" if missing else f"has {lengths} rows"
            raise ValueError(f"carry {number}: {what}")
        num_rows += lengths.pop()
    if num_rows != bounds.num_rows:
        raise ValueError(
            f"carry: has {num_rows} rows, optim.global_batch_size is {bounds.num_rows}"
        )


def _check_range(tensor: Tensor, limit: int, where: str) -> None:
    if tensor.is_floating_point() or tensor.is_complex():
        raise ValueError(f"{where}: expected integers, got {tensor.dtype}")
    if tensor.numel() and (int(tensor.min()) < 0 or int(tensor.max()) >= limit):
        raise ValueError(
            f"{where}: values {int(tensor.min())} to {int(tensor.max())}, allowed are 0 to "
            f"{limit - 1}"
        )


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return repr(value) if isinstance(value, int | float | str) else f"a {type(value).__name__}"
