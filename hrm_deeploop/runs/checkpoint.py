"""Checkpoints: one directory per step, written beside and renamed, nothing unpickled on load.

    step_00001200/
        model.safetensors  ema.safetensors  puzzle_embedding.safetensors
        training_state.pt    optimiser, carry and counters: what a resumed run needs
        NAME                 texts that the caller adds (puzzles.json, tasks.json)
        digests.json         SHA-256 of each of these files, and of the configuration

A directory with the final name is complete: it is renamed only after every file is on disk. Every
file is compared with its digest when it is read, so a file that is not what was written is damage.
"""

import logging
import pickle  # for the name of its error; nothing is unpickled
import re
import shutil
from collections.abc import Mapping
from hashlib import file_digest
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from arc_data.atomic import FILE_MODE, flush
from eval.record import SealedRecord

STATE_FILE = "training_state.pt"
IMPORTED_FROM = "imported_from"  # of a training state that is none: who trained the weights
DIGESTS_FILE = "digests.json"
STEP_NAME = re.compile(r"step_(\d+)")
# Names that a checkpoint has before it is complete, and once it is to be deleted.
PARTIAL, REPLACED = ".partial", ".replaced"

Weights = Mapping[str, Tensor]

log = logging.getLogger(__name__)


class DamagedCheckpointError(ValueError):
    """A file of a checkpoint is missing, can't be read, or is not what was written."""


class Digests(SealedRecord):
    """What digests.json holds: SHA-256 in hexadecimal."""

    files: dict[str, str]  # by the file's name
    config: str  # of what the configuration says about the answers


def step_directory(root: Path, step: int) -> Path:
    """Where the checkpoint of ``step`` is under ``root``."""
    return root / f"step_{step:08d}"


def step_of(checkpoint: Path) -> int:
    """Return the optimiser steps that a checkpoint has trained."""
    return int(checkpoint.name.rpartition("_")[2])


def save_checkpoint(
    root: Path,
    step: int,
    *,
    weights: Mapping[str, Weights],
    training_state: Mapping[str, Any],
    texts: Mapping[str, str],
    config_digest: str,
) -> Path:
    """Write the checkpoint of ``step`` atomically and return its directory.

    ``weights`` maps a file's stem to its tensors, ``texts`` a file's name to its content.
    ``config_digest`` is that of the configuration (:meth:`RunConfig.digest`).

    Raises:
        ValueError: if it can't be written; earlier checkpoints are intact.
    """
    final = step_directory(root, step)
    partial = final.with_name(final.name + PARTIAL)
    replaced = final.with_name(final.name + REPLACED)
    try:
        for left_over in (partial, replaced):
            if left_over.exists():
                shutil.rmtree(left_over)
        partial.mkdir(parents=True)
        for stem, tensors in weights.items():
            contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
            save_file(contiguous, partial / f"{stem}.safetensors")
        torch.save(dict(training_state), partial / STATE_FILE)
        for name, text in texts.items():
            (partial / name).write_text(text, encoding="utf-8")
        digests = {path.name: _digest(path) for path in sorted(partial.iterdir())}
        (partial / DIGESTS_FILE).write_text(
            Digests(files=digests, config=config_digest).to_json(), encoding="utf-8"
        )
        for path in partial.iterdir():
            path.chmod(FILE_MODE)  # safetensors writes for the owner alone
            flush(path)
        flush(partial)
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)  # give a full disk its space back
        raise ValueError(
            f"{final}: the checkpoint could not be written ({error}); earlier ones are intact"
        ) from error
    if final.exists():  # the same step, saved again
        final.rename(replaced)
    partial.rename(final)
    flush(root)
    shutil.rmtree(replaced, ignore_errors=True)
    return final


def clear_left_overs(root: Path) -> None:
    """Delete what a killed process left half written or half deleted. For who holds the run.

    A checkpoint that was set aside for its replacement, which never came, gets its name back.
    """
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        stem, _, kind = path.name.partition(".")
        if not (STEP_NAME.fullmatch(stem) and f".{kind}" in (PARTIAL, REPLACED)):
            continue
        if f".{kind}" == REPLACED and not path.with_name(stem).exists():
            path.rename(path.with_name(stem))
        else:
            shutil.rmtree(path)


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
            doomed = path.with_name(path.name + PARTIAL)
            path.rename(doomed)
            shutil.rmtree(doomed)


def list_checkpoints(root: Path) -> dict[int, Path]:
    """Complete checkpoints under ``root`` by step, oldest first."""
    found = {}
    for path in root.iterdir() if root.is_dir() else ():
        match = STEP_NAME.fullmatch(path.name)
        if match and path.is_dir():
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def read_digests(checkpoint: Path) -> Digests:
    """Read a checkpoint's digests.json.

    Raises:
        DamagedCheckpointError: if it is not there or can't be read.
    """
    path = checkpoint / DIGESTS_FILE
    if not checkpoint.is_dir():
        raise DamagedCheckpointError(
            f"{checkpoint}: no checkpoint is there any more (a training keeps keep_last of them)"
        )
    try:
        return Digests.load(path)
    except ValueError as error:
        raise DamagedCheckpointError(str(error)) from error


def check_file(checkpoint: Path, name: str) -> Path:
    """Compare a file of a checkpoint with its digest, and return its path.

    Raises:
        DamagedCheckpointError: if it is not there, can't be read, or is not what was written.
    """
    path, recorded = checkpoint / name, read_digests(checkpoint).files
    if name not in recorded:
        raise DamagedCheckpointError(f"{path}: not a file that the checkpoint was written with")
    try:
        found = _digest(path)
    except FileNotFoundError as error:
        raise DamagedCheckpointError(
            f"{checkpoint}: not a whole checkpoint, {name} is gone"
        ) from error
    except OSError as error:  # such as a permission that is missing
        raise DamagedCheckpointError(f"{path}: can't be read ({error.strerror})") from error
    if found != recorded[name]:
        raise DamagedCheckpointError(
            f"{path}: damaged, it is not what was written (SHA-256 {found[:16]}, recorded is "
            f"{recorded[name][:16]})"
        )
    return path


def check_files(checkpoint: Path) -> None:
    """Compare every file of a checkpoint with its digest.

    Raises:
        DamagedCheckpointError: naming the first file that is not what was written.
    """
    for name in read_digests(checkpoint).files:
        check_file(checkpoint, name)


def is_whole(checkpoint: Path) -> bool:
    """Tell whether every file of a checkpoint is what was written."""
    try:
        check_files(checkpoint)
    except DamagedCheckpointError:
        return False
    return True


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def load_weights(checkpoint: Path, stem: str) -> dict[str, Tensor]:
    """Load the tensors of one file of a checkpoint.

    Raises:
        DamagedCheckpointError: if the file is damaged, or a value is not finite.
    """
    path = check_file(checkpoint, f"{stem}.safetensors")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise DamagedCheckpointError(
            f"{path}: not a readable safetensors file ({error})"
        ) from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise DamagedCheckpointError(f"{path}: {name} holds values that are not finite")
    return tensors


def read_text(checkpoint: Path, name: str) -> str:
    """Read a text that the caller of ``save_checkpoint`` added.

    Raises:
        DamagedCheckpointError: if the file is damaged.
    """
    path = check_file(checkpoint, name)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedCheckpointError(f"{path}: not readable ({error})") from error


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
    path = check_file(checkpoint, STATE_FILE)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        # torch would advise to switch its safety off
        raise DamagedCheckpointError(
            f"{path}: not a readable training state ({type(error).__name__})"
        ) from error
