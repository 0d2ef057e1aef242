"""One's own task files and Kaggle files train, are predicted, and are submitted."""

import json
import shutil

import pytest

from tests.commands import ROOT
from tests.commands import in_process as run

TINY = [
    *("experiment=smoke", "data.canvas=4", "data.tasks=null", "data.evaluate=all"),
    *("total_steps=2", "checkpoint_every=null"),
]


@pytest.fixture(scope="module")
def accepted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    for path in (ROOT / "tests" / "data" / "cases").glob("accept_*.json"):
        shutil.copy(path, folder)
    return folder


def test_every_accepted_case_trains_is_predicted_and_submitted(accepted, tmp_path):
    run_dir = tmp_path / "run"
    own = ["data=folder", f"data.folders=[{accepted}]", "data.num_aug=200"]
    result = run("train", *TINY, *own, f"run_dir={run_dir}")
    assert result.returncode == 0, result.stderr
    puzzles = json.loads((run_dir / "checkpoints" / "step_00000002" / "puzzles.json").read_text())
    num_puzzles = {entry["id"]: len(entry["puzzles"]) for entry in puzzles["tasks"]}
    assert num_puzzles["accept_1x1"] == 9 * 8  # all there are, of the 201 asked for
    assert num_puzzles["accept_my_task_v2"] > 72

    result = run("evaluate", f"run={run_dir}", "votes=4", "output=json")
    assert result.returncode == 0, result.stderr
    ladder = json.loads(result.stdout)["ladder"]
    assert (ladder["num_tasks"], ladder["num_scored_tasks"]) == (5, 4)  # one output is hidden
    evaluation = run_dir / "eval" / "step_00000002-votes4"
    submission = json.loads((evaluation / "submission.json").read_text())
    assert {task_id: len(entries) for task_id, entries in submission.items()} == {
        "accept_1x1": 1,
        "accept_hidden_output": 1,
        "accept_my_task_v2": 1,
        "accept_name_key": 1,
        "accept_two_tests": 2,
    }


def test_kaggle_tasks_with_odd_ids_go_all_the_way(tmp_path):
    ids = ["../../escape", "a b=c", "\ud800", "x" * 300]
    pairs = [{"input": [[1] * n], "output": [[2] * n]} for n in range(1, 1 + len(ids))]
    tasks = {i: {"train": [pair], "test": [pair]} for i, pair in zip(ids, pairs, strict=True)}
    challenges = tmp_path / "my_challenges.json"
    challenges.write_text(json.dumps(tasks))
    run_dir = tmp_path / "deep" / "run"
    own = ["data=kaggle", f"data.challenges={challenges}", "data.num_aug=2"]
    result = run("train", *TINY, *own, f"run_dir={run_dir}")
    assert result.returncode == 0, result.stderr
    result = run("evaluate", f"run={run_dir}")
    assert result.returncode == 0, result.stderr
    submission = json.loads((run_dir / "eval" / "step_00000002" / "submission.json").read_text())
    assert sorted(submission) == sorted(ids)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "my_challenges.json"]


def test_a_run_that_evaluates_nothing_says_so(accepted, tmp_path):
    own = [
        "data=folder",
        f"data.folders=[{accepted}]",
        "data.num_aug=1",
        "data.evaluate=evaluation",
    ]
    result = run("train", *TINY, *own, f"run_dir={tmp_path / 'run'}")
    assert result.returncode == 0, result.stderr
    result = run("evaluate", f"run={tmp_path / 'run'}")
    assert result.returncode == 2
    assert "no task is evaluated with data.evaluate=evaluation" in result.stderr.splitlines()[-1]
