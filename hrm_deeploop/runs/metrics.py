"""Where a run's numbers go: ``metrics.jsonl`` always, Weights & Biases when asked for."""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any, Literal

LoggerName = Literal["none", "wandb"]
log = logging.getLogger(__name__)

WANDB_HOST = "api.wandb.ai"


class MetricsLog:
    """Appends one JSON object a line to ``path``; a resumed run drops lines after its step.

    Names carry their split: ``train/lm_loss``.
    """

    def __init__(self, path: Path, *, resumed_step: int = 0, wandb_run: Any = None) -> None:
        self._wandb_run = wandb_run
        path.parent.mkdir(parents=True, exist_ok=True)
        if resumed_step and not path.is_file():
            log.warning("%s: is gone; the log goes on from step %s", path, resumed_step)
        kept = [row for row in read_metrics(path) if row["step"] <= resumed_step]
        partial = path.with_name(path.name + ".partial")
        partial.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        partial.rename(path)
        self._file = path.open("a", encoding="utf-8")

    def write(self, row: Mapping[str, float | int]) -> None:
        """Log one row; it must hold ``step``."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        if self._wandb_run is not None:
            self._wandb_run.log(dict(row), step=row["step"])

    def close(self) -> None:
        self._file.close()
        if self._wandb_run is not None:
            self._wandb_run.finish()


@contextmanager
def open_log(
    path: Path,
    *,
    is_main: bool,
    logger: LoggerName,
    config: Mapping[str, Any],
    resumed_step: int,
) -> Iterator[MetricsLog | None]:
    """The log of a run on its main rank, closed at the end; None on the other ranks."""
    if not is_main:
        yield None
        return
    wandb_run = start_wandb(path.parent, config) if logger == "wandb" else None
    log = MetricsLog(path, resumed_step=resumed_step, wandb_run=wandb_run)
    try:
        yield log
    finally:
        log.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a ``metrics.jsonl``; a last line that a killed run left unfinished is dropped.

    Raises:
        ValueError: naming the line that is none.
    """
    if not path.exists():
        return []
    rows = []
    try:
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
            rows.append(json.loads(line))
            if not isinstance(rows[-1], dict) or type(rows[-1].get("step")) is not int:
                raise ValueError("an object with an integer step was expected")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}, line {len(rows)}: not a line of metrics ({error})") from error
    return rows


def start_wandb(directory: Path, config: Mapping[str, Any]) -> Any:
    """A Weights & Biases run in ``directory``: online with a key, else offline, never a prompt."""
    import wandb

    directory.mkdir(parents=True, exist_ok=True)
    # WANDB_MODE is the user's own choice, which wandb reads itself.
    offline = "WANDB_MODE" not in os.environ and not _has_wandb_key()
    return wandb.init(
        project="hrm_deeploop",
        name=directory.name,
        dir=directory,
        config=dict(config),
        mode="offline" if offline else None,
    )


def _has_wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc().authenticators(WANDB_HOST) is not None
    except (OSError, NetrcParseError):
        return False
