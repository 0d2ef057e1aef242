"""Build the parts of a run from its configuration; every script that needs them comes here."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from arc_data import sources
from arc_data.canvas import VOCAB_SIZE
from arc_data.leaks import TrainingSet, find_leaks, format_match, training_set
from arc_data.puzzles import PuzzleSet, build_puzzles, read_puzzles
from hrm_deeploop.checkpoint import list_checkpoints
from hrm_deeploop.device import choose_dtype
from hrm_deeploop.model import HRM
from hrm_deeploop.puzzle_embedding import PuzzleEmbedding
from scripts.run_config import RunConfig

CHECKPOINTS = "checkpoints"
PUZZLES_FILE = "puzzles.json"


@dataclass(frozen=True, kw_only=True)
class Data:
    """The tasks of a run and their puzzles."""

    collection: sources.Collection
    puzzles: PuzzleSet

    @property
    def evaluated_indices(self) -> list[int]:
        """Which of ``puzzles.tasks`` have their test pairs predicted."""
        evaluated = self.collection.evaluated
        return [i for i, task in enumerate(self.puzzles.tasks) if task.id in evaluated]


def load_data(config: RunConfig, checkpoint: Path | None = None) -> Data:
    """The configured tasks; their puzzles are built, or those of a checkpoint."""
    collection = sources.load(config.data)
    for ids, why in (
        (collection.too_large, f"do not fit data.canvas={config.data.canvas}"),
        (collection.repeated, "have the id of an earlier source's task"),
    ):
        if ids:
            print(f"data: {len(ids)} tasks left out that {why}: {_few(ids)}", file=sys.stderr)
    if checkpoint is None:
        puzzles = build_puzzles(
            collection.tasks, num_aug=config.data.num_aug, seed=config.data.seed
        )
    else:
        path = checkpoint / PUZZLES_FILE
        if not path.is_file():
            raise ValueError(f"{checkpoint}: not a checkpoint, it has no {path.name}")
        puzzles = read_puzzles(path.read_text(encoding="utf-8"), collection.tasks, str(path))
    return Data(collection=collection, puzzles=puzzles)


def load_training_set(config: RunConfig, data: Data) -> TrainingSet:
    """The pairs that train, after the leak check; what it finds is said on stderr."""
    report = find_leaks(data.collection)
    if report.across:
        handled = {"exclude": "excluded", "keep": "kept"}
        print(
            f"data: {len(report.across)} training pairs are held-out test pairs of another task, "
            f"{handled.get(config.data.leaks, 'refused')} (scripts/data.py leaks lists "
            f"them): {_few([format_match(match) for match in report.across])}",
            file=sys.stderr,
        )
    return training_set(data.collection, report, config.data.leaks)


def _few(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def build_network(config: RunConfig, device: torch.device) -> HRM:
    """The network with its initial values, which do not depend on the device."""
    network = HRM(
        config.model,
        vocab_size=VOCAB_SIZE,
        seq_len=config.data.canvas**2,
        rule=config.scaling.resolve(),
        gradient=config.gradient,
        attention=config.attention,
        dtype=choose_dtype(config.dtype, device),
        generator=torch.Generator().manual_seed(config.seed),
    )
    wide = torch.float64 if config.dtype == "float64" else torch.float32
    return network.to(device, wide)


def build_table(config: RunConfig, puzzles: PuzzleSet, device: torch.device) -> PuzzleEmbedding:
    """The puzzle-embedding table with a row for every puzzle."""
    return PuzzleEmbedding(len(puzzles), config.model.puzzle_emb_ndim).to(device)


def find_checkpoint(run_dir: Path, which: str | int) -> Path:
    """The checkpoint of a run: ``last`` or a step number.

    Raises:
        ValueError: if the run has none, or not that one.
    """
    found = list_checkpoints(run_dir / CHECKPOINTS)
    if not found:
        raise ValueError(f"{run_dir}: no checkpoint in {CHECKPOINTS}/")
    if which == "last":
        return list(found.values())[-1]
    if which not in found:
        raise ValueError(
            f"checkpoint={which}: allowed are last and the steps {', '.join(map(str, found))}"
        )
    return found[int(which)]
