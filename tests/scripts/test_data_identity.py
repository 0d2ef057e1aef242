"""An evaluation is of the run's data, wherever it lies; what trained is not scored in silence."""

import json
import shutil

import pytest
import yaml

import hrm_deeploop as hd
from hrm_deeploop.runs.checkpoint import list_checkpoints
from tests.commands import in_process

# No two are equal up to symmetry and color.
PAIRS = [
    {"input": [[1] * width] * height, "output": [[1, 0, 2]]}
    for height in (1, 2)
    for width in (1, 2, 3, 4)
]


def write(folder, **tasks):
    """Tasks by id, as (demonstrations, test pairs)."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for task_id, (train, test) in tasks.items():
        (folder / f"{task_id}.json").write_text(json.dumps({"train": train, "test": test}))
    return folder


def train(run_dir, folder, *overrides, evaluate="all"):
    own = ["experiment=smoke", "data=folder", f"data.folders=[{folder}]", "data.tasks=null"]
    own += [f"data.evaluate={evaluate}", "total_steps=4", "checkpoint_every=2", "data.canvas=6"]
    return in_process("train", *own, f"run_dir={run_dir}", *overrides)


@pytest.fixture
def trained(tmp_path):
    folder = write(tmp_path / "tasks", a=(PAIRS[:2], PAIRS[2:3]), b=(PAIRS[3:5], PAIRS[5:6]))
    result = train(tmp_path / "run", folder)
    assert result.returncode == 0, result.stderr
    return tmp_path / "run", folder


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (dict(a=(PAIRS[:2], PAIRS[6:7])), "task a, test pair 0 has other grids"),
        (dict(a=([PAIRS[0], PAIRS[7]], PAIRS[2:3])), "task a, train pair 1 has other grids"),
        (dict(a=(PAIRS[:1], PAIRS[1:2])), "task a, train has 1 pairs, the run's 2"),
        (dict(a=(PAIRS[:2], PAIRS[2:4])), "task a, test has 2 pairs, the run's 1"),
    ],
)
def test_other_grids_under_the_ids_of_the_run_are_named(tasks, message, trained):
    run_dir, folder = trained
    write(folder, **tasks, b=(PAIRS[3:5], PAIRS[5:6]))
    for command in (("evaluate", f"run={run_dir}"), ("alignment", f"run=[{run_dir}]", "batches=1")):
        result = in_process(*command)
        assert result.returncode == 2
        assert message in result.stderr.splitlines()[-1]
    with pytest.raises(ValueError, match=message):
        hd.load_run(run_dir).predict("b")
    resumed = train(run_dir, folder, "resume=auto")
    assert resumed.returncode == 2
    assert message in resumed.stderr.splitlines()[-1]


@pytest.mark.slow
def test_data_that_was_moved_is_named_again(trained, tmp_path, monkeypatch):
    run_dir, folder = trained
    moved = folder.rename(tmp_path / "elsewhere")
    result = in_process("evaluate", f"run={run_dir}")
    assert result.returncode == 2
    assert "expected a folder of task files" in result.stderr.splitlines()[-1]
    again = in_process("evaluate", f"run={run_dir}", "data.folders=[elsewhere]", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    measured = in_process("alignment", f"run=[{run_dir}]", f"data.folders=[{moved}]", "batches=1")
    assert measured.returncode == 0, measured.stderr
    answer = hd.load_run(run_dir, data={"folders": [str(moved)]}).predict("a", votes=1)
    assert answer.notes == ()
    resumed = train(run_dir, moved, "resume=auto")
    assert resumed.returncode == 0, resumed.stderr


@pytest.mark.slow
def test_a_path_is_stored_absolute(tmp_path):
    write(tmp_path / "tasks", a=(PAIRS[:2], PAIRS[2:3]))
    own = ["experiment=smoke", "data=folder", "data.folders=[tasks]", "data.tasks=null"]
    result = in_process("train", *own, "total_steps=1", "run_dir=run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    stored = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert stored["data"]["folders"] == [str(tmp_path / "tasks")]


def test_test_pairs_that_trained_are_scored_by_name_alone_and_marked(tmp_path):
    """Train on everything, go on with the same tasks held out, evaluate."""
    folder = write(tmp_path / "tasks", a=(PAIRS[:2], PAIRS[2:3]), b=(PAIRS[3:5], PAIRS[5:6]))
    run_dir = tmp_path / "run"
    assert train(run_dir, folder, "stop_after=2", evaluate="none").returncode == 0
    result = train(run_dir, folder, "resume=auto", "new_puzzles=init", evaluate="all")
    assert result.returncode == 0, result.stderr
    result = in_process("evaluate", f"run={run_dir}")
    assert result.returncode == 2
    last = result.stderr.splitlines()[-1]
    assert "the run has trained on test pairs of every task" in last
    assert "trained_pairs=score" in last
    scored = in_process("evaluate", f"run={run_dir}", "trained_pairs=score")
    assert scored.returncode == 0, scored.stderr
    mark = "the run has trained on 2 of the test pairs: a pair 0, b pair 0"
    assert mark in scored.stdout
    answer = hd.load_run(run_dir).predict("a", votes=1)
    assert answer.notes == ("the run has trained on test pair 0 of this task",)
    (place,) = (run_dir / "eval").iterdir()
    assert mark in json.loads((place / "ladder.json").read_text())["warnings"]
    assert mark in (place / "report.html").read_text()
    voted = in_process("vote", f"predictions={place / 'predictions.npz'}", f"out={tmp_path / 'v'}")
    assert mark in voted.stdout


def test_a_task_with_a_pair_that_trained_is_left_out_and_counted(tmp_path):
    """The other task is new; the pair that trained has another id, is moved and recolored."""
    folder = write(tmp_path / "tasks", a=(PAIRS[:2], PAIRS[2:3]))
    run_dir = tmp_path / "run"
    assert train(run_dir, folder, "stop_after=2", evaluate="none").returncode == 0
    known = {"input": [[9, 9, 9]], "output": [[4, 0, 9]]}  # PAIRS[2], mirrored and recolored
    unlike = [{"input": [[1, 2, 3]], "output": [[3, 1, 2]]}, {"input": [[4, 4]], "output": [[5]]}]
    write(folder, c=(unlike[:1], [known]), d=(unlike[:1], unlike[1:]))
    result = train(run_dir, folder, "resume=auto", "new_puzzles=init")
    assert result.returncode == 0, result.stderr
    evaluated = in_process("evaluate", f"run={run_dir}", "output=json")
    assert evaluated.returncode == 0, evaluated.stderr
    ladder = json.loads(evaluated.stdout)["ladder"]
    assert ladder["num_tasks"] == 1
    assert any(
        "1 of 2 evaluated tasks left out, the run has trained on their test pairs: c pair 0" in w
        for w in ladder["warnings"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("change", ["data.num_aug=2", "data.canvas=7", "data.seed=1"])
def test_other_tasks_are_all_that_may_change(change, trained):
    run_dir, folder = trained
    result = train(run_dir, folder, "resume=auto", "new_puzzles=init", change)
    assert result.returncode == 2
    assert change.split("=")[0] in result.stderr.splitlines()[-1]


@pytest.mark.slow
def test_fresh_rows_of_a_finished_run_are_warned_of(trained):
    run_dir, folder = trained
    write(folder, a=(PAIRS[:2], PAIRS[2:3]), z=(PAIRS[6:8], PAIRS[5:6]))
    result = train(run_dir, folder, "resume=auto", "new_puzzles=init")
    assert result.returncode == 0, result.stderr
    assert "the run is finished, so the 4 fresh rows of new_puzzles=init stay at zero" in (
        result.stderr
    )
    assert yaml.safe_load((run_dir / "config.yaml").read_text())["new_puzzles"] == "refuse"


@pytest.mark.slow
def test_solutions_that_become_known_later_are_no_difference(tmp_path):
    challenges, solutions = tmp_path / "c.json", tmp_path / "s.json"
    hidden = [{"input": PAIRS[2]["input"]}]
    challenges.write_text(json.dumps({"a": {"train": PAIRS[:2], "test": hidden}}))
    solutions.write_text(json.dumps({"a": [PAIRS[2]["output"]]}))
    own = ["experiment=smoke", "data=kaggle", f"data.challenges={challenges}", "data.tasks=null"]
    run_dir = tmp_path / "run"
    result = in_process("train", *own, "total_steps=1", f"run_dir={run_dir}")
    assert result.returncode == 0, result.stderr
    assert "n/a" in in_process("evaluate", f"run={run_dir}").stdout
    scored = in_process("evaluate", f"run={run_dir}", f"data.solutions={solutions}", "output=json")
    assert scored.returncode == 0, scored.stderr
    assert json.loads(scored.stdout)["ladder"]["num_scored_tasks"] == 1


@pytest.mark.slow
def test_left_out_tasks_stand_in_every_output(tmp_path):
    folder = write(
        tmp_path / "tasks",
        a=(PAIRS[:2], PAIRS[2:3]),
        big=(PAIRS[:2], [{"input": [[0] * 9], "output": [[1]]}]),
        bad=(PAIRS[:2], []),
    )
    run_dir = tmp_path / "run"
    result = train(run_dir, folder)
    assert result.returncode == 0, result.stderr
    assert "1 tasks left out, larger than the canvas: big" in result.stderr
    assert "1 tasks left out, not a valid task: bad" in result.stderr
    manifest = json.loads((run_dir / "manifest.json").read_text())
    assert manifest["data"]["left_out"] == {"larger than the canvas": 1, "not a valid task": 1}
    evaluated = in_process("evaluate", f"run={run_dir}")
    (place,) = (run_dir / "eval").iterdir()
    for text in (
        evaluated.stdout,
        (place / "ladder.json").read_text(),
        (place / "report.html").read_text(),
    ):
        assert "1 of 3 evaluated tasks left out: larger than the canvas" in text
    strict = train(tmp_path / "other", folder, "data.strict=true")
    assert strict.returncode == 2
    assert "more problems" in strict.stderr.splitlines()[-1]


@pytest.mark.slow
def test_an_evaluation_goes_where_out_says(trained, tmp_path):
    run_dir, _ = trained
    result = in_process("evaluate", f"run={run_dir}", f"out={tmp_path / 'out'}")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out" / "report.html").is_file()
    assert not (run_dir / "eval").exists()
    assert list(list_checkpoints(run_dir / "checkpoints")) == [2, 4]
