"""The Hierarchical Reasoning Model: embed, recur over H and L, read out tokens and halt values.

Wang et al. 2025, arXiv:2506.21734, with the skip paths scaled as ``scaling.py`` says.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from hrm_deeploop.attention import Backend, attention_function
from hrm_deeploop.block import Block, Stack
from hrm_deeploop.config import ModelConfig
from hrm_deeploop.init import initialize
from hrm_deeploop.layers import (
    Attention,
    Latent,
    Linear,
    Rotary,
    Rotation,
    SwiGLU,
    cast_once,
)
from hrm_deeploop.recurrence import LatentState, run_cycles
from hrm_deeploop.scaling import (
    Gradient,
    ModuleScaling,
    ResidualScaling,
    Rule,
    count_visits,
    module_scaling,
)


class SegmentOutput(NamedTuple):
    """What one segment computes. Q values are logits, in float32 or wider."""

    state: LatentState  # carries the graph; detach it before the next segment
    logits: Float[Tensor, "batch seq vocab"]
    q_halt: Float[Tensor, " batch"]
    q_continue: Float[Tensor, " batch"] | None  # under q_target=bootstrap only


class HRM(nn.Module):
    """One network; ``scaling`` and ``gradient`` are all that distinguishes its variants.

    Args:
        config: architecture.
        vocab_size: number of tokens.
        seq_len: canvas positions of an example, puzzle tokens not counted.
        rule: exponents of the residual scaling.
        gradient: which updates carry gradient; with ``rule`` it decides (alpha, beta).
        attention: backend name.
        dtype: of the activations; parameters are float32.
        generator: source of the initial values.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        vocab_size: int,
        seq_len: int,
        rule: Rule,
        gradient: Gradient,
        attention: Backend = "sdpa",
        dtype: torch.dtype = torch.float32,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.config = config
        self.seq_len = seq_len
        self.gradient: Gradient = gradient
        self.dtype = dtype
        self.visits = count_visits(
            H_layers=config.H_layers,
            L_layers=config.L_layers,
            H_cycles=config.H_cycles,
            L_cycles=config.L_cycles,
            gradient=gradient,
        )
        self.scaling: ModuleScaling = module_scaling(rule, self.visits)

        hidden_size, num_positions = config.hidden_size, config.num_puzzle_tokens + seq_len
        self.embed_tokens = nn.Embedding(
            vocab_size, hidden_size, _weight=torch.empty(vocab_size, hidden_size)
        )
        self.embed_positions: nn.Parameter | None = None
        self.rotary: Rotary | None = None
        if config.pos_encodings == "rope":
            self.rotary = Rotary(config.head_dim, num_positions, config.rope_theta)
        else:
            self.embed_positions = nn.Parameter(torch.empty(num_positions, hidden_size))

        attend = attention_function(attention)

        def stack(num_layers: int, gains: ResidualScaling) -> Stack:
            return Stack(
                [
                    Block(
                        Attention(hidden_size, config.num_heads, attend),
                        SwiGLU(hidden_size, config.mlp_width),
                        alpha=gains.alpha,
                        eps=config.rms_norm_eps,
                    )
                    for _ in range(num_layers)
                ]
            )

        self.H = stack(config.H_layers, self.scaling.H)
        self.L = stack(config.L_layers, self.scaling.L)
        self.lm_head = Linear(hidden_size, vocab_size)
        self.q_head = Linear(hidden_size, config.num_q_values, bias=True)
        self.register_buffer("H_init", torch.empty(hidden_size))
        self.register_buffer("L_init", torch.empty(hidden_size))
        self.H_init: Tensor
        self.L_init: Tensor
        initialize(self, generator)

    def initial_state(self, batch_size: int, seq_len: int | None = None) -> LatentState:
        """The state of an example that has run no segment; a view, equal for every example.

        ``seq_len`` is that of a window; None: the whole canvas.
        """
        num_tokens = self.config.num_puzzle_tokens + (seq_len or self.seq_len)
        shape = (batch_size, num_tokens, self.config.hidden_size)
        return LatentState(
            z_H=self.H_init.to(self.dtype).expand(shape),
            z_L=self.L_init.to(self.dtype).expand(shape),
        )

    def forward(
        self,
        state: LatentState,
        inputs: Int[Tensor, "batch seq"],
        puzzle_vectors: Float[Tensor, "batch ndim"],
        positions: Int[Tensor, "batch seq"] | None = None,
    ) -> SegmentOutput:
        """Run one segment: C cycles from ``state``, one prediction, one halting decision.

        ``positions`` are those of the tokens of a window on the canvas; None: all, in order.
        """
        return self.segment(state, self.embed(inputs, puzzle_vectors, positions))

    def segment(self, state: LatentState, embedded: "Embedded") -> SegmentOutput:
        """``forward`` from what :meth:`embed` returned, which is the same in every segment."""
        # A compiled graph shares the casts by itself.
        if torch.compiler.is_compiling():
            return self._segment(state, embedded)
        with cast_once(self, self.dtype):
            return self._segment(state, embedded)

    def _segment(self, state: LatentState, embedded: "Embedded") -> SegmentOutput:
        config, rotation = self.config, embedded.rotation
        z_H, z_L = run_cycles(
            state,
            embedded.tokens,
            lambda x: self.H(x, rotation),
            lambda x: self.L(x, rotation),
            H_cycles=config.H_cycles,
            L_cycles=config.L_cycles,
            gradient=self.gradient,
        )
        q_values = self.q_head(z_H[:, 0])
        q_values = q_values.to(torch.promote_types(q_values.dtype, torch.float32))
        return SegmentOutput(
            state=LatentState(z_H=z_H, z_L=z_L),
            logits=self.lm_head(z_H[:, config.num_puzzle_tokens :]),
            q_halt=q_values[:, 0],
            q_continue=q_values[:, 1] if config.q_target == "bootstrap" else None,
        )

    def embed(
        self,
        inputs: Int[Tensor, "batch seq"],
        puzzle_vectors: Float[Tensor, "batch ndim"],
        positions: Int[Tensor, "batch seq"] | None = None,
    ) -> "Embedded":
        """Puzzle tokens, then canvas tokens; multiplied by sqrt(hidden) as in HRM."""
        hidden_size, num_puzzle_tokens = self.config.hidden_size, self.config.num_puzzle_tokens
        tokens = self.embed_tokens(inputs)
        if num_puzzle_tokens:
            missing = num_puzzle_tokens * hidden_size - puzzle_vectors.shape[-1]
            padded = F.pad(puzzle_vectors, (0, missing))
            prefix = padded.view(-1, num_puzzle_tokens, hidden_size)
            tokens = torch.cat((prefix, tokens), dim=1)
        if positions is not None:  # the puzzle tokens stand before those of the canvas
            first = torch.arange(num_puzzle_tokens, device=inputs.device).expand(len(inputs), -1)
            positions = torch.cat((first, positions + num_puzzle_tokens), dim=1)
        if self.embed_positions is not None:
            where = self.embed_positions if positions is None else self.embed_positions[positions]
            tokens = math.sqrt(0.5) * (tokens + where)  # keeps the variance
        return Embedded(
            tokens=(math.sqrt(hidden_size) * tokens).to(self.dtype),
            rotation=None if self.rotary is None else self.rotary(positions),
        )


class Embedded(NamedTuple):
    """What a segment reads: embedded tokens, and how attention turns them."""

    tokens: Latent
    rotation: Rotation | None

    def take(self, where: Tensor) -> "Embedded":
        """That of some rows."""
        rotation = None if self.rotation is None else self.rotation.take(where)
        return Embedded(self.tokens[where], rotation)

    def join(self, other: "Embedded") -> "Embedded":
        """That of these rows, then of others with as many tokens."""
        rotation = self.rotation
        if rotation is not None and other.rotation is not None:
            rotation = rotation.join(other.rotation)
        return Embedded(torch.cat((self.tokens, other.tokens)), rotation)
