"""What benchmarks share: the machine in words, and calls timed in turn."""

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from hrm_deeploop.runs.checking import validate
from hrm_deeploop.runs.compose import compose_config
from hrm_deeploop.runs.config import RunConfig
from scripts import cli


def describe_machine() -> str:
    """Processor, cores and the versions that decide speed."""
    return (
        f"{_processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}, numpy {np.__version__}"
    )


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def time_in_turn(
    actions: Mapping[str, Callable[[], object]], seconds: float
) -> dict[str, list[float]]:
    """Seconds of every call; each action is called for about ``seconds`` in all, in turns."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():
        action()  # compiles, allocates
    while any(sum(times) < seconds for times in taken.values()):
        for name, action in actions.items():
            if sum(taken[name]) < seconds:
                start = time.perf_counter()
                action()
                taken[name].append(time.perf_counter() - start)
    return taken


def run_config(overrides: Sequence[str]) -> RunConfig:
    """The configuration that a training command with these overrides has."""
    values = compose_config("train", list(overrides))
    cli.take_output(values)
    return validate(RunConfig, values)
