"""What a training step costs: FLOPs counted from the configuration, bytes from a dry run.

FLOPs are those of matrix products (two per multiply-add), the convention of FlopCounterMode. A
block's visit of S tokens makes S (8 h^2 + 6 h w + 4 S h) of them: the four attention projections,
the three MLP matrices of inner width w, scores and weighted sum. A backward makes twice as many.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from hrm_deeploop.model import Reasoner


class StepFlops(NamedTuple):
    """FLOPs of one example in one segment."""

    forward: int  # the cycles and the token head: what an evaluation pays
    backward: int  # of the visits that carry gradient
    target: int  # the further forward of q_target=bootstrap, 0 without

    @property
    def train(self) -> int:
        return self.forward + self.backward + self.target


def count_flops(network: Reasoner, *, seq_len: int) -> StepFlops:
    """FLOPs of one example's segment, from counts alone."""
    config, visits = network.config, network.visits
    num_positions = config.prefix_len + seq_len
    h, w, vocab_size = config.hidden_size, config.mlp_width, network.embed_tokens.num_embeddings
    block = num_positions * (8 * h * h + 6 * h * w + 4 * num_positions * h)
    q_head = 2 * h * config.num_q_values
    # The token head is applied at the canvas positions only.
    heads = 2 * seq_len * h * vocab_size + q_head
    updates = updates_g = 0  # what the transitions add
    for name, transition in network.transitions.items():
        added = num_positions * transition.flops(h)
        updates += visits[name].rounds_forward * added
        updates_g += visits[name].rounds * added
    forward = visits.N_forward * block + updates + heads
    return StepFlops(
        forward=forward,
        backward=2 * (visits.N_g * block + updates_g + heads),
        target=forward if config.q_target == "bootstrap" else 0,
    )


def saved_bytes(network: Reasoner, batch_size: int) -> int:
    """Bytes that a forward of ``batch_size`` examples keeps for its backward.

    ``network`` is on the meta device, so nothing is computed; storages shared by several saved
    tensors count once, parameters not at all.
    """
    config, device = network.config, network.embed_tokens.weight.device
    seen = {StorageWeakRef(parameter.untyped_storage()) for parameter in network.parameters()}
    total = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal total
        storage = StorageWeakRef(tensor.untyped_storage())
        if storage not in seen:
            seen.add(storage)
            total += tensor.untyped_storage().nbytes()
        return tensor

    inputs = torch.zeros(batch_size, network.seq_len, dtype=torch.int64, device=device)
    vectors = torch.zeros(batch_size, config.puzzle_emb_ndim, device=device, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        network(network.initial_state(batch_size), inputs, vectors)
    return total


class RankMemory(NamedTuple):
    """Bytes of one rank in training; what the allocator adds is not in it."""

    weights_and_optimizer: int  # float32 weights, gradients, two moments, and an average if asked
    puzzle_embedding: int
    carry: int  # latent states of the rank's rows, before and after a segment
    activations: int  # kept for the backward of one micro-batch, and what noise it is given

    @property
    def total(self) -> int:
        return sum(self)


def estimate_memory(
    network: Reasoner, *, num_puzzles: int, rank_rows: int, micro_rows: int, averaged: bool
) -> RankMemory:
    """Memory of one rank with ``rank_rows`` of the global batch, ``micro_rows`` at a time."""
    config = network.config
    num_core = sum(parameter.numel() for parameter in network.parameters())
    state = sum(tensor.numel() for tensor in network.initial_state(rank_rows).values())
    num_tokens = config.prefix_len + network.seq_len
    noise = micro_rows * network.num_noisy_updates * num_tokens * config.hidden_size
    return RankMemory(
        weights_and_optimizer=4 * num_core * (5 if averaged else 4),
        puzzle_embedding=4 * num_puzzles * config.puzzle_emb_ndim,
        carry=2 * state * network.dtype.itemsize,
        activations=saved_bytes(network, micro_rows) + noise * network.dtype.itemsize,
    )
