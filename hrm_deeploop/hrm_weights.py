"""Weights of the released HRM code under our names.

HRM saves one state dict of everything, under a prefix for each wrapper (``_orig_mod.`` from
torch.compile, ``model.`` from the loss head, ``inner.`` from the halting wrapper).
"""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

TABLE = "puzzle_emb.weights"
WRAPPERS = ("_orig_mod.", "module.", "model.", "inner.")
RENAMED = {
    "embed_tokens.embedding_weight": "embed_tokens.weight",
    "embed_pos.embedding_weight": "embed_positions",
    "H_level.layers": "H.blocks",
    "L_level.layers": "L.blocks",
    "self_attn": "attention",
}


class HrmWeights(NamedTuple):
    """A network's tensors under our names, and the puzzle table by HRM's rows."""

    network: dict[str, Tensor]
    table: Tensor


def our_name(name: str) -> str:
    """The name that a tensor of HRM's state dict has in :class:`~hrm_deeploop.hrm.HRM`."""
    while True:
        prefix = next((wrapper for wrapper in WRAPPERS if name.startswith(wrapper)), None)
        if prefix is None:
            break
        name = name.removeprefix(prefix)
    for theirs, ours in RENAMED.items():
        name = name.replace(theirs, ours)
    return name


def convert_weights(state: Mapping[str, Tensor]) -> HrmWeights:
    """Split HRM's state dict; tensors become float32.

    Raises:
        ValueError: if it has no puzzle table.
    """
    renamed = {our_name(name): tensor.float() for name, tensor in state.items()}
    # Scratch copies of a batch's rows, which older versions saved too.
    network = {name: t for name, t in renamed.items() if not name.startswith("puzzle_emb.")}
    if TABLE not in renamed:
        raise ValueError(f"no tensor {TABLE!r} among {len(renamed)}: not a state dict of HRM")
    return HrmWeights(network=network, table=renamed[TABLE])
