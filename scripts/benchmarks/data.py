"""Training batches: examples per CPU second on one core."""

import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from arc_data import sources
from arc_data.batches import BatchStream
from arc_data.config import DataConfig
from arc_data.leaks import find_leaks, training_set
from arc_data.puzzles import build_puzzles
from hrm_deeploop.runs.checking import validate
from hrm_deeploop.runs.compose import compose_config
from scripts.benchmarks.machine import describe_machine

CANVASES = (6, 15, 30)
BATCH_SIZE = 768
REPEATS, CPU_SECONDS_EACH = 5, 2.0
MEGABYTE = 1e6


def bench_data() -> dict[str, Any]:
    """Rates of ``BatchStream`` on the tasks of ARC-AGI-1 that fit each canvas, 1000 augmentations.

    Everything runs on one core: numpy's indexing has no threads. A rate is the median of several
    stretches of CPU time, so that other programs on the machine weigh little.
    """
    print(f"{describe_machine()}; one core is used")
    rates = {}
    for canvas in CANVASES:
        values = compose_config("data_command", ["data=arc1", f"data.canvas={canvas}"])
        config: DataConfig = validate(DataConfig, values["data"])
        collection = sources.load(config)
        start = time.process_time()
        puzzles = build_puzzles(collection.tasks, num_aug=config.num_aug, seed=config.seed)
        build_seconds = time.process_time() - start
        start = time.process_time()
        stream = BatchStream(
            puzzles,
            training=training_set(collection, find_leaks(collection), config.leaks),
            canvas=canvas,
            global_batch_size=BATCH_SIZE,
            seed=0,
        )
        stream_seconds = time.process_time() - start
        rates[str(canvas)] = round(_rate(stream.batch) * BATCH_SIZE)
        print(
            f"canvas {canvas:2}: {rates[str(canvas)]:>9,} examples/s; "
            f"{len(collection.tasks)} tasks, {len(puzzles):,} puzzles in {build_seconds:.2f} s "
            f"({len(puzzles.to_json()) / MEGABYTE:.1f} MB as JSON), "
            f"leak check and tables in {stream_seconds:.2f} s"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MEGABYTE
    print(f"peak memory of the process: {peak:.0f} MB")
    return {"examples_per_cpu_second": rates}


def _rate(draw: Callable[[int], object]) -> float:
    """Median calls per CPU second of ``draw(0), draw(1), ...``."""
    step, rates = 0, []
    for _ in range(REPEATS):
        start, calls = time.process_time(), 0
        while (spent := time.process_time() - start) < CPU_SECONDS_EACH:
            draw(step)
            step, calls = step + 1, calls + 1
        rates.append(calls / spent)
    return float(np.median(rates))
