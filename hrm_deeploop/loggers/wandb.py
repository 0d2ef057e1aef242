"""Weights & Biases: online with a key, else offline, never a prompt."""

import os
from collections.abc import Mapping
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any
from uuid import uuid4

from hrm_deeploop.loggers.base import PROJECT, logger

HOST = "api.wandb.ai"
ID_FILE = ".wandb-id"


class WandbLog:
    """The log of one run of Weights & Biases."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def write(self, row: Mapping[str, float | int]) -> None:
        """Log one row at its step."""
        self._run.log(dict(row), step=row["step"])

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


@logger("wandb")
def start_wandb(directory: Path, config: Mapping[str, Any]) -> WandbLog:
    """Start a run in ``directory``, or go on with the one that its file names."""
    import wandb

    directory.mkdir(parents=True, exist_ok=True)
    id_file = directory / ID_FILE
    if not id_file.is_file():
        id_file.write_text(uuid4().hex[:12], encoding="utf-8")
    # WANDB_MODE is the user's own choice, which wandb reads itself.
    offline = "WANDB_MODE" not in os.environ and not _has_key()
    run = wandb.init(
        project=PROJECT,
        name=directory.name,
        id=id_file.read_text(encoding="utf-8").strip(),
        resume="allow",
        dir=directory,
        config=dict(config),
        mode="offline" if offline else None,
    )
    return WandbLog(run)


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc().authenticators(HOST) is not None
    except (OSError, NetrcParseError):
        return False
