"""Training with deep supervision; knows tokens and puzzle ids, nothing of ARC.

Each step draws a global batch, fills the halted slots with it, runs one segment, and updates the
network (Adam) and the puzzle rows that occurred (SignSGD). What a step does is a function of the
weights, the carry and (seed, step), so a resumed run needs no random state.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from hrm_deeploop.config import OptimConfig
from hrm_deeploop.device import Ranks, data_parallel
from hrm_deeploop.halting import (
    Batch,
    Carry,
    continue_target,
    decide_halt,
    empty_carry,
    min_segments,
    refill,
)
from hrm_deeploop.losses import correctness, segment_loss
from hrm_deeploop.metrics import MetricsLog
from hrm_deeploop.model import HRM
from hrm_deeploop.optim import average_weights, build_optimizer, build_scheduler
from hrm_deeploop.puzzle_embedding import PuzzleEmbedding
from hrm_deeploop.recurrence import LatentState

EXPLORATION_STREAM = 1  # keeps these draws apart from the batches' at one seed

# What a step adds up over the rows of all ranks, in this order.
SUMS = (
    "finished",  # rows that halted; the next four count these alone
    "segments",
    "token_accuracy",
    "exact_accuracy",
    "q_halt_accuracy",
    "lm_loss",  # over every row of the batch
    "q_halt_loss",
    "q_continue_loss",
)
NUM_FINISHED_SUMS = 5


class Trainer:
    """One network in training, with its puzzle table, optimisers and halting carry.

    Args:
        network: on ``ranks.device``; so is ``puzzle_embedding``.
        config: optimisers and schedule.
        total_steps: length of the learning-rate schedule.
        seed: of the halting exploration.
        ranks: this process among those that share the global batch.

    Raises:
        ValueError: if the global batch can't be split evenly over the ranks.
    """

    def __init__(
        self,
        network: HRM,
        puzzle_embedding: PuzzleEmbedding,
        config: OptimConfig,
        *,
        total_steps: int,
        seed: int,
        ranks: Ranks,
    ) -> None:
        if config.global_batch_size % ranks.world_size:
            raise ValueError(
                f"global_batch_size={config.global_batch_size} must be a multiple of the "
                f"{ranks.world_size} ranks"
            )
        self.network = network
        self.puzzle_embedding = puzzle_embedding
        self.config = config
        self.total_steps = total_steps
        self.seed = seed
        self.ranks = ranks
        self.step = 0
        self.num_finished = 0
        self.carry: Carry | None = None
        self.optimizer = build_optimizer(network.parameters(), config)
        self.scheduler = build_scheduler(self.optimizer, total_steps=total_steps, config=config)
        self.averaged = average_weights(network, config.ema_rate) if config.ema_rate else None
        self._forward = data_parallel(network, ranks)

    def train_step(self, fresh: Batch) -> Tensor:
        """One segment and one update; ``fresh`` is this rank's slice of the step's global batch.

        Returns:
            ``SUMS`` over this rank's rows, shape (8,), on the device.
        """
        network, model = self.network, self.network.config
        initial = network.initial_state(len(fresh.inputs))
        carry = self.carry or empty_carry(fresh, initial)
        carry = refill(carry, fresh, initial)
        batch = carry.batch

        puzzle_vectors = self.puzzle_embedding.lookup(batch.puzzle_ids)
        out = self._forward(carry.state, batch.inputs, puzzle_vectors)
        state: LatentState = out.state.detach()
        steps = carry.steps + 1

        target = None
        if model.q_target == "bootstrap":
            with torch.no_grad():
                ahead = network(state, batch.inputs, puzzle_vectors)
            is_last = steps >= model.halt_max_steps
            target = continue_target(ahead.q_halt, ahead.q_continue, is_last)
        right = correctness(out.logits, batch.labels)
        loss = segment_loss(
            out.logits, batch.labels, right.exact, out.q_halt, out.q_continue, target
        )
        # Losses are sums over rows; DDP averages gradients over ranks.
        scale = self.ranks.world_size / self.config.global_batch_size
        (scale * loss.total).backward()
        self._update(batch.puzzle_ids, puzzle_vectors.grad)

        with torch.no_grad():
            halted = decide_halt(
                out.q_halt,
                out.q_continue,
                steps,
                self._min_segments(),
                max_steps=model.halt_max_steps,
            )
            self.carry = Carry(state=state, steps=steps, halted=halted, batch=batch)
            per_row = (
                torch.ones_like(steps),
                steps,
                right.token_accuracy,
                right.exact,
                (out.q_halt > 0) == right.exact,
            )
            of_finished = [torch.where(halted, value, 0).sum() for value in per_row]
            return torch.stack([value.detach().float() for value in (*of_finished, *loss)])

    def _update(self, puzzle_ids: Tensor, puzzle_grad: Tensor | None) -> None:
        lr_ratio = float(self.scheduler.get_last_lr()[0]) / self.config.lr
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        if puzzle_grad is not None:
            self.puzzle_embedding.sign_sgd_step(
                self.ranks.gather_rows(puzzle_ids),
                self.ranks.gather_rows(puzzle_grad),
                lr=self.config.puzzle_emb_lr * lr_ratio,
                weight_decay=self.config.puzzle_emb_weight_decay,
            )
        if self.averaged is not None:
            self.averaged.update_parameters(self.network)
        self.step += 1

    def _min_segments(self) -> Tensor:
        """This rank's slice of the exploration draws of the step."""
        num_rows = self.config.global_batch_size
        drawn = min_segments(
            num_rows,
            max_steps=self.network.config.halt_max_steps,
            exploration_prob=self.network.config.halt_exploration_prob,
            rng=np.random.default_rng((self.seed, EXPLORATION_STREAM, self.step)),
        )
        return drawn.chunk(self.ranks.world_size)[self.ranks.rank].to(self.ranks.device)

    def modules(self) -> dict[str, nn.Module]:
        """What a checkpoint keeps of the model, by file name."""
        averaged = {} if self.averaged is None else {"ema": self.averaged.module}
        return {"model": self.network, "puzzle_embedding": self.puzzle_embedding, **averaged}

    def training_state(self) -> dict[str, Any]:
        """What a resumed run needs beside the weights; every rank must call it, all get the same.

        The carry is that of the whole global batch, so that any number of ranks can go on.
        """
        carry = None
        if self.carry is not None:
            state, steps, halted, batch = self.carry
            tensors = {"steps": steps, "halted": halted, **state._asdict(), **batch._asdict()}
            carry = {name: self.ranks.gather_rows(tensor) for name, tensor in tensors.items()}
        return {
            "step": self.step,
            "num_finished": self.num_finished,
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "num_averaged": 0 if self.averaged is None else int(self.averaged.n_averaged),
            "carry": carry,
        }

    def load_training_state(self, saved: dict[str, Any]) -> None:
        """Go on from ``training_state()``; the caller has loaded the weights of the same step."""
        self.step = saved["step"]
        self.num_finished = saved["num_finished"]
        self.optimizer.load_state_dict(saved["optimizer"])
        self.scheduler.load_state_dict(saved["scheduler"])
        if self.averaged is not None:
            self.averaged.n_averaged.fill_(saved["num_averaged"])
        if saved["carry"] is not None:
            mine = {
                name: tensor.chunk(self.ranks.world_size)[self.ranks.rank].to(self.ranks.device)
                for name, tensor in saved["carry"].items()
            }
            self.carry = Carry(
                state=LatentState(**{name: mine[name] for name in LatentState._fields}),
                steps=mine["steps"],
                halted=mine["halted"],
                batch=Batch(**{name: mine[name] for name in Batch._fields}),
            )


def fit(
    trainer: Trainer,
    draw: Callable[[int], Batch],
    log: MetricsLog | None,
    *,
    until: int,
    log_every: int,
    checkpoint_every: int | None,
    save: Callable[[], None],
    title: str,
) -> None:
    """Train until step ``until``, logging, showing progress and saving on the way and at the end.

    Args:
        draw: this rank's batch of a step, on its device.
        log: of the main rank; None on the others.
        save: writes a checkpoint; called on every rank.
        title: what the progress bar calls the run.
    """
    ranks = trainer.ranks
    window, window_steps, started = torch.zeros(len(SUMS), device=ranks.device), 0, time.monotonic()
    with tqdm(
        total=until,
        initial=trainer.step,
        desc=title,
        unit="step",
        dynamic_ncols=True,
        mininterval=0.5,
        disable=not ranks.is_main,
    ) as bar:
        while trainer.step < until:
            window += trainer.train_step(draw(trainer.step))
            window_steps += 1
            bar.update()
            if trainer.step % log_every == 0 or trainer.step == until:
                row = _summarize(trainer, ranks.sum(window), window_steps)
                row["seconds"] = round(time.monotonic() - started, 3)
                if log is not None:
                    log.write(row)
                bar.set_postfix(_shown(row), refresh=False)
                window, window_steps = torch.zeros_like(window), 0
            at_interval = checkpoint_every is not None and trainer.step % checkpoint_every == 0
            if at_interval or trainer.step == until:
                save()


def _summarize(trainer: Trainer, sums: Tensor, num_steps: int) -> dict[str, Any]:
    """One line of metrics.jsonl from the sums of the last ``num_steps`` steps."""
    values = dict(zip(SUMS, sums.tolist(), strict=True))
    finished = int(values["finished"])
    trainer.num_finished += finished
    num_rows = trainer.config.global_batch_size * num_steps
    row: dict[str, Any] = {
        "step": trainer.step,
        "train/examples_drawn": trainer.step * trainer.config.global_batch_size,
        "train/examples_finished": trainer.num_finished,
        "train/lr": trainer.scheduler.get_last_lr()[0],
    }
    for name in SUMS[NUM_FINISHED_SUMS:]:
        row[f"train/{name}"] = values[name] / num_rows
    for name in SUMS[1:NUM_FINISHED_SUMS]:
        if finished:
            row[f"train/{name}"] = values[name] / finished
    return row


def _shown(row: dict[str, Any]) -> dict[str, str]:
    shown = {"loss": f"{row['train/lm_loss']:.3f}"}
    if "train/exact_accuracy" in row:
        shown["exact"] = f"{row['train/exact_accuracy']:.1%}"
        shown["segments"] = f"{row['train/segments']:.1f}"
    return shown
