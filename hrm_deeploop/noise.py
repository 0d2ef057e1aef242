"""What transitions with noise add in training: a function of (seed, step), as all that is drawn."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hrm_deeploop.model import Reasoner

NOISE_STREAM = 2  # keeps these draws apart from the batches' and the exploration's at one seed


def draw_noise(
    network: Reasoner,
    *,
    seed: int,
    step: int,
    part: int,
    rows: range,
    seq_len: int,
    device: torch.device,
) -> Float[Tensor, "batch updates tokens dim"] | None:
    """Standard normals for the noisy updates of a segment; None if there is no such update.

    ``rows`` are those of the global batch's ``part``, whose sequences have ``seq_len`` positions of
    the canvas. A row's draws depend on (seed, step, part, row) and the kind of device alone, so
    they are the same for any number of ranks and size of micro-batches.
    """
    if not network.num_noisy_updates:
        return None
    config = network.config
    shape = (network.num_noisy_updates, config.prefix_len + seq_len, config.hidden_size)
    drawn = []
    for row in rows:
        seeds = np.random.default_rng((seed, NOISE_STREAM, step, part, row))
        generator = torch.Generator(device).manual_seed(int(seeds.integers(2**63)))
        drawn.append(torch.randn(shape, generator=generator, device=device))
    return torch.stack(drawn).to(network.dtype)
