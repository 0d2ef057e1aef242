"""Two gloo ranks under torchrun train the same model as one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hrm_deeploop.checkpoint import load_weights

ROOT = Path(__file__).parents[2]


def train(run_dir, num_ranks):
    overrides = ["experiment=smoke", "dtype=float64", "total_steps=6", f"run_dir={run_dir}"]
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nproc-per-node", str(num_ranks), "--standalone"),
            str(ROOT / "scripts" / "train.py"),
            *overrides,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_two_ranks_train_the_one_process_weights(tmp_path):
    """In float64, because sign-like updates amplify rounding in float32."""
    for num_ranks in (1, 2):
        result = train(tmp_path / str(num_ranks), num_ranks)
        assert result.returncode == 0, result.stderr
    for stem in ("model", "ema", "puzzle_embedding"):
        one, two = (
            load_weights(tmp_path / str(n) / "checkpoints" / "step_00000006", stem) for n in (1, 2)
        )
        for name in one:
            torch.testing.assert_close(one[name], two[name], rtol=0, atol=1e-12)
