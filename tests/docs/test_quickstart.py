"""The notebook of the README, run as it is written, on a shrunken experiment."""

import json
import re
import shutil
from pathlib import Path

import pytest

import hrm_deeploop as hd
from hrm_deeploop.runs import compose

ROOT = Path(__file__).parents[2]


# As a researcher types it; README.md has the same calls.
NOTEBOOK = """
import hrm_deeploop as hd
run = hd.load_run("runs/demo/deeploop/seed0")         # repr: data, model, scaling, step, scores
answer = run.predict("0d3d703e", votes=16)            # an id, a Task, a path or a dict with train and test
answer.attempts[0].grid, answer.attempts[0].votes; answer.show()

@hd.scaling_rule("half_h")                            # a name, so that configs, resume and comparisons still work
def half_h(visits): return {"H": hd.power_law(visits.N_g, 0.25), "L": hd.power_law(visits.N_g, 0.5)}

mine = hd.train("mini", scaling="half_h", run_dir="runs/mine")
result = hd.compare("mini", arms={"vanilla": {"scaling": "vanilla"}, "mine": {"scaling": "half_h"}}, seeds=[0, 1, 2])
result.difference("mine"); result.show()
"""  # noqa: E501
CALLS = (
    *("hd.load_run(", "run.predict(", "answer.show()", "hd.scaling_rule(", "hd.train("),
    *("hd.compare(", 'result.difference("mine")', "result.show()"),
)


@pytest.mark.slow
def test_the_notebook_runs_as_it_is_written(tmp_path, monkeypatch, capsys):
    configs = tmp_path / "configs"
    shutil.copytree(compose.CONFIG_DIR, configs)
    mini = configs / "experiment" / "mini.yaml"
    small = {"total_steps: 1500": "total_steps: 2", "hidden_size: 128": "hidden_size: 32"}
    text = mini.read_text()
    for was, now in small.items():
        assert was in text
        text = text.replace(was, now)
    mini.write_text(text)
    monkeypatch.setattr(compose, "CONFIG_DIR", configs)
    monkeypatch.chdir(tmp_path)
    hd.train("mini", run_dir="runs/demo/deeploop/seed0")
    namespace = {"__name__": "__main__"}  # as a notebook's
    exec(NOTEBOOK, namespace)
    assert repr(namespace["run"]).startswith("Run(runs/demo/deeploop/seed0: arc1-mini, hrm")
    assert namespace["mine"].config.scaling.rule == "half_h"
    assert list(namespace["result"].arms) == ["vanilla", "mine"]
    assert namespace["result"].arms["mine"].seeds == (0, 1, 2)
    assert "TaskAnswer(0d3d703e" in capsys.readouterr().out


def test_the_readme_has_these_calls():
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    for call in CALLS:
        assert call in NOTEBOOK
        assert call in block


def test_the_executed_notebook_has_these_calls_and_their_output():
    cells = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text())["cells"]
    code = {
        "".join(cell["source"]): cell["outputs"] for cell in cells if cell["cell_type"] == "code"
    }
    for call in CALLS:
        assert any(call in source for source in code), call
    for source, outputs in code.items():
        assert not [found for found in outputs if found["output_type"] == "error"], source
        assert outputs or source.startswith("@hd.scaling_rule"), source
