"""Build the parts of a run from its configuration; every script that needs them comes here."""

from pathlib import Path
from typing import Any

import torch

from arc_data.batches import TokenBatch
from arc_data.canvas import VOCAB_SIZE
from arc_data.puzzles import (
    PuzzleSet,
)
from hrm_deeploop.attention import choose_attention
from hrm_deeploop.device import choose_dtype
from hrm_deeploop.halting import Batch
from hrm_deeploop.model import Reasoner
from hrm_deeploop.puzzle_embedding import PuzzleEmbedding
from hrm_deeploop.runs.checkpoint import (
    load_weights,
)
from hrm_deeploop.runs.config import RunConfig
from hrm_deeploop.runs.data import Data


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


def to_batch(part: TokenBatch, device: torch.device) -> Batch:
    """A batch of the data pipeline as the trainer takes it."""
    return Batch(
        inputs=torch.from_numpy(part.inputs).long(),
        labels=torch.from_numpy(part.labels).long(),
        puzzle_ids=torch.from_numpy(part.puzzle_ids),
        positions=None if part.positions is None else torch.from_numpy(part.positions),
    ).to(device)


def build_network(
    config: RunConfig, device: torch.device, dtype: torch.dtype | None = None
) -> Reasoner:
    """The network with its initial values, which do not depend on the device.

    Activations have ``dtype``, or what the configuration says for the device.
    """
    build: Any = config.kind  # a subclass takes more than its base
    network: Reasoner = build(
        config.model,
        vocab_size=VOCAB_SIZE,
        seq_len=config.data.canvas**2,
        rule=config.scaling.resolve(),
        gradient=config.gradient,
        attention=choose_attention(config.attention, device),
        dtype=dtype or choose_dtype(config.dtype, device),
        generator=torch.Generator().manual_seed(config.seed),
        **config.transitions,
    )
    wide = torch.float64 if config.dtype == "float64" else torch.float32
    return network.to(device, wide)


def build_table(config: RunConfig, puzzles: PuzzleSet, device: torch.device) -> PuzzleEmbedding:
    """The puzzle-embedding table with a row for every puzzle."""
    return PuzzleEmbedding(len(puzzles), config.model.puzzle_emb_ndim).to(device)
