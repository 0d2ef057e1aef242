"""Say what a run is before it is paid for: visits, gains, parameters, puzzles, steps.

python scripts/describe.py experiment=arc1 ranks=8
python scripts/describe.py experiment=arc1 scaling=deepnorm output=json
"""

from collections.abc import Iterator
from typing import Any

import torch

from arc_data.batches import BatchStream
from arc_data.windows import WindowedStream
from hrm_deeploop.config import HRMConfig
from hrm_deeploop.cost import count_flops, estimate_memory
from hrm_deeploop.device import choose_device, choose_dtype
from hrm_deeploop.model import Reasoner
from hrm_deeploop.runs.build import build_network
from hrm_deeploop.runs.config import RunConfig
from hrm_deeploop.runs.data import build_stream, load_data
from hrm_deeploop.scaling import stability_bound


def describe(config: RunConfig, num_ranks: int) -> dict[str, Any]:
    """The facts of a run; M counts visits of sublayers, N of blocks; memory is in bytes."""
    data = load_data(config)
    dtype = choose_dtype(config.dtype, choose_device(config.device))
    network = build_network(config, torch.device("meta"), dtype)
    visits, scaling, model = network.visits, network.scaling, config.model
    num_core = sum(parameter.numel() for parameter in network.parameters())
    num_table = len(data.puzzles) * model.puzzle_emb_ndim
    kappas = {
        "kappa_1": dict.fromkeys(visits.modules, 1.0),
        "kappa_R": {name: module.rounds for name, module in visits.modules.items()},
    }
    bounds = {name: stability_bound(scaling, visits, kappa) for name, kappa in kappas.items()}
    stream = build_stream(config, data)
    lengths = _lengths(config, stream)
    forward, train = (sum(flops) for flops in zip(*_flops(network, lengths), strict=True))
    rows = config.optim.global_batch_size // num_ranks
    memory = estimate_memory(
        network,
        num_puzzles=len(data.puzzles),
        rank_rows=rows,
        micro_rows=config.micro_batch_size or rows,
        averaged=config.optim.ema_rate is not None,
    )
    total_steps = config.num_steps(stream.examples_per_epoch)
    flops_per_step = round(train * config.optim.global_batch_size)
    return {
        "M_g": visits.M_g,
        "N_g": visits.N_g,
        "M_forward": visits.M_forward,
        "modules": list(visits.modules),
        **{f"R_g_{name}": module.rounds for name, module in visits.modules.items()},
        **{f"alpha_{name}": gains.alpha for name, gains in scaling.items()},
        **{f"beta_{name}": gains.beta for name, gains in scaling.items()},
        "bound": {name: {**terms, "total": sum(terms.values())} for name, terms in bounds.items()},
        "params": {
            "core": num_core,
            "puzzle_embedding": num_table,
            "total": num_core + num_table,
        },
        "seq_len": network.seq_len,
        "num_tasks": len(data.puzzles.tasks),
        "num_evaluated_tasks": len(data.collection.evaluated),
        "num_puzzles": len(data.puzzles),
        "examples_per_epoch": stream.examples_per_epoch,
        "tokens_per_example": sum(length * share for length, share in lengths.items()),
        "total_steps": total_steps,
        "flops": {
            "per_example_forward": round(forward),
            "per_example_train": round(train),
            "per_step": flops_per_step,
            "per_run": flops_per_step * total_steps,
        },
        "memory_per_rank": {
            "num_ranks": num_ranks,
            "dtype": str(network.dtype).removeprefix("torch."),
            **memory._asdict(),
            "total": memory.total,
        },
    }


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


def run_costs(config: RunConfig) -> dict[str, Any]:
    """Steps, examples drawn, FLOPs and core parameters of a whole run."""
    network = build_network(config, torch.device("meta"))
    stream = build_stream(config, load_data(config))
    steps = config.num_steps(stream.examples_per_epoch)
    train = sum(t for _, t in _flops(network, _lengths(config, stream)))
    examples = steps * config.optim.global_batch_size
    return {
        "steps": steps,
        "examples": examples,
        "flops": round(train * examples),
        "params": sum(parameter.numel() for parameter in network.parameters()),
    }


def format_description(config: RunConfig, facts: dict[str, Any]) -> str:
    """The facts as text."""
    params, bound = facts["params"], facts["bound"]
    lines = [
        f"data      {config.data.source}: {facts['num_tasks']:,} tasks, "
        f"{facts['num_evaluated_tasks']:,} of them evaluated; {facts['num_puzzles']:,} puzzles; "
        f"canvas {config.data.canvas}, {facts['seq_len']} tokens"
        + (f", windows of {facts['tokens_per_example']:.0f}" if config.window == "task" else ""),
        f"training  {facts['total_steps']:,} steps of {config.optim.global_batch_size} examples "
        f"({facts['examples_per_epoch']:,} in an epoch)",
        f"params    {params['core']:,} core + {params['puzzle_embedding']:,} puzzle embedding "
        f"= {params['total']:,}",
        f"cost      {facts['flops']['per_step']:.3g} FLOPs a step, "
        f"{facts['flops']['per_run']:.3g} a run (matrix products)",
        f"memory    {_gigabytes(facts['memory_per_rank'])}",
        f"model     {_model(config)}",
        f"visits    gradient={config.gradient}: M_g = {facts['M_g']}, N_g = {facts['N_g']}; "
        f"forward M = {facts['M_forward']}",
        f"scaling   {config.scaling.rule}, sized from "
        f"{'M_g' if config.scaling.resolve().count == 'gradient' else 'the forward count M'}",
        "",
        "module       R_g      alpha       beta  beta/alpha  eq. 20, kappa=1  kappa=R_g",
    ]
    for m in facts["modules"]:
        alpha, beta = facts[f"alpha_{m}"], facts[f"beta_{m}"]
        lines.append(
            f"{m:<9}{facts[f'R_g_{m}']:>7}{alpha:>11.6f}{beta:>11.6f}{beta / alpha:>12.6f}"
            f"{bound['kappa_1'][m]:>17.6f}{bound['kappa_R'][m]:>11.6f}"
        )
    lines.append(f"{'sum':<50}{bound['kappa_1']['total']:>17.6f}{bound['kappa_R']['total']:>11.6f}")
    return "\n".join(lines)


def _model(config: RunConfig) -> str:
    """The recurrence and its transitions."""
    model = config.model
    if isinstance(model, HRMConfig):
        shape = f"hrm: {model.H_cycles} cycles of {model.L_cycles} updates of L and one of H"
        return f"{shape}; transition {config.transition}, of H {config.transition_H}"
    around = f"prelude {model.prelude_layers}, coda {model.coda_layers}"
    shape = f"looped: {model.layers} blocks, {model.rounds} rounds, {around}"
    return f"{shape}; transition {config.transition}"


def _gigabytes(memory: dict[str, Any]) -> str:
    """The estimate by part, for the number of ranks that it was made for."""
    parts = ("weights_and_optimizer", "puzzle_embedding", "carry", "activations")
    listed = ", ".join(f"{name.replace('_', ' ')} {memory[name] / 1e9:.2f}" for name in parts)
    ranks = f"a rank of {memory['num_ranks']} in {memory['dtype']}"
    return f"{memory['total'] / 1e9:.2f} GB {ranks}: {listed}"
