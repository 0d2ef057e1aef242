"""Checkpoints: one directory per step, written beside and renamed, nothing unpickled on load.

    step_00001200/
        model.safetensors  ema.safetensors  puzzle_embedding.safetensors
        training_state.pt    optimiser, carry and counters: what a resumed run needs
        NAME                 texts that the caller adds (puzzles.json)

A directory with the final name is complete: it is renamed only after every file is on disk.
"""

import os
import pickle  # for the name of its error; nothing is unpickled
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

STATE_FILE = "training_state.pt"
STEP_NAME = re.compile(r"step_(\d+)")

Weights = Mapping[str, Tensor]


def step_directory(root: Path, step: int) -> Path:
    """Where the checkpoint of ``step`` is under ``root``."""
    return root / f"step_{step:08d}"


def save_checkpoint(
    root: Path,
    step: int,
    *,
    weights: Mapping[str, Weights],
    training_state: Mapping[str, Any],
    texts: Mapping[str, str],
) -> Path:
    """Write the checkpoint of ``step`` atomically and return its directory.

    ``weights`` maps a file's stem to its tensors, ``texts`` a file's name to its content.
    """
    final = step_directory(root, step)
    partial = final.with_name(final.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for stem, tensors in weights.items():
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, partial / f"{stem}.safetensors")
    torch.save(dict(training_state), partial / STATE_FILE)
    for name, text in texts.items():
        (partial / name).write_text(text, encoding="utf-8")
    for path in (*partial.iterdir(), partial):
        _flush(path)
    if final.exists():  # the same step, saved again
        shutil.rmtree(final)
    partial.rename(final)
    _flush(root)
    return final


def _flush(path: Path) -> None:
    """Force a file's or a directory's content to disk, so that a rename can't overtake it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def list_checkpoints(root: Path) -> dict[int, Path]:
    """Complete checkpoints under ``root`` by step, oldest first."""
    found = {}
    for path in root.iterdir() if root.is_dir() else ():
        match = STEP_NAME.fullmatch(path.name)
        if match and path.is_dir():
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def load_weights(checkpoint: Path, stem: str) -> dict[str, Tensor]:
    """The tensors of one file of a checkpoint.

    Raises:
        ValueError: if ``checkpoint`` is not a checkpoint or the file can't be read.
    """
    path = checkpoint / f"{stem}.safetensors"
    if not path.is_file():
        raise ValueError(f"{checkpoint}: not a checkpoint, it has no {path.name}")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a readable safetensors file ({error})") from error


def load_into(module: torch.nn.Module, checkpoint: Path, stem: str) -> None:
    """Copy a file of a checkpoint into ``module``, which must have the same tensors.

    Raises:
        ValueError: naming what is missing, extra or of another shape.
    """
    loaded, own = load_weights(checkpoint, stem), module.state_dict()
    problems = [f"missing {name}" for name in own if name not in loaded]
    problems += [f"unknown {name}" for name in loaded if name not in own]
    problems += [
        f"{name} is {tuple(loaded[name].shape)}, expected {tuple(own[name].shape)}"
        for name in own
        if name in loaded and loaded[name].shape != own[name].shape
    ]
    if problems:
        raise ValueError(
            f"{checkpoint / stem}.safetensors does not fit the model of this config: "
            f"{problems[0]}" + (f", and {len(problems) - 1} more" if problems[1:] else "")
        )
    module.load_state_dict(loaded)


def load_training_state(checkpoint: Path) -> dict[str, Any]:
    """What ``save_checkpoint`` got as ``training_state``.

    Raises:
        ValueError: if the file is not there or is not one of plain tensors and numbers.
    """
    path = checkpoint / STATE_FILE
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise ValueError(f"{path}: not a readable training state ({error})") from error
