"""Benchmarks; the last line of each is one JSON object.

hrm-deeploop bench train     training and evaluation speed as ratios within the run
hrm-deeploop bench data      training batches: examples per CPU second on one core
hrm-deeploop bench eval      the vote on 419,000 predictions, and halting=act against fixed
"""

import json
from collections.abc import Callable
from typing import Any

from scripts import cli
from scripts.benchmarks.data import bench_data
from scripts.benchmarks.evaluation import bench_evaluation
from scripts.benchmarks.training import bench_training

KEYS_OF = []

BENCHMARKS: dict[str, Callable[[], dict[str, Any]]] = {
    "train": bench_training,
    "data": bench_data,
    "eval": bench_evaluation,
}


def main(arguments: list[str]) -> dict[str, Any]:
    if len(arguments) != 1 or arguments[0] not in BENCHMARKS:
        given = " ".join(arguments) or "none"
        raise ValueError(f"expected one of {', '.join(BENCHMARKS)}, got {given}")
    result = BENCHMARKS[arguments[0]]()
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    cli.launch(main, "bench", __doc__, keys_of=KEYS_OF)
