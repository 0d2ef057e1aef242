"""What every network here shares: embed, recur, read out tokens and halt values.

``hrm.py`` and ``looped.py`` say what recurs. Wang et al. 2025, arXiv:2506.21734, with the skip
paths scaled as ``scaling.py`` says.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, NotRequired, TypedDict

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from hrm_deeploop.attention import Backend, attention_function
from hrm_deeploop.block import Block, Stack
from hrm_deeploop.config import ReasonerConfig
from hrm_deeploop.layers import (
    MLPS,
    Attention,
    Latent,
    Linear,
    Rotary,
    Rotation,
    cast_once,
)
from hrm_deeploop.recurrence import State
from hrm_deeploop.registry import Registry
from hrm_deeploop.scaling import Rule, VisitCounts, module_scaling
from hrm_deeploop.transitions import Transition, TransitionConfig

Visit = Callable[[str, Latent], Latent]
"""Applies the blocks of a module, by its name."""


class CommonOptions(TypedDict):
    """Keyword arguments that every network takes."""

    vocab_size: int  # number of tokens
    seq_len: int  # canvas positions of an example, puzzle tokens not counted
    rule: Rule  # exponents of the residual scaling
    attention: NotRequired[Backend]
    dtype: NotRequired[torch.dtype]  # of the activations; parameters are float32


class SegmentOutput(NamedTuple):
    """What one segment computes. Q values are logits, in float32 or wider."""

    state: State  # carries the graph; detach it before the next segment
    logits: Float[Tensor, "batch seq vocab"]
    q_halt: Float[Tensor, " batch"]
    q_continue: Float[Tensor, " batch"] | None  # under q_target=bootstrap only


class Reasoner(nn.Module):
    """Base of the networks. A subclass has its modules' stacks and transitions as attributes.

    A subclass is registered by :func:`model`, and says below what a run may ask of it before there
    is a network. It is built with its configuration, ``gradient``, a transition for every key of
    ``loops``, ``generator`` (source of the initial values), and the arguments here.

    Args:
        config: architecture.
        visits: how often a segment visits each module; with ``rule`` it decides (alpha, beta).
        vocab_size: number of tokens.
        seq_len: canvas positions of an example, puzzle tokens not counted.
        rule: exponents of the residual scaling.
        attention: backend name.
        dtype: of the activations; parameters are float32.
    """

    Config: ClassVar[type[ReasonerConfig]]  # architecture
    gradients: ClassVar[tuple[str, ...]]  # which updates may carry gradient; the first is usual
    loops: ClassVar[Mapping[str, str]]  # keys of transitions -> the module that each is of
    depth_key: ClassVar[str]  # key of the configuration: how often the loop runs
    revisited: ClassVar[str]  # the module whose visits the depth counts

    @classmethod
    def count_visits(cls, config: Any, gradient: str) -> VisitCounts:
        """Count how often a segment visits each module, forward and with gradient."""
        raise NotImplementedError

    @classmethod
    def hides_first_update(cls, config: Any, gradient: str) -> dict[str, str]:
        """Tell of which transitions (by key) the first update carries no gradient.

        The values are what such an update is called.
        """
        del config, gradient
        return {}

    @classmethod
    def check_transitions(cls, transitions: Mapping[str, TransitionConfig]) -> None:
        """Refuse transitions that can't stand beside each other.

        Raises:
            ValueError: naming the keys and what is allowed.
        """
        del transitions

    @classmethod
    def facts(cls, config: Any) -> dict[str, str]:
        """Say in words what recurs, by what it is called."""
        raise NotImplementedError

    @classmethod
    def describe(cls, config: Any) -> str:
        """Say in a line what recurs."""
        raise NotImplementedError

    @classmethod
    def short_name(cls, values: Mapping[str, Any]) -> str:
        """Name the model in a run's default name; ``values`` are those of the configuration."""
        return f"{values['name']}-{values[cls.depth_key]}"

    def __init__(
        self,
        config: ReasonerConfig,
        visits: VisitCounts,
        *,
        vocab_size: int,
        seq_len: int,
        rule: Rule,
        attention: Backend = "sdpa",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.config = config
        self.seq_len = seq_len
        self.dtype = dtype
        self.visits = visits
        self.scaling = module_scaling(rule, visits)
        self._attend = attention_function(attention)

        hidden_size, num_positions = config.hidden_size, config.prefix_len + seq_len
        self.embed_tokens = nn.Embedding(
            vocab_size, hidden_size, _weight=torch.empty(vocab_size, hidden_size)
        )
        self.embed_positions: nn.Parameter | None = None
        self.rotary: Rotary | None = None
        if config.pos_encodings == "rope":
            self.rotary = Rotary(config.head_dim, num_positions, config.rope_theta)
        else:
            self.embed_positions = nn.Parameter(torch.empty(num_positions, hidden_size))

    def _stack(self, module: str) -> Stack:
        """The blocks of a module, as many as are visited, with their alpha."""
        config = self.config
        return Stack(
            [
                Block(
                    Attention(config.hidden_size, config.num_heads, self._attend),
                    MLPS[config.mlp](config.hidden_size, config.mlp_width),
                    alpha=gains.alpha,
                    eps=config.rms_norm_eps,
                )
                for gains in self.scaling[module]
            ]
        )

    def _heads(self, vocab_size: int, *, tied: bool = False) -> None:
        """Create what reads out tokens (unless it is the embedding) and halt values."""
        hidden_size = self.config.hidden_size
        self.lm_head = None if tied else Linear(hidden_size, vocab_size)
        self.q_head = Linear(hidden_size, self.config.num_q_values, bias=True)

    @property
    def stacks(self) -> dict[str, Stack]:
        """The blocks of every module, by its name."""
        return {name: getattr(self, name) for name in self.visits.modules}

    @property
    def transitions(self) -> dict[str, Transition]:
        """The transitions of the modules that loop, by their names."""
        raise NotImplementedError

    @property
    def state_transitions(self) -> dict[str, Transition]:
        """The transitions that write the states, by the states' names; a plain sum is none."""
        names = self.initial_vectors
        return dict(zip(names, self.transitions.values(), strict=True)) if self.loops else {}

    @property
    def initial_vectors(self) -> dict[str, Tensor]:
        """Fixed vectors that the states start from, by name of the state."""
        raise NotImplementedError

    @property
    def num_noisy_updates(self) -> int:
        """Updates of a segment that take noise."""
        return sum(
            self.visits[name].rounds_forward
            for name, transition in self.transitions.items()
            if transition.noise > 0
        )

    def recur(self, state: State, embedded: "Embedded", visit: Visit) -> tuple[State, Latent]:
        """One segment's states, and the latent that the heads read."""
        raise NotImplementedError

    def initial_state(self, batch_size: int, seq_len: int | None = None) -> State:
        """The state of an example that has run no segment; a view, equal for every example.

        ``seq_len`` is that of a window; None: the whole canvas.
        """
        num_tokens = self.config.prefix_len + (seq_len or self.seq_len)
        shape = (batch_size, num_tokens, self.config.hidden_size)
        writers = self.state_transitions
        states = {
            name: vector.to(self.dtype).expand(shape)
            for name, vector in self.initial_vectors.items()
        }
        return {
            name: writers[name].expand(state) if name in writers else state
            for name, state in states.items()
        }

    def forward(
        self,
        state: State,
        inputs: Int[Tensor, "batch seq"],
        puzzle_vectors: Float[Tensor, "batch ndim"],
        positions: Int[Tensor, "batch seq"] | None = None,
        noise: Float[Tensor, "batch updates tokens dim"] | None = None,
    ) -> SegmentOutput:
        """Run one segment from ``state``: one prediction, one halting decision.

        ``positions`` are those of the tokens of a window on the canvas; None: all, in order.
        ``noise`` are the draws for the updates of transitions that have noise, in training.
        """
        return self.segment(state, self.embed(inputs, puzzle_vectors, positions, noise))

    def segment(self, state: State, embedded: "Embedded") -> SegmentOutput:
        """``forward`` from what :meth:`embed` returned, which is the same in every segment."""
        with cast_once(self, self.dtype):
            return self._segment(state, embedded)

    def _segment(self, state: State, embedded: "Embedded") -> SegmentOutput:
        stacks = self.stacks
        state, latent = self.recur(
            state, embedded, lambda name, x: stacks[name](x, embedded.rotation)
        )
        q_values = self.q_values(latent)
        return SegmentOutput(
            state=state,
            logits=self.token_logits(latent),
            q_halt=q_values[:, 0],
            q_continue=q_values[:, 1] if self.config.q_target == "bootstrap" else None,
        )

    def token_logits(self, latent: Latent) -> Float[Tensor, "batch cells vocab"]:
        """Read token logits out at the canvas positions."""
        canvas = latent[:, self.config.prefix_len :]
        if self.lm_head is None:
            return F.linear(canvas, self.embed_tokens.weight.to(canvas.dtype))
        return self.lm_head(canvas)

    def q_values(self, latent: Latent) -> Float[Tensor, "batch values"]:
        """Halt and, under bootstrap, continue logits of the first position, in float32 or wider."""
        q_values = self.q_head(latent[:, 0])
        return q_values.to(torch.promote_types(q_values.dtype, torch.float32))

    def embed(
        self,
        inputs: Int[Tensor, "batch seq"],
        puzzle_vectors: Float[Tensor, "batch ndim"],
        positions: Int[Tensor, "batch seq"] | None = None,
        noise: Float[Tensor, "batch updates tokens dim"] | None = None,
    ) -> "Embedded":
        """Puzzle tokens, then canvas tokens; multiplied by sqrt(hidden) as in HRM."""
        hidden_size, num_puzzle_tokens = self.config.hidden_size, self.config.prefix_len
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
            noise=noise,
        )


class Embedded(NamedTuple):
    """What a segment reads: embedded tokens, and how attention turns them."""

    tokens: Latent
    rotation: Rotation | None
    noise: Float[Tensor, "batch updates tokens dim"] | None = None  # in training alone

    def noise_by_update(self) -> Iterator[Latent] | None:
        """The draws one after the other, as the updates take them."""
        return None if self.noise is None else iter(self.noise.unbind(1))

    def take(self, where: Tensor) -> "Embedded":
        """Return what some rows read, without noise."""
        rotation = None if self.rotation is None else self.rotation.take(where)
        return Embedded(self.tokens[where], rotation)

    def join(self, other: "Embedded") -> "Embedded":
        """Return what these rows read, then others with as many tokens, without noise."""
        rotation = self.rotation
        if rotation is not None and other.rotation is not None:
            rotation = rotation.join(other.rotation)
        return Embedded(torch.cat((self.tokens, other.tokens)), rotation)


MODELS: Registry[type[Reasoner]] = Registry("model.name", "model")


def model(name: str) -> Callable[[type[Reasoner]], type[Reasoner]]:
    """Register a network as the model ``name``."""
    return MODELS.register(name)
