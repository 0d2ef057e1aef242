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
from collections.abc import Mapping, Sequence
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

STATE_FILE = "training_state.pt"
STEP_NAME = re.compile(r"step_(\d+)")

Weights = Mapping[str, Tensor]


class DamagedCheckpointError(ValueError):
    """A file of a checkpoint is missing or can't be read."""


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
    replaced = final.with_name(final.name + ".replaced")
    for left_over in (partial, replaced):  # of a run that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        for stem, tensors in weights.items():
            contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
            save_file(contiguous, partial / f"{stem}.safetensors")
        torch.save(dict(training_state), partial / STATE_FILE)
        for name, text in texts.items():
            (partial / name).write_text(text, encoding="utf-8")
        for path in (*partial.iterdir(), partial):
            _flush(path)
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)  # give a full disk its space back
        raise ValueError(
            f"{final}: the checkpoint could not be written ({error}); earlier ones are intact"
        ) from error
    if final.exists():  # the same step, saved again
        final.rename(replaced)
    partial.rename(final)
    _flush(root)
    shutil.rmtree(replaced, ignore_errors=True)
    return final


def prune_checkpoints(
    root: Path, *, keep_last: int, keep_every: int | None, keep: set[int]
) -> None:
    """Delete all but the newest ``keep_last``, every multiple of ``keep_every``, and ``keep``."""
    found = list_checkpoints(root)
    newest = set(list(found)[-keep_last:])
    for step, path in found.items():
        is_nth = keep_every is not None and step % keep_every == 0
        if not (step in newest or is_nth or step in keep):
            # Renamed first, so that a half-deleted directory never looks like a checkpoint.
            doomed = path.with_name(path.name + ".partial")
            path.rename(doomed)
            shutil.rmtree(doomed)


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
        DamagedCheckpointError: if ``checkpoint`` is none, or the file can't be read.
    """
    path = checkpoint / f"{stem}.safetensors"
    if not path.is_file():
        raise DamagedCheckpointError(f"{checkpoint}: not a checkpoint, it has no {path.name}")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise DamagedCheckpointError(
            f"{path}: not a readable safetensors file ({error})"
        ) from error


def hash_weights(checkpoint: Path, stems: Sequence[str]) -> str:
    """SHA-256 of these files of a checkpoint.

    Raises:
        DamagedCheckpointError: if one is not there.
    """
    digest = sha256()
    for stem in stems:
        path = checkpoint / f"{stem}.safetensors"
        if not path.is_file():
            raise DamagedCheckpointError(f"{checkpoint}: not a checkpoint, it has no {path.name}")
        with path.open("rb") as file:
            digest.update(file_digest(file, "sha256").digest())
    return digest.hexdigest()


def read_text(checkpoint: Path, name: str) -> str:
    """A text that the caller of ``save_checkpoint`` added.

    Raises:
        DamagedCheckpointError: if it is not there or can't be read.
    """
    try:
        return (checkpoint / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedCheckpointError(f"{checkpoint}: not a checkpoint, it has no {name}") from error


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
        DamagedCheckpointError: if the file is not there or holds more than tensors and numbers.
    """
    path = checkpoint / STATE_FILE
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        # torch would advise to switch its safety off
        raise DamagedCheckpointError(
            f"{path}: not a readable training state ({type(error).__name__})"
        ) from error
