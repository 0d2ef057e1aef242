"""What a run is before it is paid for: visits, gains, parameters, puzzles, steps, costs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from arc_data.batches import BatchStream
from arc_data.windows import WindowedStream
from hrm_deeploop.cost import RankMemory, count_flops, estimate_memory
from hrm_deeploop.device import choose_device, choose_dtype
from hrm_deeploop.model import Reasoner
from hrm_deeploop.runs.build import build_network
from hrm_deeploop.runs.config import RunConfig
from hrm_deeploop.runs.data import build_stream, load_data
from hrm_deeploop.scaling import LayerGains, VisitCounts, stability_bound
from hrm_deeploop.trainer import check_micro_batch


class RunCosts(NamedTuple):
    """What a whole run takes."""

    steps: int
    examples: int  # drawn
    flops: int  # of matrix products
    params: int  # of the network; the puzzle table is not in it


@dataclass(frozen=True, kw_only=True)
class Description:
    """The facts of a run; M counts visits of sublayers, N of blocks; memory is in bytes."""

    config: RunConfig
    visits: VisitCounts
    gains: dict[str, LayerGains]  # by module
    bound_1: dict[str, float]  # terms of eq. 20 by module, if visits are unrelated
    bound_R: dict[str, float]  # the same if all visits push the same way
    num_core: int  # parameters of the network
    num_table: int  # of the puzzle table
    seq_len: int  # canvas positions
    num_tasks: int
    num_evaluated_tasks: int
    num_puzzles: int
    examples_per_epoch: int
    tokens_per_example: float
    total_steps: int
    flops_forward: int  # of an example
    flops_train: int
    num_ranks: int
    dtype: str
    memory: RankMemory

    @property
    def flops_per_step(self) -> int:
        return self.flops_train * self.config.optim.global_batch_size

    def to_json(self) -> dict[str, Any]:
        """Return what ``output=json`` prints; gains that differ between layers are lists."""
        visits = self.visits

        def each(module: str, name: str) -> float | list[float]:
            values = [getattr(gains, name) for gains in self.gains[module]]
            return values[0] if len(set(values)) == 1 else values

        return {
            "M_g": visits.M_g,
            "N_g": visits.N_g,
            "M_forward": visits.M_forward,
            "modules": list(visits.modules),
            **{f"R_g_{name}": module.rounds for name, module in visits.modules.items()},
            **{f"{n}_{m}": each(m, n) for n in ("alpha", "beta") for m in visits.modules},
            "bound": {
                name: {**terms, "total": sum(terms.values())}
                for name, terms in (("kappa_1", self.bound_1), ("kappa_R", self.bound_R))
            },
            "params": {
                "core": self.num_core,
                "puzzle_embedding": self.num_table,
                "total": self.num_core + self.num_table,
            },
            "seq_len": self.seq_len,
            "num_tasks": self.num_tasks,
            "num_evaluated_tasks": self.num_evaluated_tasks,
            "num_puzzles": self.num_puzzles,
            "examples_per_epoch": self.examples_per_epoch,
            "tokens_per_example": self.tokens_per_example,
            "total_steps": self.total_steps,
            "flops": {
                "per_example_forward": self.flops_forward,
                "per_example_train": self.flops_train,
                "per_step": self.flops_per_step,
                "per_run": self.flops_per_step * self.total_steps,
            },
            "memory_per_rank": {
                "num_ranks": self.num_ranks,
                "dtype": self.dtype,
                **self.memory._asdict(),
                "total": self.memory.total,
            },
        }

    def __str__(self) -> str:
        config, visits = self.config, self.visits
        total = self.num_core + self.num_table
        transitions = "".join(f"; {key} {t}" for key, t in config.transitions.items())
        options = "".join(f", {key} {value}" for key, value in config.scaling.options.items())
        lines = [
            f"data      {config.data.source}: {self.num_tasks:,} tasks, "
            f"{self.num_evaluated_tasks:,} of them evaluated; {self.num_puzzles:,} puzzles; "
            f"canvas {config.data.canvas}, {self.seq_len} tokens"
            + (f", windows of {self.tokens_per_example:.0f}" if config.window == "task" else ""),
            f"training  {self.total_steps:,} steps of {config.optim.global_batch_size} examples "
            f"({self.examples_per_epoch:,} in an epoch)",
            f"params    {self.num_core:,} core + {self.num_table:,} puzzle embedding = {total:,}",
            f"cost      {self.flops_per_step:.3g} FLOPs a step, "
            f"{self.flops_per_step * self.total_steps:.3g} a run (matrix products)",
            f"memory    {self._memory()}",
            f"model     {config.kind.describe(config.model)}{transitions}",
            f"visits    gradient={config.gradient}: M_g = {visits.M_g}, N_g = {visits.N_g}; "
            f"forward M = {visits.M_forward}",
            f"scaling   {config.scaling.rule}{options}",
            "",
            "module       R_g      alpha       beta  beta/alpha  eq. 20, kappa=1  kappa=R_g",
        ]
        for module, counted in visits.modules.items():
            # A line a module, or one a layer where its layers differ.
            layers = self.gains[module] if len(set(self.gains[module])) > 1 else [None]
            for number, own in enumerate(layers):
                alpha, beta = self.gains[module][0] if own is None else own
                name = module if own is None else f"{module} {number}"
                lines.append(
                    f"{name:<9}{counted.rounds:>7}{alpha:>11.6f}{beta:>11.6f}"
                    f"{beta / alpha:>12.6f}" + (self._terms(module) if number == 0 else "")
                )
        ends = (sum(self.bound_1.values()), sum(self.bound_R.values()))
        return "\n".join([*lines, f"{'sum':<50}{ends[0]:>17.6f}{ends[1]:>11.6f}"])

    def _terms(self, module: str) -> str:
        return f"{self.bound_1[module]:>17.6f}{self.bound_R[module]:>11.6f}"

    def _memory(self) -> str:
        """Write the estimate by part, for the number of ranks that it was made for."""
        parts = self.memory._asdict().items()
        listed = ", ".join(f"{name.replace('_', ' ')} {size / 1e9:.2f}" for name, size in parts)
        ranks = f"a rank of {self.num_ranks} in {self.dtype}"
        return f"{self.memory.total / 1e9:.2f} GB {ranks}: {listed}"


def describe(config: RunConfig, num_ranks: int = 1) -> Description:
    """Describe a run that so many ranks would share.

    Raises:
        ValueError: if they can't share the batch evenly.
    """
    batch_size = config.optim.global_batch_size
    if type(num_ranks) is not int or num_ranks < 1 or batch_size % num_ranks:
        raise ValueError(
            f"ranks={num_ranks}: allowed are divisors of optim.global_batch_size={batch_size}"
        )
    rows = batch_size // num_ranks
    check_micro_batch(config.micro_batch_size, rows)
    data = load_data(config)
    dtype = choose_dtype(config.dtype, choose_device(config.device))
    network = build_network(config, torch.device("meta"), dtype)
    visits, gains = network.visits, network.scaling
    rounds = {name: module.rounds for name, module in visits.modules.items()}
    stream = build_stream(config, data)
    lengths = _lengths(config, stream)
    forward, train = (sum(flops) for flops in zip(*_flops(network, lengths), strict=True))
    return Description(
        config=config,
        visits=visits,
        gains=gains,
        bound_1=stability_bound(gains, visits, dict.fromkeys(visits.modules, 1.0)),
        bound_R=stability_bound(gains, visits, rounds),
        num_core=sum(parameter.numel() for parameter in network.parameters()),
        num_table=len(data.puzzles) * config.model.puzzle_emb_ndim,
        seq_len=network.seq_len,
        num_tasks=len(data.puzzles.tasks),
        num_evaluated_tasks=len(data.collection.evaluated),
        num_puzzles=len(data.puzzles),
        examples_per_epoch=stream.examples_per_epoch,
        tokens_per_example=sum(length * share for length, share in lengths.items()),
        total_steps=config.num_steps(stream.examples_per_epoch),
        flops_forward=round(forward),
        flops_train=round(train),
        num_ranks=num_ranks,
        dtype=str(network.dtype).removeprefix("torch."),
        memory=estimate_memory(
            network,
            num_puzzles=len(data.puzzles),
            rank_rows=rows,
            micro_rows=config.micro_batch_size or rows,
            averaged=config.optim.ema_rate is not None,
        ),
    )


def _lengths(config: RunConfig, stream: BatchStream | WindowedStream) -> dict[int, float]:
    """Tokens of a sequence, and the share of the examples that have as many."""
    if not isinstance(stream, WindowedStream):
        return {config.data.canvas**2: 1.0}
    buckets, batch_size = stream.buckets, config.optim.global_batch_size
    return {n: k / batch_size for n, k in zip(buckets.lengths, buckets.slots, strict=True)}


def _flops(network: Reasoner, lengths: dict[int, float]) -> Iterator[tuple[float, float]]:
    """Forward and training FLOPs of an example, a part for every length."""
    for length, share in lengths.items():
        flops = count_flops(network, seq_len=length)
        yield share * flops.forward, share * flops.train


def run_costs(config: RunConfig) -> RunCosts:
    """Count what a whole run takes."""
    network = build_network(config, torch.device("meta"))
    stream = build_stream(config, load_data(config))
    steps = config.num_steps(stream.examples_per_epoch)
    train = sum(t for _, t in _flops(network, _lengths(config, stream)))
    examples = steps * config.optim.global_batch_size
    return RunCosts(
        steps=steps,
        examples=examples,
        flops=round(train * examples),
        params=sum(parameter.numel() for parameter in network.parameters()),
    )
