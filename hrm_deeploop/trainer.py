"""Training with deep supervision; knows tokens and puzzle ids, nothing of ARC.

Each step draws a global batch, fills the halted slots with it, runs one segment, and updates the
network (Adam) and the puzzle rows that occurred (SignSGD). What a step does is a function of the
weights, the carry and (seed, step), so a resumed run needs no random state.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hrm_deeploop.device import Ranks, check_compiler, data_parallel
from hrm_deeploop.finite import finite_check
from hrm_deeploop.halting import (
    Batch,
    Carry,
    continue_target,
    decide_halt,
    empty_carry,
    min_segments,
    refill,
)
from hrm_deeploop.log_sums import COUNTED, LOSS_SUMS, LogSums, gradient_norms
from hrm_deeploop.losses import Correctness, correctness, segment_loss
from hrm_deeploop.model import Reasoner
from hrm_deeploop.noise import draw_noise
from hrm_deeploop.optim import (
    OptimConfig,
    average_weights,
    build_optimizer,
    build_scheduler,
    parameter_groups,
)
from hrm_deeploop.puzzle_embedding import PuzzleEmbedding
from hrm_deeploop.recurrence import State, detach
from hrm_deeploop.training_state import Bounds, check_training_state

EXPLORATION_STREAM = 1  # keeps these draws apart from the batches' at one seed


class Segment(NamedTuple):
    """What one micro-batch's segment leaves behind."""

    state: State
    q_halt: Tensor
    q_continue: Tensor | None
    right: Correctness
    losses: Tensor  # ``LOSS_SUMS``
    puzzle_grad: Tensor | None


class Trainer:
    """One network in training, with its puzzle table, optimisers and halting carry.

    Args:
        network: on ``ranks.device``; so is ``puzzle_embedding``.
        config: optimisers and schedule.
        total_steps: length of the learning-rate schedule.
        seed: of the halting exploration and of the transitions' noise.
        ranks: this process among those that share the global batch.
        micro_batch_size: canvases that a forward takes at once; None takes a rank's whole batch.
            Of shorter sequences it takes as many rows as have no more tokens.
        compile_network: run the blocks through torch.compile.

    Raises:
        ValueError: if the global batch can't be split evenly over ranks or micro-batches, or there
            is no compiler to compile with.
    """

    def __init__(
        self,
        network: Reasoner,
        puzzle_embedding: PuzzleEmbedding,
        config: OptimConfig,
        *,
        total_steps: int,
        seed: int,
        ranks: Ranks,
        micro_batch_size: int | None = None,
        compile_network: bool = False,
    ) -> None:
        if config.global_batch_size % ranks.world_size:
            raise ValueError(
                f"optim.global_batch_size={config.global_batch_size} must be a multiple of the "
                f"{ranks.world_size} ranks"
            )
        rank_batch_size = config.global_batch_size // ranks.world_size
        self.micro_batch_size = micro_batch_size or rank_batch_size
        check_micro_batch(micro_batch_size, rank_batch_size)
        self.network = network
        self.puzzle_embedding = puzzle_embedding
        self.config = config
        self.total_steps = total_steps
        self.seed = seed
        self.ranks = ranks
        self.step = 0
        self.log_sums = LogSums(ranks, list(network.stacks))
        self._finite = finite_check(ranks.device)
        self.carry: tuple[Carry, ...] | None = None  # a part for every length of sequence
        self.optimizer = build_optimizer(parameter_groups(network), config)
        self.scheduler = build_scheduler(self.optimizer, total_steps=total_steps, config=config)
        self.averaged = average_weights(network, config.ema_rate) if config.ema_rate else None
        self._parallel = data_parallel(network, ranks)
        if compile_network:
            check_compiler(ranks.device)
            compile_blocks(network)

    def train_step(self, fresh: Sequence[Batch]) -> None:
        """One segment and one update.

        ``fresh`` is this rank's slice of the step's global batch, a part for every length of
        sequence; the parts have the same lengths and numbers of rows in every step.

        Raises:
            NonFiniteError: on a CPU before anything is updated; see finite.py.
        """
        carries = []
        for number, batch in enumerate(fresh):
            initial = self.network.initial_state(*batch.inputs.shape)
            old = self.carry[number] if self.carry else empty_carry(batch, initial)
            carries.append(refill(old, batch, initial))
        parts = [list(self._micro_batches(carry)) for carry in carries]
        num_left = sum(map(len, parts))
        segments: list[list[Segment]] = []
        for number, of_carry in enumerate(parts):
            segments.append([])
            first_row = self.ranks.rank * len(fresh[number].inputs)
            for part in of_carry:
                num_left -= 1
                num_rows, seq_len = part.batch.inputs.shape
                noise = draw_noise(
                    self.network,
                    seed=self.seed,
                    step=self.step,
                    part=number,
                    rows=range(first_row, first_row + num_rows),
                    seq_len=seq_len,
                    device=self.ranks.device,
                )
                segments[-1].append(self._run(part, noise, is_last=num_left == 0))
                first_row += num_rows

        counted = torch.zeros(len(COUNTED), device=self.ranks.device)
        least = self._min_segments([len(batch.inputs) for batch in fresh])
        done = []
        for carry, of_carry, at_least in zip(carries, segments, least, strict=True):
            halted, sums = self._halt(carry, of_carry, at_least)
            counted += sums
            done.append(
                Carry(
                    state={
                        name: _join([segment.state[name] for segment in of_carry])
                        for name in carry.state
                    },
                    steps=carry.steps + 1,
                    halted=halted,
                    batch=carry.batch,
                )
            )
        norms = gradient_norms(self.network)
        puzzle_grads = [s.puzzle_grad for of in segments for s in of if s.puzzle_grad is not None]
        puzzle_grad = torch.cat(puzzle_grads) if puzzle_grads else None
        self._check_finite(counted[-len(LOSS_SUMS) :], norms, puzzle_grad)

        self._update(torch.cat([carry.batch.puzzle_ids for carry in carries]), puzzle_grad)
        self.log_sums.add(counted, norms)
        self.carry = tuple(done)

    def _micro_batches(self, carry: Carry) -> Iterator[Carry]:
        """Equal parts of a carry, each of at most so many tokens as a micro-batch of canvases."""
        num_rows, seq_len = carry.batch.inputs.shape
        most = max(1, self.micro_batch_size * self.network.seq_len // seq_len)
        rows = max(n for n in range(1, min(most, num_rows) + 1) if num_rows % n == 0)
        for part in range(num_rows // rows):
            yield carry.rows(part, num_rows // rows)

    def _halt(
        self, carry: Carry, segments: Sequence[Segment], at_least: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Which rows halt, and what the log adds up: counts of those, and losses of all."""
        q_halt = torch.cat([segment.q_halt for segment in segments])
        q_continue = [s.q_continue for s in segments if s.q_continue is not None]
        steps = carry.steps + 1
        halted = decide_halt(
            q_halt,
            torch.cat(q_continue) if q_continue else None,
            steps,
            at_least,
            max_steps=self.network.config.halt_max_steps,
        )
        exact = torch.cat([segment.right.exact for segment in segments])
        per_row = (
            torch.ones_like(steps),
            steps,
            torch.cat([segment.right.token_accuracy for segment in segments]),
            exact,
            (q_halt > 0) == exact,
        )
        finished = torch.stack([torch.where(halted, value, 0).sum().float() for value in per_row])
        losses = torch.stack([segment.losses for segment in segments]).sum(0)
        return halted, torch.cat((finished, losses))

    def _run(self, carry: Carry, noise: Tensor | None, *, is_last: bool) -> Segment:
        """Forward and backward of one micro-batch; gradients add up, ranks meet at the last."""
        network, batch = self.network, carry.batch
        puzzle_vectors = self.puzzle_embedding.lookup(batch.puzzle_ids)
        with self._synchronized(is_last):
            out = self._parallel(carry.state, batch.inputs, puzzle_vectors, batch.positions, noise)
            state = detach(out.state)
            target = None
            if network.config.q_target == "bootstrap":
                with torch.no_grad():
                    ahead = network(state, batch.inputs, puzzle_vectors, batch.positions)
                is_last_segment = carry.steps + 1 >= network.config.halt_max_steps
                target = continue_target(ahead.q_halt, ahead.q_continue, is_last_segment)
            right = correctness(out.logits, batch.labels)
            loss = segment_loss(
                out.logits, batch.labels, right.exact, out.q_halt, out.q_continue, target
            )
            # Losses are sums over rows; DDP averages gradients over ranks.
            scale = self.ranks.world_size / self.config.global_batch_size
            (scale * loss.total).backward()
        return Segment(
            state=state,
            q_halt=out.q_halt.detach(),
            q_continue=None if out.q_continue is None else out.q_continue.detach(),
            right=right,
            losses=torch.stack([value.detach().float() for value in loss]),
            puzzle_grad=puzzle_vectors.grad,
        )

    def _synchronized(self, is_last: bool) -> AbstractContextManager[None]:
        if isinstance(self._parallel, DistributedDataParallel) and not is_last:
            return self._parallel.no_sync()
        return nullcontext()

    def _check_finite(self, losses: Tensor, norms: Tensor, puzzle_grad: Tensor | None) -> None:
        names, found = [*LOSS_SUMS, *self.log_sums.norms], [losses, norms]
        if puzzle_grad is not None:
            names.append("grad_norm_puzzle_embedding")
            found.append(puzzle_grad.norm().float()[None])
        self._finite.add(self.step + 1, names, torch.cat(found))

    @property
    def lr(self) -> float:
        """The network's learning rate in the coming step."""
        return float(self.scheduler.get_last_lr()[0])

    @property
    def puzzle_emb_lr(self) -> float:
        """The puzzle table's learning rate in the coming step; it follows the same schedule."""
        return self.config.puzzle_emb_lr * self.lr / self.config.lr

    def _update(self, puzzle_ids: Tensor, puzzle_grad: Tensor | None) -> None:
        puzzle_emb_lr = self.puzzle_emb_lr
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        if puzzle_grad is not None:
            self.puzzle_embedding.sign_sgd_step(
                self.ranks.gather_rows(puzzle_ids),
                self.ranks.gather_rows(puzzle_grad),
                lr=puzzle_emb_lr,
                weight_decay=self.config.puzzle_emb_weight_decay,
            )
        if self.averaged is not None:
            self.averaged.update_parameters(self.network)
        self.step += 1

    def _min_segments(self, rank_rows: Sequence[int]) -> list[Tensor]:
        """This rank's slice of the exploration draws of the step, for parts of so many rows."""
        drawn = min_segments(
            self.config.global_batch_size,
            max_steps=self.network.config.halt_max_steps,
            exploration_prob=self.network.config.halt_exploration_prob,
            rng=np.random.default_rng((self.seed, EXPLORATION_STREAM, self.step)),
        )
        parts = drawn.split([n * self.ranks.world_size for n in rank_rows])
        mine = [part.chunk(self.ranks.world_size)[self.ranks.rank] for part in parts]
        return [part.to(self.ranks.device) for part in mine]

    @property
    def eval_network(self) -> Reasoner:
        """The network to predict with: the averaged one where weights are averaged."""
        if self.averaged is None:
            return self.network
        assert isinstance(self.averaged.module, Reasoner)
        return self.averaged.module

    def modules(self) -> dict[str, nn.Module]:
        """What a checkpoint keeps of the model, by file name."""
        averaged = {} if self.averaged is None else {"ema": self.averaged.module}
        return {"model": self.network, "puzzle_embedding": self.puzzle_embedding, **averaged}

    def training_state(self) -> dict[str, Any]:
        """What a resumed run needs beside the weights; every rank must call it, all get the same.

        Raises:
            NonFiniteError: if a step that was not looked at yet was not finite.

        The carry is that of the whole global batch, so that any number of ranks can go on.
        """
        self.check_finite()
        carries = None
        if self.carry is not None:
            carries = [
                {name: self.ranks.gather_rows(tensor) for name, tensor in carry.tensors().items()}
                for carry in self.carry
            ]
        return {
            "step": self.step,
            "log_sums": self.log_sums.state(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "num_averaged": 0 if self.averaged is None else int(self.averaged.n_averaged),
            "carry": carries,
        }

    def check_finite(self) -> None:
        """Look at the values of every step until now, which an accelerator does some steps later.

        Raises:
            NonFiniteError: if one is not finite.
        """
        self._finite.flush()

    def load_training_state(self, saved: dict[str, Any]) -> None:
        """Go on from ``training_state()``; the caller has loaded the weights of the same step.

        It may be of another device or dtype: latent states are cast to the network's.

        Raises:
            ValueError: if it is not such a state, or not one of this network.
        """
        check_training_state(
            saved,
            Bounds(
                num_rows=self.config.global_batch_size,
                vocab_size=self.network.embed_tokens.num_embeddings,
                num_puzzles=len(self.puzzle_embedding.weight),
                seq_len=self.network.seq_len,
                max_steps=self.network.config.halt_max_steps,
            ),
        )
        try:
            self.log_sums.load_state(saved["log_sums"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.scheduler.load_state_dict(saved["scheduler"])
        except (KeyError, IndexError, TypeError, AttributeError, RuntimeError) as error:
            raise ValueError(
                f"not a training state of this network ({type(error).__name__}: {error})"
            ) from error
        self.step = saved["step"]
        if self.averaged is not None:
            self.averaged.n_averaged.fill_(saved["num_averaged"])
        if saved["carry"] is not None:
            world_size, rank = self.ranks.world_size, self.ranks.rank
            self.carry = tuple(
                Carry.from_tensors(
                    {
                        name: tensor.chunk(world_size)[rank].to(self.ranks.device)
                        for name, tensor in tensors.items()
                    }
                ).cast(self.network.dtype)
                for tensors in saved["carry"]
            )


def compile_blocks(network: Reasoner, **options: Any) -> None:
    """Have every block of ``network`` compiled at its first call, with torch.compile's options.

    All visits of all blocks share a few graphs, so compiling takes as long for a loop of twenty
    updates as for one of two. The whole network in one graph would take minutes.
    """
    for stack in network.stacks.values():
        for block in stack:
            block.compile(**options)


def check_micro_batch(micro_batch_size: int | None, rank_batch_size: int) -> None:
    """Micro-batches must be equally large.

    Raises:
        ValueError: if they can't be.
    """
    if micro_batch_size is not None and rank_batch_size % micro_batch_size:
        raise ValueError(
            f"micro_batch_size={micro_batch_size} must divide the {rank_batch_size} rows of a "
            "rank's batch"
        )


def _join(parts: list[Tensor]) -> Tensor:
    """The parts in one tensor, without a copy where there is one."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
