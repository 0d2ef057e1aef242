"""The notebook of the README and of docs/quickstart.ipynb, run as written, shrunken."""

import json
import re
import shutil
from pathlib import Path

import pytest

import hrm_deeploop as hd
from hrm_deeploop.runs import compose

ROOT = Path(__file__).parents[2]


def readme_block():
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return block


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
    exec(readme_block(), namespace)
    assert repr(namespace["run"]).startswith("Run(runs/demo/deeploop/seed0: arc1-mini, hrm")
    assert namespace["mine"].config.scaling.rule == "half_h"
    assert list(namespace["result"].arms) == ["vanilla", "mine"]
    assert namespace["result"].arms["mine"].seeds == (0, 1, 2)
    assert "TaskAnswer(0d3d703e" in capsys.readouterr().out


def test_the_notebook_is_the_readmes_with_its_output():
    notebook = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    code = "\n".join("".join(cell["source"]) for cell in cells)
    without_comments = re.sub(r" +#[^\n]*", "", readme_block())
    for line in without_comments.splitlines():
        for statement in line.split("; "):
            assert statement.strip().replace('"mini"', '"demo"') in code
    for cell in cells[1:]:
        assert cell["outputs"] or "def half_h" in "".join(cell["source"])
