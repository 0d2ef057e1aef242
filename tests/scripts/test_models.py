"""Every model and transition, trained and evaluated from the command line."""

import json

import pytest

from hrm_deeploop.runs.metrics import read_metrics
from hrm_deeploop.transitions import TRANSITIONS
from tests.commands import in_process as run


def test_a_looped_model_goes_through_training_evaluation_alignment_and_a_sweep(tmp_path):
    run_dir = tmp_path / "run"
    model = ["experiment=smoke", "model=looped", "model.prelude_layers=1", "transition=operloop"]
    trained = run("train", *model, f"run_dir={run_dir}", "stop_after=12")
    assert trained.returncode == 0, trained.stderr
    trained = run("train", *model, f"run_dir={run_dir}", "resume=auto", "alignment.every=10")
    assert trained.returncode == 0, trained.stderr
    for halting in ("fixed", "act"):
        result = run("evaluate", f"run={run_dir}", f"halting={halting}", "output=json")
        assert result.returncode == 0, result.stderr
        ladder = json.loads(result.stdout)["ladder"]
        assert set(ladder["all_tests"]) == {"1", "2", "4", "8", "16"}
    result = run("alignment", f"run={run_dir}", "batches=1", "rows=4", "output=json")
    assert result.returncode == 0, result.stderr
    (row,) = json.loads(result.stdout)["rows"]
    assert {name: module["rounds"] for name, module in row["modules"].items()} == {
        "prelude": 1,
        "loop": 3,
    }
    options = ["experiment=smoke", "model=looped", "total_steps=2", "exponents=[0.5]", "workers=1"]
    result = run("sweep", *options, "depths=[1,2]", f"run_dir={tmp_path / 'sweep'}")
    assert result.returncode == 0, result.stderr
    assert "rounds 2" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("window", ["full", "task"])
@pytest.mark.parametrize(
    ("model", "modules"), [("trm", {"L": 3}), ("urm", {"loop": 2})], ids=["trm", "urm"]
)
def test_trm_and_urm_go_where_hrm_goes(model, modules, window, tmp_path):
    """Training, exact resume, both ways of evaluation, other puzzle ids, alignment, a sweep."""
    own = ["experiment=smoke", f"model={model}", "model.L_cycles=2", "model.H_cycles=2"]
    own += [f"window={window}", "total_steps=8", "checkpoint_every=4", "log_every=1"]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert run("train", *own, f"run_dir={whole}").returncode == 0
    assert run("train", *own, f"run_dir={resumed}", "stop_after=4").returncode == 0
    assert run("train", *own, f"run_dir={resumed}", "resume=auto").returncode == 0
    digests = [
        json.loads((place / "checkpoints" / "step_00000008" / "digests.json").read_text())["files"]
        for place in (whole, resumed)
    ]
    assert digests[0]["ema.safetensors"] == digests[1]["ema.safetensors"]
    assert digests[0]["model.safetensors"] == digests[1]["model.safetensors"]
    for choice in ("halting=act", "segments=[1,2]", "puzzle_ids=shuffled"):
        result = run("evaluate", f"run={whole}", choice)
        assert result.returncode == 0, result.stderr
    result = run("alignment", f"run={whole}", "batches=1", "rows=4", "output=json")
    assert result.returncode == 0, result.stderr
    (row,) = json.loads(result.stdout)["rows"]
    assert {name: module["rounds"] for name, module in row["modules"].items()} == modules
    options = [*own[:2], "total_steps=2", "exponents=[0.5]", "workers=1", "depths=[1,2]"]
    result = run("sweep", *options, f"run_dir={tmp_path / 'sweep'}")
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_the_short_convolution_is_an_option_of_hrm(tmp_path):
    own = ["experiment=smoke", "model.mlp=conv_swiglu"]
    result = run("train", *own, f"run_dir={tmp_path / 'run'}")
    assert result.returncode == 0, result.stderr
    losses = [row["train/lm_loss"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert losses[-1] < losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["hrm_tiny", "looped"])
@pytest.mark.parametrize("transition", list(TRANSITIONS))
def test_every_transition_trains_by_one_override(tmp_path, model, transition):
    options = ["experiment=smoke", f"model={model}", f"transition={transition}"]
    result = run("train", *options, f"run_dir={tmp_path / 'run'}")
    assert result.returncode == 0, result.stderr
    losses = [row["train/lm_loss"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert losses[-1] < losses[0]
