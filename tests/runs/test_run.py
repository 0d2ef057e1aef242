"""A run in a notebook: what it answers, what it refuses, and rules of a user's own."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hrm_deeploop as hd
from arc_data.task import parse_task
from hrm_deeploop.runs.engines import StoppedError

ROOT = Path(__file__).parents[2]
TASK = {"train": [{"input": [[1]], "output": [[2]]}], "test": [{"input": [[3]]}]}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "smoke"
    return hd.train("smoke", total_steps=4, run_dir=str(run_dir), optim={"ema_rate": None})


def test_importing_the_package_is_fast_and_loads_no_torch():
    code = (
        "import sys, time; start = time.perf_counter(); import hrm_deeploop as hd;"
        "print(time.perf_counter() - start, 'torch' in sys.modules, sorted(dir(hd)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    seconds, loads_torch, names = result.stdout.split(maxsplit=2)
    assert float(seconds) < 0.2
    assert loads_torch == "False"
    for name in json.loads(names.replace("'", '"')):
        assert getattr(hd, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hd.nothing


def test_a_run_says_what_it_is(run):
    assert repr(run) == f"Run({run.directory}: arc1-mini, hrm, deeploop, step 4)"
    assert run.config.optim.ema_rate is None
    assert run.ladder is None
    result = run.evaluate()
    assert run.ladder == result.ladder
    assert "all_tests at K=2" in repr(run)
    assert "<table>" in run._repr_html_()
    assert hd.evaluate(run.directory, votes=2).directory.name == "step_00000004-votes2"
    with pytest.raises(ValueError, match="checkpoint=7: allowed are last"):
        hd.load_run(run.directory, checkpoint=7)


def test_an_id_a_task_a_file_and_an_object_are_answered_alike(run, tmp_path):
    task = run.data.puzzles.tasks[0]
    answers = [run.predict(task.id, votes=2), run.predict(task, votes=2)]
    for answer in answers:
        assert answer.notes == ()
        assert len(answer.tests) == len(task.test)
        assert answer.tests[0].num_votes == 2
        for attempt in answer.tests[0].attempts:
            assert attempt.votes in (1, 2)
    for one, other in zip(answers[0].tests, answers[1].tests, strict=True):
        for a, b in zip(one.candidates, other.candidates, strict=True):
            np.testing.assert_array_equal(a.grid, b.grid)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(TASK))
    for given in (path, str(path), TASK, parse_task("mine", TASK, "mine")):
        with pytest.raises(ValueError, match="has no rows for it, of 2 tasks"):
            run.predict(given, votes=2)
        answer = run.predict(given, votes=2, untrained_row=True)
        assert answer.notes == ("the run has no rows for this task; an untrained row answered",)
        assert answer.tests[0].is_solved is None
    with pytest.raises(ValueError, match=r"nowhere.json: neither a file nor one of the 2 tasks"):
        run.predict("nowhere.json")
    with pytest.raises(ValueError, match="votes=99: there are 4 puzzles of a task"):
        run.predict(task.id, votes=99)
    large = {**TASK, "test": [{"input": [[0] * 7]}]}
    with pytest.raises(ValueError, match="a side of 7 cells, the run's canvas 6"):
        run.predict(large, untrained_row=True)


def test_other_grids_under_a_known_id_are_another_task(run):
    known = run.data.puzzles.tasks[0].id
    with pytest.raises(ValueError, match="has no rows for it"):
        run.predict(parse_task(known, TASK, known))


def test_a_rule_of_a_notebook_trains_and_is_compared_in_workers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def half_h(visits):
        return {"H": hd.power_law(visits.N_g, 0.25), "L": hd.power_law(visits.N_g, 0.5)}

    half_h.__module__ = "__main__"  # as it is in a notebook
    hd.scaling_rule("half_h")(half_h)
    mine = hd.train("smoke", scaling="half_h", total_steps=2, run_dir="runs/mine")
    assert mine.config.plugins == ("__main__",)
    assert mine.config.gains["H"][0] == hd.power_law(3, 0.25)
    result = hd.compare(
        "smoke",
        arms={"vanilla": {"scaling": "vanilla"}, "mine": {"scaling": "half_h"}},
        total_steps=2,
        run_dir="runs/cmp",
        workers=2,
    )
    assert result.difference("mine").mean == 0
    assert list(result.config_difference) == ["scaling.rule"]


PLUGIN = """
import hrm_deeploop as hd

@hd.scaling_rule("mine")
def mine(visits, *, gain: float = 2.0):
    return {name: [(gain, 0.5)] * module.layers for name, module in visits.modules.items()}
"""


def script(name, *overrides, cwd):
    command = [sys.executable, str(ROOT / "scripts" / f"{name}.py"), *overrides]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=cwd)


@pytest.mark.slow
def test_a_plugins_rule_trains_resumes_and_is_evaluated_by_commands(tmp_path):
    (tmp_path / "my_rules.py").write_text(PLUGIN)
    own = ["experiment=smoke", "plugins=[my_rules]", "run_dir=run"]
    trained = script("train", *own, "scaling=mine", "stop_after=10", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    resumed = script("train", *own, "scaling=mine", "resume=auto", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    evaluated = script("evaluate", "run=run", "output=json", cwd=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    described = script("describe", *own, "scaling=mine", "scaling.gain=3.0", cwd=tmp_path)
    assert "scaling   mine, gain 3.0" in described.stdout
    compared = script(
        "compare",
        *own[:2],
        *("+arms.mine={scaling:mine}", "total_steps=2", "run_dir=cmp", "workers=2"),
        cwd=tmp_path,
    )
    assert compared.returncode == 0, compared.stderr
    (tmp_path / "my_rules.py").write_text(PLUGIN.replace("2.0", "4.0"))
    changed = script("train", *own, "scaling=mine", "resume=auto", cwd=tmp_path)
    assert changed.returncode == 2
    (tmp_path / "my_rules.py").write_text(PLUGIN.replace("(gain, 0.5)", "(gain, 0.25)"))
    changed = script("train", *own, "scaling=mine", "resume=auto", cwd=tmp_path)
    assert changed.returncode == 2
    assert "gives other gains than when the run was started" in changed.stderr.splitlines()[-1]
    (tmp_path / "my_rules.py").unlink()
    missing = script("evaluate", "run=run", cwd=tmp_path)
    assert missing.returncode == 2
    assert "plugins=[my_rules]: can't be imported" in missing.stderr.splitlines()[-1]
    unnamed = script("train", "experiment=smoke", "scaling=mine", cwd=tmp_path)
    assert "needs plugins=[its module]" in unnamed.stderr.splitlines()[-1]


def test_an_interruption_is_a_keyboard_interrupt(run, monkeypatch):
    def stop(options):
        raise StoppedError(2)

    monkeypatch.setattr("hrm_deeploop.runs.run.evaluate_run", stop)
    with pytest.raises(KeyboardInterrupt, match="stopped by SIGINT; all is saved"):
        hd.evaluate(run)
