"""Build the parts of a run from its configuration; every script that needs them comes here."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from arc_data import sources
from arc_data.batches import BatchStream, TokenBatch
from arc_data.canvas import VOCAB_SIZE
from arc_data.leaks import TrainingSet, find_leaks, format_match, training_set
from arc_data.puzzles import (
    MatchedPuzzles,
    PuzzleSet,
    build_puzzles,
    match_puzzles,
    read_puzzles,
)
from arc_data.windows import WindowedStream
from hrm_deeploop.attention import choose_attention
from hrm_deeploop.runs.checkpoint import (
    DamagedCheckpointError,
    list_checkpoints,
    load_weights,
    read_text,
)
from hrm_deeploop.config import HRMConfig
from hrm_deeploop.device import choose_dtype
from hrm_deeploop.halting import Batch
from hrm_deeploop.hrm import HRM
from hrm_deeploop.looped import Looped
from hrm_deeploop.runs.metrics import read_metrics
from hrm_deeploop.model import Reasoner
from hrm_deeploop.puzzle_embedding import PuzzleEmbedding
from hrm_deeploop.runs.config import RunConfig

CHECKPOINTS = "checkpoints"
PUZZLES_FILE = "puzzles.json"
METRICS_FILE = "metrics.jsonl"
BEST_BY = "eval/arc_prize_at_2"  # the validation score that the best checkpoint has


@dataclass(frozen=True, kw_only=True)
class Data:
    """The tasks of a run and their puzzles."""

    collection: sources.Collection
    puzzles: PuzzleSet
    matched: MatchedPuzzles | None  # with a checkpoint's rows, if there is one

    @property
    def evaluated_indices(self) -> list[int]:
        """Which of ``puzzles.tasks`` have their test pairs predicted."""
        evaluated = self.collection.evaluated
        return [i for i, task in enumerate(self.puzzles.tasks) if task.id in evaluated]


def load_data(config: RunConfig, checkpoint: Path | None = None) -> Data:
    """The configured tasks; their puzzles are built, or matched by name with a checkpoint's.

    Raises:
        ValueError: if the data and the checkpoint have different tasks and ``new_puzzles`` is
            ``refuse``.
    """
    collection = sources.load(config.data)
    for ids, why in (
        (collection.too_large, f"do not fit data.canvas={config.data.canvas}"),
        (collection.repeated, "have the id of an earlier source's task"),
    ):
        if ids:
            print(f"data: {len(ids)} tasks left out that {why}: {_few(ids)}", file=sys.stderr)
    draws = dict(num_aug=config.data.num_aug, seed=config.data.seed)
    if checkpoint is None:
        puzzles = build_puzzles(collection.tasks, **draws)
        return Data(collection=collection, puzzles=puzzles, matched=None)
    where = str(checkpoint / PUZZLES_FILE)
    text = read_text(checkpoint, PUZZLES_FILE)
    try:
        saved = read_puzzles(text, where)
    except ValueError as error:
        raise DamagedCheckpointError(str(error)) from error
    matched = match_puzzles(
        saved,
        collection.tasks,
        where,
        init=config.new_puzzles == "init",
        **draws,
    )
    if not matched.in_place:
        num_found = int((matched.rows >= 0).sum())
        print(
            f"data: {num_found:,} of {len(matched.rows):,} puzzles have a row among the "
            f"{matched.num_saved:,} of {checkpoint}; the others start at zero",
            file=sys.stderr,
        )
    return Data(collection=collection, puzzles=matched.puzzles, matched=matched)


def load_table(table: PuzzleEmbedding, data: Data, checkpoint: Path) -> None:
    """Copy the checkpoint's rows to the puzzles that they belong to.

    Raises:
        ValueError: if the checkpoint's table is not one of its puzzles.
    """
    assert data.matched is not None
    saved = load_weights(checkpoint, "puzzle_embedding")["weight"]
    expected = (data.matched.num_saved, table.weight.shape[1])
    if tuple(saved.shape) != expected:
        raise ValueError(
            f"{checkpoint}: its puzzle table is {tuple(saved.shape)}, expected {expected}"
        )
    rows = torch.from_numpy(data.matched.rows)
    table.weight.zero_()
    table.weight[rows >= 0] = saved[rows[rows >= 0]].to(table.weight)


def load_training_set(config: RunConfig, data: Data) -> TrainingSet:
    """The pairs that train, after the leak check; what it finds is said on stderr."""
    report = find_leaks(data.collection)
    if report.across:
        handled = {"exclude": "excluded", "keep": "kept"}
        print(
            f"data: {len(report.across)} training pairs are held-out pairs of another task, "
            f"{handled.get(config.data.leaks, 'refused')} (scripts/data.py leaks lists "
            f"them): {_few([format_match(match) for match in report.across])}",
            file=sys.stderr,
        )
    return training_set(data.collection, report, config.data.leaks)


def build_stream(config: RunConfig, data: Data) -> BatchStream | WindowedStream:
    """The training batches, after the leak check."""
    stream = BatchStream(
        data.puzzles,
        training=load_training_set(config, data),
        canvas=config.data.canvas,
        global_batch_size=config.optim.global_batch_size,
        seed=config.seed,
    )
    return WindowedStream(stream) if config.window == "task" else stream


def build_probe(config: RunConfig, data: Data, rows: int) -> BatchStream:
    """Training examples to measure a network on: batches of ``rows``, on the whole canvas."""
    optim = config.optim.model_copy(update={"global_batch_size": rows})
    stream = build_stream(config.model_copy(update={"optim": optim, "window": "full"}), data)
    assert isinstance(stream, BatchStream)
    return stream


def to_batch(part: TokenBatch, device: torch.device) -> Batch:
    """A batch of the data pipeline as the trainer takes it."""
    return Batch(
        inputs=torch.from_numpy(part.inputs).long(),
        labels=torch.from_numpy(part.labels).long(),
        puzzle_ids=torch.from_numpy(part.puzzle_ids),
        positions=None if part.positions is None else torch.from_numpy(part.positions),
    ).to(device)


def _few(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def build_network(
    config: RunConfig, device: torch.device, dtype: torch.dtype | None = None
) -> Reasoner:
    """The network with its initial values, which do not depend on the device.

    Activations have ``dtype``, or what the configuration says for the device.
    """
    model = config.model
    common: dict[str, Any] = dict(
        vocab_size=VOCAB_SIZE,
        seq_len=config.data.canvas**2,
        rule=config.scaling.resolve(),
        gradient=config.gradient,
        transition=config.transition,
        attention=choose_attention(config.attention, device),
        dtype=dtype or choose_dtype(config.dtype, device),
        generator=torch.Generator().manual_seed(config.seed),
    )
    if isinstance(model, HRMConfig):
        network = HRM(model, transition_H=config.transition_H, **common)
    else:
        network = Looped(model, **common)
    wide = torch.float64 if config.dtype == "float64" else torch.float32
    return network.to(device, wide)


def build_table(config: RunConfig, puzzles: PuzzleSet, device: torch.device) -> PuzzleEmbedding:
    """The puzzle-embedding table with a row for every puzzle."""
    return PuzzleEmbedding(len(puzzles), config.model.puzzle_emb_ndim).to(device)


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
