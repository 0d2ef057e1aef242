"""Training and evaluation speed, as ratios within one run.

Every shape runs in a process of its own, whose peak memory is the shape's. Variants take turns, so
that the machine's moods hit all of them. A share is of the rate that a large matrix product reaches
in the same process.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from arc_data.canvas import VOCAB_SIZE
from arc_data.windows import WindowedStream
from hrm_deeploop.cost import count_flops, saved_bytes
from hrm_deeploop.device import Ranks, choose_device
from hrm_deeploop.halting import Batch
from hrm_deeploop.puzzle_embedding import PuzzleEmbedding
from hrm_deeploop.runs.build import build_network, to_batch
from hrm_deeploop.runs.config import RunConfig
from hrm_deeploop.runs.data import build_stream, load_data
from hrm_deeploop.trainer import Trainer
from scripts.benchmarks.evaluation import bench_windowed_evaluation
from scripts.benchmarks.machine import describe_machine, run_config, time_in_turn

SHAPES = {
    "mini": ["experiment=mini", "optim.global_batch_size=64"],
    "small": ["experiment=mini", "optim.global_batch_size=64", "data.canvas=10"],
    "full": ["experiment=arc1", "optim.global_batch_size=4", "optim.ema_rate=null"],
}
SECONDS_PER_VARIANT = {"mini": 3.0, "small": 4.0, "full": 14.0}
LAST_UPDATE, LAST_CYCLE = ["gradient=last_update"], ["gradient=last_cycle"]
BOOTSTRAP, HALT_ONLY = ["model.q_target=bootstrap"], ["model.q_target=halt_only"]
VARIANTS = {  # hrm is HRM's way: bootstrap target, last_update, the whole canvas
    "hrm": [*LAST_UPDATE, *BOOTSTRAP],
    "last_update": [*LAST_UPDATE, *HALT_ONLY],
    "last_cycle bootstrap": [*LAST_CYCLE, *BOOTSTRAP],
    "last_cycle": [*LAST_CYCLE, *HALT_ONLY],
    "last_cycle compiled": [*LAST_CYCLE, *HALT_ONLY, "compile=true"],
}
MIX = ["experiment=arc1", "data.num_aug=8", "optim.ema_rate=null"]
MIX_ROWS = {"hrm": 8, "windows": 24}
NUM_PUZZLES = 1000


def bench_training() -> dict[str, Any]:
    """All parts; the last line of each part's process is its JSON object."""
    print(describe_machine(), flush=True)
    found = {name: _in_process(name) for name in (*SHAPES, "windows", "growth", "evaluation")}
    return {
        "halt_only_over_bootstrap": found["full"]["halt_only_over_bootstrap"],
        "windows_over_hrm": found["windows"]["windows_over_hrm"],
        "evaluation_over_fixed": found["evaluation"]["over"],
        "evaluation": found["evaluation"],
        "matrix_share": {name: found[name]["matrix_share"] for name in SHAPES},
        "compiled_over_eager": {name: found[name]["compiled_over_eager"] for name in SHAPES},
        "examples_per_second": {name: found[name]["examples_per_second"] for name in SHAPES},
        "peak_mb": {name: found[name]["peak_mb"] for name in SHAPES},
        "growth": found["growth"],
    }


def _in_process(part: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "scripts.benchmarks.training", part]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            print(last, end="", flush=True)
            last = line
    if process.returncode:
        raise ValueError(f"the part {part} of the benchmark failed with {process.returncode}")
    return json.loads(last)


class _Case(NamedTuple):
    """A trainer and the batches that it is timed on."""

    config: RunConfig
    trainer: Trainer
    batches: Callable[[int], tuple[Batch, ...]]
    flops_per_step: float

    def step(self) -> None:
        self.trainer.train_step(self.batches(self.trainer.step))


def _random_case(overrides: Sequence[str]) -> _Case:
    """Random tokens: a dense step takes as long whatever they are."""
    config = run_config(overrides)
    device = choose_device(config.device)
    generator = torch.Generator().manual_seed(0)
    rows, seq_len = config.optim.global_batch_size, config.data.canvas**2

    def draw(high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=generator)

    batch = Batch(
        inputs=draw(VOCAB_SIZE, rows, seq_len),
        labels=draw(VOCAB_SIZE, rows, seq_len),
        puzzle_ids=draw(NUM_PUZZLES, rows),
    ).to(device)
    trainer = _trainer(config, NUM_PUZZLES, device)
    flops = count_flops(trainer.network, seq_len=seq_len)
    return _Case(config, trainer, lambda _: (batch,), rows * flops.train)


def _trainer(config: RunConfig, num_puzzles: int, device: torch.device) -> Trainer:
    return Trainer(
        build_network(config, device),
        PuzzleEmbedding(num_puzzles, config.model.puzzle_emb_ndim).to(device),
        config.optim,
        total_steps=10**6,
        seed=0,
        ranks=Ranks(device=device),
        compile_network=config.compile,
    )


def _matrix_product(dtype: torch.dtype, side: int = 2048) -> tuple[Callable[[], Tensor], float]:
    """A large product and its FLOPs."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, side, side, generator=generator).to(dtype)
    return lambda: a @ b, 2.0 * side**3


def bench_shape(name: str) -> dict[str, Any]:
    """Train steps of every variant: rates, shares, and where the time goes."""
    cases = {
        variant: _random_case([*SHAPES[name], *overrides])
        for variant, overrides in VARIANTS.items()
    }
    product, product_flops = _matrix_product(cases["last_cycle"].trainer.network.dtype)
    actions = {variant: case.step for variant, case in cases.items()}
    taken = time_in_turn({**actions, "matrix": product}, SECONDS_PER_VARIANT[name])
    median = {variant: float(np.median(times)) for variant, times in taken.items()}
    matrix_rate = product_flops / median["matrix"]
    rates, shares = {}, {}
    print(f"{name}: {' '.join(SHAPES[name])}; matrix product {matrix_rate / 1e9:.0f} GFLOP/s")
    for variant, case in cases.items():
        rows = case.config.optim.global_batch_size
        rate = case.flops_per_step / median[variant]
        rates[variant], shares[variant] = rows / median[variant], rate / matrix_rate
        print(
            f"  {variant:21} {rates[variant]:8.2f} examples/s  {rate / 1e9:5.0f} GFLOP/s  "
            f"{shares[variant]:4.0%} of the matrix rate"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(f"  peak memory of the process, all variants: {peak:.0f} MB")
    _print_parts(cases["last_cycle"])
    return {
        "examples_per_second": {variant: round(rate, 2) for variant, rate in rates.items()},
        "halt_only_over_bootstrap": {
            "last_update": round(median["hrm"] / median["last_update"], 2),
            "last_cycle": round(median["last_cycle bootstrap"] / median["last_cycle"], 2),
        },
        "matrix_share": round(max(shares["last_cycle"], shares["last_cycle compiled"]), 2),
        "compiled_over_eager": round(median["last_cycle"] / median["last_cycle compiled"], 2),
        "peak_mb": round(peak),
    }


def _print_parts(case: _Case) -> None:
    """Where one eager step spends its time, by kind of operation."""
    kinds = {
        "linear maps": ("mm", "addmm", "linear"),
        "attention": ("bmm", "baddbmm", "_softmax", "_scaled_dot", "div"),
        "optimiser": ("_fused_", "atan2", "lerp", "sqrt", "_foreach"),
    }
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        case.step()
    spent: dict[str, float] = {}
    for event in profiler.key_averages():
        operation = event.key.removeprefix("aten::")
        kind = next(
            (kind for kind, starts in kinds.items() if operation.startswith(starts)),
            "norms, gates, rotary, copies",
        )
        spent[kind] = spent.get(kind, 0.0) + event.self_cpu_time_total
    total = sum(spent.values())
    parts = sorted(spent.items(), key=lambda entry: -entry[1])
    print("  eager step: " + ", ".join(f"{kind} {part / total:.0%}" for kind, part in parts))


def bench_windows() -> dict[str, Any]:
    """ARC-AGI-1's own mix of sizes at full size: windows against HRM's way on the whole canvas."""
    hrm = _random_case([*MIX, *VARIANTS["hrm"], f"optim.global_batch_size={MIX_ROWS['hrm']}"])
    config = run_config([*MIX, "window=task", f"optim.global_batch_size={MIX_ROWS['windows']}"])
    device = choose_device(config.device)
    data = load_data(config)
    stream = build_stream(config, data)
    assert isinstance(stream, WindowedStream)
    trainer = _trainer(config, len(data.puzzles), device)

    def batches(step: int) -> tuple[Batch, ...]:
        return tuple(to_batch(part, device) for part in stream.batches(step))

    windows = _Case(config, trainer, batches, 0.0)
    taken = time_in_turn({"hrm": hrm.step, "windows": windows.step}, 25.0)
    rates = {name: MIX_ROWS[name] / float(np.median(times)) for name, times in taken.items()}
    print(
        f"windows: {stream.buckets.mean_length:.0f} tokens an example in lengths "
        f"{stream.buckets.lengths}, {rates['windows']:.2f} examples/s; hrm {rates['hrm']:.2f}"
    )
    return {"windows_over_hrm": round(rates["windows"] / rates["hrm"], 2)}


def bench_growth() -> dict[str, Any]:
    """Step time over C and C_L, memory over C, and a step with a table of a million rows."""
    small = SHAPES["mini"]
    cycles = (1, 2, 4, 8)
    cases = {
        f"{key}={n}": _random_case([*small, f"model.{key}={n}"])
        for key in ("H_cycles", "L_cycles")
        for n in cycles
    }
    config = run_config(small)
    device = choose_device(config.device)
    for rows in (10**3, 10**6):
        case = _random_case(small)
        trainer = _trainer(config, rows, device)
        cases[f"table={rows}"] = case._replace(trainer=trainer)
    taken = time_in_turn({name: case.step for name, case in cases.items()}, 2.0)
    median = {name: float(np.median(times)) for name, times in taken.items()}
    meta = torch.device("meta")
    memory = {
        n: saved_bytes(build_network(run_config([*small, f"model.H_cycles={n}"]), meta), 64)
        for n in cycles
    }
    for key in ("H_cycles", "L_cycles"):
        times = {n: round(1e3 * median[f"{key}={n}"], 1) for n in cycles}
        print(f"growth: ms a step by {key}: {times}")
    megabytes = {n: kept // 10**6 for n, kept in memory.items()}
    print(f"growth: MB kept for the backward by H_cycles: {megabytes}")
    table = median["table=1000000"] / median["table=1000"]
    print(f"growth: a step with a table of 1,000,000 rows takes {table:.2f} times one of 1,000")
    return {
        "ms_by_H_cycles": [round(1e3 * median[f"H_cycles={n}"], 1) for n in cycles],
        "ms_by_L_cycles": [round(1e3 * median[f"L_cycles={n}"], 1) for n in cycles],
        "saved_bytes_8_over_1_cycles": round(memory[8] / memory[1], 3),
        "table_1e6_over_1e3": round(table, 2),
    }


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    **{name: (lambda name=name: bench_shape(name)) for name in SHAPES},
    "windows": bench_windows,
    "growth": bench_growth,
    "evaluation": bench_windowed_evaluation,
}

if __name__ == "__main__":
    print(json.dumps(PARTS[sys.argv[1]]()))
