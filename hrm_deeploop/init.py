"""Every initial value but those of transitions and convolutions, and the only place of beta.

HRM's values: linear maps are truncated normal (2 standard deviations, variance-corrected) with std
1 / sqrt(fan_in); the token embedding has std 1 / sqrt(hidden), and is multiplied by sqrt(hidden) on
use; the Q head has weight 0 and bias -5; the initial states are fixed vectors of std 1.

DeepLoop multiplies the residual-branch matrices by beta once, here (arXiv:2607.13491, eq. 7): the
value rows of ``qkv_proj``, ``o_proj``, ``gate_up_proj`` and ``down_proj``. Queries, keys,
embeddings and heads keep their initialiser.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hrm_deeploop.block import Stack
from hrm_deeploop.scaling import LayerGains

if TYPE_CHECKING:
    from hrm_deeploop.model import Reasoner

# Standard deviation of a standard normal that is cut off at +-2.
TRUNCATED_STD = 0.87962566103423978
Q_BIAS = -5.0


def truncated_normal_(tensor: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """Fill with a normal cut off at two of its own deviations, so that the result has ``std``."""
    wide = std / TRUNCATED_STD
    return nn.init.trunc_normal_(tensor, std=wide, a=-2 * wide, b=2 * wide, generator=generator)


@torch.no_grad()
def initialize(model: "Reasoner", generator: torch.Generator) -> None:
    """Set every parameter and initial state of ``model``; equal draws whatever the scaling."""
    hidden_size = model.config.hidden_size
    embedding_std = 1 / math.sqrt(hidden_size)
    truncated_normal_(model.embed_tokens.weight, embedding_std, generator)
    if model.embed_positions is not None:
        truncated_normal_(model.embed_positions, embedding_std, generator)
    for name, stack in model.stacks.items():
        _initialize_stack(stack, model.scaling[name], generator)
    if model.lm_head is not None:
        truncated_normal_(model.lm_head.weight, embedding_std, generator)
    model.q_head.weight.zero_()
    assert model.q_head.bias is not None
    model.q_head.bias.fill_(Q_BIAS)
    for vector in model.initial_vectors.values():
        truncated_normal_(vector, 1.0, generator)
    for transition in model.transitions.values():
        transition.initialize(lambda tensor, std: truncated_normal_(tensor, std, generator))


def _initialize_stack(stack: Stack, gains: LayerGains, generator: torch.Generator) -> None:
    for block, (_, beta) in zip(stack, gains, strict=True):
        attention, mlp = block.attention, block.mlp
        for linear in (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj):
            truncated_normal_(linear.weight, 1 / math.sqrt(linear.weight.shape[1]), generator)
        _query, _key, value = attention.qkv_proj.weight.chunk(3)
        for matrix in (
            value,
            attention.o_proj.weight,
            mlp.gate_up_proj.weight,
            mlp.down_proj.weight,
        ):
            matrix.mul_(beta)
        mlp.initialize_others(generator)
