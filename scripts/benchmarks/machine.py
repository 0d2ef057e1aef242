"""The machine that a benchmark ran on, in words."""

import os
import platform
from pathlib import Path

import numpy as np
import torch


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
