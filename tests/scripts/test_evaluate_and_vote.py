"""Evaluate, interrupt, continue, vote again, pool, submit: as a user would."""

import json
import os
import re
import shutil
import signal
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch

from eval.ladder import build_ladder
from eval.predictions import About, load_predictions
from eval.vote import count_ballots
from hrm_deeploop.device import Ranks
from hrm_deeploop.hrm import HRM
from hrm_deeploop.runs.checkpoint import DIGESTS_FILE, load_weights, read_digests
from hrm_deeploop.runs.choices import Choices
from hrm_deeploop.runs.config import load_config
from hrm_deeploop.runs.directory import find_checkpoint
from hrm_deeploop.runs.evaluation import Evaluation
from tests.commands import in_a_process, start_of
from tests.commands import in_process as run

PERCENT = re.compile(r"(\d+)%\|")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A smoke run with more votes than the experiment's own."""
    run_dir = tmp_path_factory.mktemp("runs") / "smoke"
    result = run("train", "experiment=smoke", "data.num_aug=40", f"run_dir={run_dir}")
    assert result.returncode == 0, result.stderr
    return run_dir


@pytest.fixture
def run_dir(trained, tmp_path):
    """A copy of the run, without evaluations."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def evaluated(trained, tmp_path_factory):
    """An evaluated copy of the run and what the command printed."""
    copy = tmp_path_factory.mktemp("evaluated") / "run"
    shutil.copytree(trained, copy)
    result = run("evaluate", f"run={copy}", "segments=[1,2]", "output=json")
    assert result.returncode == 0, result.stderr
    return copy / "eval" / "step_00000020-segments1-2", json.loads(result.stdout)


def evaluation_of(run_dir, **choices):
    config, checkpoint = load_config(run_dir), find_checkpoint(run_dir, "last")
    config = config.model_copy(update={"run_dir": str(run_dir)})
    return Evaluation(config, checkpoint, Ranks(device=torch.device("cpu")), Choices(**choices))


def columns(path):
    predictions = load_predictions(path)
    names = ("task", "test_index", "vote", "height", "width", "cells", "segments", "final")
    return {name: getattr(predictions, name) for name in names}


def assert_same_answers(path, other):
    for name, column in columns(path).items():
        np.testing.assert_array_equal(column, columns(other)[name], err_msg=name)


def test_an_evaluation_writes_every_file_and_the_segments_asked_for(evaluated):
    directory, printed = evaluated
    assert {path.name for path in directory.iterdir()} == {
        *(
            "predictions.npz",
            "ladder.json",
            "ladder.png",
            "submission.json",
            "report.html",
            ".lock",
        ),
    }
    assert json.loads((directory / "ladder.json").read_text()) == printed["ladder"]
    assert list(printed["ladder"]["segments_at_2"]["all_tests"]) == ["1", "2", "3"]
    assert printed["ladder"]["num_votes"] == 41
    assert list(printed["ladder"]["votes_at_2"]["all_tests"]) == ["1", "4", "16", "41"]


def test_a_finished_evaluation_is_not_predicted_again_but_another_choice_is(evaluated, tmp_path):
    directory, printed = evaluated
    run_dir = shutil.copytree(directory.parents[1], tmp_path / "run")
    again = run("evaluate", f"run={run_dir}", "segments=[1,2]", "attempts=[3]", "output=json")
    assert "complete, not predicted again" in again.stderr
    ladder = json.loads(again.stdout)["ladder"]
    assert list(ladder["all_tests"]) == ["3"]
    assert ladder["votes_at_2"] == printed["ladder"]["votes_at_2"]
    other = run("evaluate", f"run={run_dir}", "puzzle_ids=blank", "votes=2", "output=json")
    assert other.returncode == 0, other.stderr
    assert json.loads(other.stdout)["directory"].endswith("step_00000020-blank-votes2")


def test_what_was_predicted_before_an_interruption_is_not_predicted_again(
    run_dir, evaluated, monkeypatch
):
    num_rows = 0

    def counted(self, state, embedded, original=HRM.segment):
        nonlocal num_rows
        num_rows += len(embedded.tokens)
        if num_rows > 100:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, state, embedded)

    interrupted = evaluation_of(run_dir)
    interrupted.config = interrupted.config.model_copy(
        update={"evaluation": interrupted.config.evaluation.model_copy(update={"batch_size": 10})}
    )
    with monkeypatch.context() as patch:
        patch.setattr(HRM, "segment", counted)
        assert interrupted.predict() == signal.SIGINT
    assert num_rows == 110  # 3 batches of 10 rows have run 3 segments, the fourth was in its second
    num_rows = -(10**6)
    with monkeypatch.context() as patch:
        patch.setattr(HRM, "segment", counted)
        assert evaluation_of(run_dir).predict() is None
    assert num_rows + 10**6 == 3 * (123 - 30)
    assert not list((run_dir / "eval").rglob("*.parts"))
    predictions = load_predictions(evaluated[0] / "predictions.npz")
    whole = predictions.take(np.flatnonzero(predictions.final))
    np.testing.assert_array_equal(
        load_predictions(run_dir / "eval/step_00000020/predictions.npz").cells, whole.cells
    )


def test_other_weights_are_predicted_anew(run_dir, caplog):
    assert evaluation_of(run_dir, votes=1).predict() is None
    checkpoint = find_checkpoint(run_dir, "last")
    shutil.copy(checkpoint / "model.safetensors", checkpoint / "ema.safetensors")
    with pytest.raises(ValueError, match=r"ema\.safetensors: damaged"):
        load_weights(checkpoint, "ema")
    recorded = read_digests(checkpoint)
    files = {**recorded.files, "ema.safetensors": recorded.files["model.safetensors"]}
    recorded.model_copy(update={"files": files}).save(checkpoint / DIGESTS_FILE)
    evaluation_of(run_dir, votes=1).predict()
    assert "of other weights or choices, predicting anew" in caplog.text


def test_vote_recomputes_the_ladder_without_the_run(evaluated, tmp_path):
    directory, printed = evaluated
    shutil.copy(directory / "predictions.npz", tmp_path)
    result = run("vote", f"predictions={tmp_path / 'predictions.npz'}", "output=json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["ladder"] == printed["ladder"]
    for name in ("ladder.json", "submission.json", "report.html"):
        assert (tmp_path / name).read_bytes() == (directory / name).read_bytes(), name
    few = ["votes=4", f"out={tmp_path / 'few'}", "attempts=[2]"]
    result = run("vote", f"predictions={tmp_path / 'predictions.npz'}", *few, "output=json")
    ladder = json.loads(result.stdout)["ladder"]
    assert ladder["all_tests"]["2"] == printed["ladder"]["votes_at_2"]["all_tests"]["4"]


def test_scoring_the_submission_gives_the_ladders_k_2(evaluated, tmp_path):
    directory, printed = evaluated
    submission = directory / "submission.json"
    expected = {name: printed["ladder"][name]["2"] for name in ("all_tests", "arc_prize")}
    for where in (
        [f"submission={submission}"],
        [f"submission={submission}", "data=arc1-mini", "data.tasks=[0d3d703e,25ff71a9]"],
    ):
        result = run("vote", *where, "output=json")
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["scores"] == expected
    shutil.copy(submission, tmp_path)
    result = run("vote", f"submission={tmp_path / 'submission.json'}")
    assert result.returncode == 2
    assert "no predictions.npz beside it" in result.stderr.splitlines()[-1]
    # Of 59 tasks two were submitted: the others' attempts count as wrong, and are counted.
    graded = run("vote", f"submission={submission}", "data=arc1-mini", "output=json")
    found = json.loads(graded.stdout)
    assert found["num_missing"] == 2 * (69 - 3)
    assert found["scores"]["all_tests"] == expected["all_tests"] * 2 / 59
    text = run("vote", f"submission={submission}", "data=arc1-mini").stdout
    assert "warning: 132 attempts are missing; each counts as a wrong one" in text


def test_votes_of_several_files_are_pooled_when_asked_to(evaluated, tmp_path):
    directory, printed = evaluated
    copy, other = tmp_path / "copy.npz", tmp_path / "other.npz"
    predictions = load_predictions(directory / "predictions.npz")
    shutil.copy(directory / "predictions.npz", copy)
    replace(predictions, about=About(facts={"run": "other"})).save(other)
    twice = f"predictions=[{directory / 'predictions.npz'},{copy}]"
    refused = run("vote", twice, "pool=true", f"out={tmp_path / 'ensemble'}")
    assert "the same predictions are given twice" in refused.stderr.splitlines()[-1]
    files = f"predictions=[{directory / 'predictions.npz'},{other}]"
    refused = run("vote", files)
    assert refused.returncode == 2
    assert "2 files given; pool=true counts their votes together" in refused.stderr
    pooled = run("vote", files, "pool=true", f"out={tmp_path / 'ensemble'}")
    assert pooled.returncode == 0, pooled.stderr
    assert "an ensemble of 2 evaluations, their votes pooled" in pooled.stdout
    ladder = json.loads((tmp_path / "ensemble" / "ladder.json").read_text())
    assert ladder["num_pooled"] == 2
    assert ladder["all_tests"] == printed["ladder"]["all_tests"]  # both vote alike
    html = (tmp_path / "ensemble" / "report.html").read_text()
    assert "the votes of 2 evaluations are pooled" in html


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "give one of predictions=FILE and submission=FILE"),
        (["predictions=a", "submission=b"], "give one of predictions=FILE and submission=FILE"),
        (["predictions=absent.npz"], "absent.npz: not a predictions file"),
        (["predictions=a", "votes=2"], "out: a folder is required"),
        (["predictions=a", "attempts=2"], "attempts=2: expected a list, attempts=[2]"),
        (["submission=absent.json", "data=arc1-mini"], "absent.json: expected a file"),
    ],
)
def test_a_mistake_of_vote_is_one_line(overrides, message, tmp_path):
    result = run("vote", *overrides, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["votes=99"], "votes=99: there are 41 puzzles of a task"),
        (["segments=[1,9]"], "segments=[1, 9]: allowed are 1 to 3"),
        (["tasks=[0d3d703e]", "puzzle_ids=shuffled"], "needs at least two evaluated tasks"),
        (["halting=maybe"], "halting=maybe: input should be 'fixed' or 'act'"),
    ],
)
def test_a_mistake_of_evaluate_is_one_line(overrides, message, trained):
    result = run("evaluate", f"run={trained}", *overrides)
    assert result.returncode == 2
    assert message in result.stderr.splitlines()[-1]


def stop(started, number, percent):
    """Run a command and send it a signal when its progress bar has come so far."""
    text = ""
    with subprocess.Popen(started, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        while not any(int(p) >= percent for p in PERCENT.findall(text)):
            piece = os.read(process.stderr.fileno(), 4096).decode(errors="replace")
            assert piece, text
            text += piece
        process.send_signal(number)
        process.communicate(timeout=120)
    return process.returncode


@pytest.mark.slow
def test_signals_and_ranks_lose_and_change_nothing(run_dir, evaluated):
    """SIGINT, then kill -9, then two ranks that finish: the answers of one process."""
    path = run_dir / "eval" / "step_00000020-segments1-2" / "predictions.npz"
    arguments = [f"run={run_dir}", "segments=[1,2]"]
    slowly = start_of("evaluate", *arguments, "batch_size=1")
    assert stop(slowly, signal.SIGINT, 10) == 130
    num_parts = len(list(path.parent.rglob("rank*.npz")))
    assert num_parts >= 1
    assert stop(slowly, signal.SIGKILL, 30) == -signal.SIGKILL
    assert len(list(path.parent.rglob("rank*.npz"))) >= num_parts
    result = in_a_process("evaluate", *arguments, ranks=2)
    assert result.returncode == 0, result.stderr
    assert_same_answers(path, evaluated[0] / "predictions.npz")
    ladders = [
        build_ladder(count_ballots(load_predictions(p)))
        for p in (path, evaluated[0] / "predictions.npz")
    ]
    assert ladders[0].all_tests == ladders[1].all_tests
