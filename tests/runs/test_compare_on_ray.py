"""A comparison on a local Ray cluster: a worker is killed in the middle of a cell."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")
ROOT = Path(__file__).parents[2]


def wait_for(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.slow
def test_a_comparison_on_ray_survives_a_killed_worker_with_the_same_numbers(tmp_path):
    own = ["experiment=smoke", "total_steps=150", "checkpoint_every=10", "output=json"]
    script = str(ROOT / "scripts" / "compare.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    plain = subprocess.run(
        [sys.executable, script, *own, "workers=1", f"run_dir={tmp_path / 'plain'}"],
        **dict(capture_output=True, text=True, timeout=400, env=environment),
    )
    assert plain.returncode == 0, plain.stderr
    process = subprocess.Popen(
        [sys.executable, script, *own, "cluster=ray", f"run_dir={tmp_path / 'ray'}"],
        **dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True),
    )
    cell = tmp_path / "ray" / "vanilla" / "seed0"
    wait_for(lambda: any((cell / "checkpoints").glob("step_*[0-9]")), seconds=240)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_text()
            holds = str(cell) in " ".join(str(p.readlink()) for p in (entry / "fd").iterdir())
        except OSError:
            continue
        if "ray::" in command and holds:
            os.kill(int(entry.name), signal.SIGKILL)
            break
    output, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors
    found, expected = json.loads(output), json.loads(plain.stdout)
    for name, arm in expected["arms"].items():
        assert found["arms"][name]["ladder"] == arm["ladder"]
        assert found["arms"][name]["train_loss"] == arm["train_loss"]
