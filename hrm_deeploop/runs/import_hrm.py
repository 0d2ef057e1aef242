"""Turn a checkpoint of the released HRM code into a run directory that evaluate.py accepts.

hrm-deeploop import_hrm checkpoint=DIR/step_N identifiers=DIR/identifiers.json run_dir=runs/hrm
hrm-deeploop evaluate run=runs/hrm

Rows of the puzzle table are matched to puzzles by name, whatever their order; tasks that the
checkpoint does not know start with zero rows, and how many puzzles it covers is said.
"""

import json
import pickle
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from arc_data.config import DataConfig
from arc_data.hrm_names import parse_identifiers
from arc_data.puzzles import match_puzzles, write_puzzles
from hrm_deeploop.config import StrictConfig
from hrm_deeploop.hrm_weights import convert_weights
from hrm_deeploop.runs.build import build_network
from hrm_deeploop.runs.checking import read_yaml, validate
from hrm_deeploop.runs.checkpoint import IMPORTED_FROM, save_checkpoint
from hrm_deeploop.runs.compose import compose_config
from hrm_deeploop.runs.config import CONFIG_FILE, RunConfig
from hrm_deeploop.runs.data import PUZZLES_FILE, Data, load_tasks
from hrm_deeploop.runs.directory import CHECKPOINTS, describe_run
from hrm_deeploop.runs.seen import TASKS_FILE, see

STEP = re.compile(r"step_(\d+)")
TRAINING_KEYS = (
    *("lr", "lr_min_ratio", "lr_warmup_steps", "weight_decay", "beta1", "beta2"),
    *("puzzle_emb_lr", "puzzle_emb_weight_decay", "global_batch_size"),
)
MODEL_KEYS = (
    *("H_cycles", "L_cycles", "H_layers", "L_layers", "hidden_size", "num_heads", "expansion"),
    *("pos_encodings", "halt_max_steps", "halt_exploration_prob"),
)


class ImportOptions(StrictConfig):
    """Keys of ``configs/import_hrm.yaml``."""

    data: DataConfig
    checkpoint: str
    all_config: str | None
    identifiers: str
    run_dir: str


class HrmConfig(BaseModel):
    """What is read of HRM's all_config.yaml; its other keys make no difference to a model."""

    model_config = ConfigDict(extra="ignore")

    arch: dict[str, Any]
    epochs: int = Field(ge=1)


@dataclass(frozen=True, kw_only=True)
class ImportedRun:
    """The run directory that was written, and what the checkpoint knows of its data."""

    run_dir: Path
    checkpoint: Path
    num_rows: int  # of the puzzle table
    num_puzzles: int  # of the data
    num_covered: int  # puzzles of the data that have a row
    num_tasks: int  # of the data
    num_tasks_covered: int

    def to_json(self) -> dict[str, str | int]:
        """Return the numbers, and the paths as text."""
        return {**asdict(self), "run_dir": str(self.run_dir), "checkpoint": str(self.checkpoint)}

    def __str__(self) -> str:
        return (
            f"{self.num_rows:,} rows; they cover {self.num_covered:,} of {self.num_puzzles:,} "
            f"puzzles and {self.num_tasks_covered} of {self.num_tasks} tasks\n"
            f"written: {self.checkpoint}"
        )


def import_hrm(options: ImportOptions) -> ImportedRun:
    """Write the run directory.

    Raises:
        ValueError: if a file can't be read, or they do not fit each other.
    """
    run_dir, checkpoint = Path(options.run_dir), Path(options.checkpoint)
    if (run_dir / CONFIG_FILE).exists():
        raise ValueError(f"run_dir={run_dir}: holds a run already; choose another")
    path = Path(options.all_config or checkpoint.with_name("all_config.yaml"))
    config = _run_config(options, read_yaml(path), path)
    names = _read_names(Path(options.identifiers))
    weights = convert_weights(_read_state(checkpoint))
    if len(weights.table) != len(names):
        raise ValueError(
            f"{options.identifiers}: has {len(names):,} names, the table of {checkpoint} has "
            f"{len(weights.table):,} rows; they are of different data sets"
        )
    puzzles = parse_identifiers(names)
    network = build_network(config, torch.device("cpu"))
    own = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.network.items()}
    if own != found:
        names = sorted(n for n in own.keys() | found.keys() if own.get(n) != found.get(n))
        raise ValueError(
            f"{checkpoint}: does not fit the model of {path}: {names[0]} is {found.get(names[0])}, "
            f"expected {own.get(names[0])} ({len(names)} such tensors)"
        )
    tasks = load_tasks(config.data)
    collection = tasks.collection
    matched = match_puzzles(
        puzzles.saved,
        collection.tasks,
        options.identifiers,
        num_aug=config.data.num_aug,
        seed=config.data.seed,
        init=True,
    )
    describe_run(config, Data(tasks=tasks, puzzles=matched.puzzles, matched=matched))
    step = STEP.search(checkpoint.name)
    directory = save_checkpoint(
        run_dir / CHECKPOINTS,
        int(step[1]) if step else 0,
        weights={
            "model": weights.network,
            "puzzle_embedding": {"weight": weights.table[torch.from_numpy(puzzles.rows)]},
        },
        training_state={IMPORTED_FROM: "HRM"},
        texts={
            PUZZLES_FILE: write_puzzles(puzzles.saved),
            # What the rows trained on is known to whoever trained them.
            TASKS_FILE: see(collection, training=None).to_json(),
        },
        config_digest=config.digest,
    )
    return ImportedRun(
        run_dir=run_dir,
        checkpoint=directory,
        num_rows=len(weights.table),
        num_puzzles=len(matched.rows),
        num_covered=int((matched.rows >= 0).sum()),
        num_tasks=len(collection.tasks),
        num_tasks_covered=sum(task.id in puzzles.saved for task in collection.tasks),
    )


def _run_config(options: ImportOptions, values: Any, path: Path) -> RunConfig:
    """HRM's settings as a run of ours: experiment arc1-hrm with the values of its file."""
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected keys and values, got a {type(values).__name__}")
    try:
        hrm: HrmConfig = validate(HrmConfig, values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    missing = [key for key in MODEL_KEYS if key not in hrm.arch]
    if missing:
        raise ValueError(f"{path}: arch has no {', '.join(missing)}")
    ours = compose_config("train", ["experiment=arc1-hrm"])
    ours.pop("output")
    ours["model"].update({key: hrm.arch[key] for key in MODEL_KEYS})
    ours["model"]["puzzle_emb_ndim"] = hrm.arch.get("puzzle_emb_ndim", hrm.arch["hidden_size"])
    if type(hrm.arch["expansion"]) is int:
        ours["model"]["expansion"] = float(hrm.arch["expansion"])
    ours["optim"].update({key: values[key] for key in TRAINING_KEYS if key in values})
    return validate(
        RunConfig,
        {
            **ours,
            "data": options.data.model_dump(),
            "epochs": hrm.epochs,
            "seed": values.get("seed", 0),
            "run_dir": options.run_dir,
            "new_puzzles": "init",
        },
    )


def _read_names(path: Path) -> list[str]:
    try:
        names = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not a readable JSON file ({error})") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{path}: expected a list of names")
    return names


def _read_state(path: Path) -> dict[str, torch.Tensor]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError, ValueError) as error:
        raise ValueError(f"{path}: not a readable state dict ({error})") from error
    entries = state.items() if isinstance(state, dict) else [(None, None)]
    if not all(isinstance(n, str) and isinstance(t, torch.Tensor) for n, t in entries):
        raise ValueError(f"{path}: expected tensors by name")
    return state
