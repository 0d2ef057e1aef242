"""scripts/alignment.py and scripts/sweep.py, as a user runs them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hrm_deeploop.metrics import read_metrics
from scripts.alignment import _row_names

ROOT = Path(__file__).parents[2]


def run(script, *overrides):
    command = [sys.executable, str(ROOT / "scripts" / f"{script}.py"), *overrides]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two smoke runs of different depth that measured alignment on the way."""
    found = []
    for depth in (2, 3):
        run_dir = tmp_path_factory.mktemp("runs") / f"L{depth}"
        result = run(
            *("train", "experiment=smoke", f"model.L_cycles={depth}", "alignment.every=10"),
            f"run_dir={run_dir}",
        )
        assert result.returncode == 0, result.stderr
        found.append(run_dir)
    return found


def test_training_logs_kappa_on_the_way(runs):
    for depth, run_dir in zip((2, 3), runs, strict=True):
        rows = [r for r in read_metrics(run_dir / "metrics.jsonl") if "alignment/kappa_L" in r]
        assert [row["step"] for row in rows] == [10, 20]
        for row in rows:
            assert 0 < row["alignment/kappa_L"] <= depth
            assert 0 < row["alignment/kappa_H"] <= 1 + 1e-6
            assert 0 < row["alignment/gradient_L"] <= 1 + 1e-6


def test_alignment_of_several_depths_gives_gamma_and_the_threshold(runs, tmp_path):
    out = tmp_path / "alignment.json"
    paths = f"run=[{','.join(map(str, runs))}]"
    result = run("alignment", paths, "batches=2", "rows=4", f"out={out}", "output=json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert json.loads(out.read_text()) == found
    assert [row["rounds_L"] for row in found["rows"]] == [2, 3]
    assert found["p_star"] == pytest.approx((1 + found["gamma"]) / 4)
    for row in found["rows"]:
        assert row["bound"]["total"] == pytest.approx(row["bound"]["H"] + row["bound"]["L"])
        assert row["kappa_L"] <= row["rounds_L"]
        assert set(row["sublayers"]["L"]) == {"0.attention", "0.mlp"}


def test_every_run_has_a_row_of_its_own():
    rows = [{"run": f"runs/{depth}/vanilla/seed0", "checkpoint": "step_1"} for depth in (2, 6)]
    assert _row_names(rows) == [f"{depth}/vanilla/seed0/step_1" for depth in (2, 6)]
    assert _row_names(rows[:1]) == ["vanilla/seed0/step_1"]
    twice = run("alignment", "run=[a,a]")
    assert "a is given twice" in twice.stderr.splitlines()[-1]


def test_alignment_of_every_checkpoint_is_a_line_each(runs):
    result = run("alignment", f"run={runs[0]}", "checkpoint=all", "batches=1", "rows=4")
    assert result.returncode == 0, result.stderr
    assert "step_00000010" in result.stdout
    assert "step_00000020" in result.stdout
    one = run("alignment", f"run={runs[0]}", "batches=1", "rows=4", "segment=3")
    assert "L 0.attention" in one.stdout
    refused = run("alignment", f"run={runs[0]}", "segment=4")
    assert refused.returncode == 2
    assert "segment=4: allowed are 1 to 3" in refused.stderr.splitlines()[-1]


def test_a_sweep_tells_what_share_trains_and_what_loss_it_has(tmp_path):
    options = ["experiment=smoke", "total_steps=4", "exponents=[0,0.5]", "depths=[1,2]"]
    options += ["seeds=[0,1]", "which=L", f"run_dir={tmp_path / 'sweep'}"]
    result = run("sweep", *options, "output=json")
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert [(row["depth"], row["p"]) for row in rows] == [(1, 0), (1, 0.5), (2, 0), (2, 0.5)]
    for row in rows:
        assert row["num_seeds"] == 2
        assert row["share_trained"] == row["status"].count("trained") / 2
        assert len(row["train_loss"]) == row["status"].count("trained")
    config = (tmp_path / "sweep" / "p0.5-depth2" / "seed1" / "config.yaml").read_text()
    assert "p_H: 0.5" in config
    assert "L_cycles: 2" in config
    assert (tmp_path / "sweep" / "sweep.png").is_file()
    again = run("sweep", *options, "output=json")
    assert json.loads(again.stdout)["rows"] == rows
    twice = run("sweep", "experiment=smoke", "depths=[2,2]")
    assert "depths=[2, 2]: 2 is given twice" in twice.stderr.splitlines()[-1]
    refused = run("sweep", "experiment=smoke", "which=X")
    assert "which=X: input should be 'both', 'H' or 'L'" in refused.stderr.splitlines()[-1]
