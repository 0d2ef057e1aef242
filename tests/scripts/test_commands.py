"""The commands, as a user runs them, on the smoke experiment."""

import json
import sys

import pytest
import torch

from hrm_deeploop.runs.checkpoint import load_weights
from hrm_deeploop.runs.metrics import read_metrics
from scripts import cli
from tests.commands import in_a_process
from tests.commands import in_process as run


def weights(run_dir, step, stem="ema"):
    return load_weights(run_dir / "checkpoints" / f"step_{step:08d}", stem)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished smoke run and what its command printed."""
    run_dir = tmp_path_factory.mktemp("runs") / "smoke"
    result = in_a_process("train", "experiment=smoke", f"run_dir={run_dir}", "output=json")
    assert result.returncode == 0, result.stderr
    return run_dir, result


def test_a_run_directory_holds_what_the_design_says(trained):
    run_dir, result = trained
    assert json.loads(result.stdout)["run_dir"] == str(run_dir)  # and nothing else on stdout
    assert "rule: deeploop" in result.stderr  # the effective configuration
    checkpoint = run_dir / "checkpoints" / "step_00000020"
    assert sorted(path.name for path in checkpoint.iterdir()) == [
        "digests.json",
        "ema.safetensors",
        "model.safetensors",
        "puzzle_embedding.safetensors",
        "puzzles.json",
        "tasks.json",
        "training_state.pt",
    ]
    assert (run_dir / "checkpoints" / "step_00000010").is_dir()
    rows = read_metrics(run_dir / "metrics.jsonl")
    assert [row["step"] for row in rows] == [5, 10, 15, 20]
    assert rows[-1]["train/examples_drawn"] == 160
    manifest = json.loads((run_dir / "manifest.json").read_text())
    assert manifest["data"]["source"] == "arc1-mini"
    assert len(manifest["data"]["sha256"]) == 64
    assert manifest["versions"]["torch"] == torch.__version__


def test_evaluation_writes_ladder_predictions_and_submission(trained):
    run_dir, _ = trained
    result = run("evaluate", f"run={run_dir}", "output=json")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    directory = run_dir / "eval" / "step_00000020"
    assert json.loads((directory / "ladder.json").read_text()) == answer["ladder"]
    assert answer["ladder"]["num_scored_pairs"] == 3
    assert set(answer["ladder"]["all_tests"]) == {"1", "2", "4", "8", "16"}
    submission = json.loads((directory / "submission.json").read_text())
    assert {task: len(pairs) for task, pairs in submission.items()} == {
        "0d3d703e": 1,
        "25ff71a9": 2,
    }
    assert (directory / "predictions.npz").is_file()


def test_the_same_command_gives_bitwise_equal_weights(trained, tmp_path):
    run_dir, _ = trained
    again = run("train", "experiment=smoke", f"run_dir={tmp_path}/again")
    assert again.returncode == 0, again.stderr
    for stem in ("model", "ema", "puzzle_embedding"):
        ours, theirs = weights(run_dir, 20, stem), weights(tmp_path / "again", 20, stem)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_stopped_run_continues_to_the_same_weights(trained, tmp_path):
    run_dir, _ = trained
    base = ["experiment=smoke", f"run_dir={tmp_path}/run"]
    assert run("train", *base, "stop_after=7").returncode == 0
    assert run("train", *base).returncode == 2  # holds a run already
    continued = run("train", *base, "resume=auto")
    assert continued.returncode == 0, continued.stderr
    ours, theirs = weights(run_dir, 20), weights(tmp_path / "run", 20)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")][-1] == 20


def test_compare_trains_both_arms_and_states_the_difference(tmp_path):
    run_dir = tmp_path / "cmp"
    result = run("compare", "experiment=smoke", f"run_dir={run_dir}", "total_steps=4")
    assert result.returncode == 0, result.stderr
    assert "scaling.rule: vanilla = vanilla, deeploop = deeploop" in result.stdout
    assert "K=16" in result.stdout
    comparison = json.loads((run_dir / "comparison.json").read_text())
    assert list(comparison["arms"]) == ["vanilla", "deeploop"]
    for arm in comparison["arms"].values():
        for score in ("all_tests", "arc_prize"):
            assert set(arm["ladder"][score]) == {"1", "2", "4", "8", "16"}
    assert set(comparison["config_difference"]) == {"scaling.rule"}
    assert (run_dir / "ladder.png").is_file()


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ("{model.hidden_size:64}", "model.puzzle_emb_ndim"),  # follows hidden_size, undeclared
        ("{experiment:mini}", "differ in"),
        ("3", "expected keys and values"),
    ],
)
def test_compare_refuses_what_an_arm_does_not_declare(arm, message, tmp_path):
    run_dir = tmp_path / "cmp"
    result = run("compare", "experiment=smoke", f"run_dir={run_dir}", f"+arms.odd={arm}")
    assert result.returncode == 2
    assert message in result.stderr.splitlines()[-1]
    assert not run_dir.exists()


@pytest.mark.slow
def test_describe_states_a_run_before_it_is_paid_for():
    result = run("describe", "experiment=arc1", "output=json")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert (facts["M_g"], facts["N_g"], facts["M_forward"]) == (24, 12, 48)
    assert (facts["R_g_H"], facts["R_g_L"]) == (1, 2)
    for module in ("H", "L"):
        assert facts[f"alpha_{module}"] == pytest.approx(4.898979, abs=1e-6)
        assert facts[f"beta_{module}"] == pytest.approx(0.102062, abs=1e-6)
    # 8 blocks of 4 * 512^2 + 3 * 512 * 1536, two embeddings of 12 * 512, Q head of 512 + 1
    assert facts["params"]["core"] == 8 * (4 * 512**2 + 3 * 512 * 1536) + 2 * 12 * 512 + 513
    assert facts["params"]["puzzle_embedding"] == facts["num_puzzles"] * 512
    assert facts["params"]["total"] == sum(
        facts["params"][part] for part in ("core", "puzzle_embedding")
    )
    assert (facts["seq_len"], facts["num_tasks"]) == (900, 800)
    assert 700_000 < facts["num_puzzles"] <= 800 * 1001


@pytest.mark.parametrize(
    ("script", "overrides", "message"),
    [
        ("train", ["experiment=smoke", "attention=flash"], "attention=flash needs the package"),
        ("train", ["experiment=smoke", "data.canvas=2"], "data.canvas=2: none of the 2 tasks"),
        ("train", ["experiment=smoke", "data.tasks=[nope]"], "data.tasks=['nope']: nope not among"),
        ("train", ["experiment=smoke", "run_dir=/dev/null/x"], "/dev/null"),
        ("evaluate", ["run=nowhere"], "nowhere: not a run directory, it has no config.yaml"),
        ("evaluate", [], "run: a value is required"),
        ("compare", ["experiment=smoke", "arms=[vanilla]"], "a comparison needs at least two"),
        ("describe", ["experiment=smoke", "output=xml"], "output=xml: allowed are text and json"),
    ],
)
def test_a_mistake_is_one_line_without_a_traceback(script, overrides, message, tmp_path):
    if script == "train" and not any(o.startswith("run_dir") for o in overrides):
        overrides = [*overrides, f"run_dir={tmp_path}/run"]
    result = run(script, *overrides, cwd=tmp_path)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert message in result.stderr.splitlines()[-1]
    assert result.stdout == ""


def test_evaluation_refuses_a_damaged_or_absent_checkpoint(trained, tmp_path):
    import shutil

    run_dir = tmp_path / "copy"
    shutil.copytree(trained[0], run_dir)
    for override, message in (
        ("checkpoint=7", "checkpoint=7: allowed are last and the steps 10, 20"),
        ("votes=9", "votes=9: there are 4 puzzles"),
        ("tasks=[nope]", "tasks=nope: not among the 2 evaluated tasks"),
    ):
        result = run("evaluate", f"run={run_dir}", override)
        assert (result.returncode, message in result.stderr.splitlines()[-1]) == (2, True)
    checkpoint = run_dir / "checkpoints" / "step_00000020"
    (checkpoint / "ema.safetensors").write_bytes(b"junk")
    result = run("evaluate", f"run={run_dir}")
    assert result.returncode == 2
    last = result.stderr.splitlines()[-1]
    assert "ema.safetensors: damaged, it is not what was written" in last
    assert last.endswith("checkpoint=10 is whole")
    (checkpoint / "puzzles.json").unlink()
    result = run("evaluate", f"run={run_dir}")
    assert "not a whole checkpoint, puzzles.json is gone" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("script", ["train", "evaluate", "compare", "describe"])
def test_help_shows_usage_groups_and_keys(script):
    result = run(script, "--help")
    assert result.returncode == 0
    assert f"hrm-deeploop {script}" in result.stdout
    assert "scaling={" in result.stdout
    assert "output" in result.stdout


def test_running_out_of_memory_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py"])

    def main(_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has 1 GiB")

    with pytest.raises(SystemExit) as left:
        cli.launch(main, "train", None, keys_of=["train"])
    assert left.value.code == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("train: CUDA out of memory; less is needed with a smaller micro")

    def fail(_):
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        cli.launch(fail, "train", None, keys_of=["train"])
