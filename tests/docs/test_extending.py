"""Every block of docs/extending.md, as a reader runs them: files written, commands run."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```(python|yaml|sh)\n(.*?)```", re.DOTALL)


@pytest.mark.slow
def test_every_example_of_the_page_on_extending_runs(tmp_path):
    blocks = BLOCK.findall((ROOT / "docs" / "extending.md").read_text())
    assert {kind for kind, _ in blocks} == {"python", "yaml", "sh"}
    outputs = {}
    for kind, text in blocks:
        if kind != "sh":
            path = tmp_path / text.splitlines()[0].removeprefix("# ")
            path.parent.mkdir(parents=True, exist_ok=True)
            # A header of Hydra's stands before everything else.
            path.write_text(text if kind == "python" else text.split("\n", maxsplit=1)[1])
            continue
        for line in text.strip().splitlines():
            name, command, *arguments = shlex.split(line)
            assert name == "hrm-deeploop"
            result = subprocess.run(
                [sys.executable, str(ROOT / "scripts" / f"{command}.py"), *arguments],
                **dict(capture_output=True, text=True, timeout=400, cwd=tmp_path),
            )
            assert result.returncode == 0, f"{line}\n{result.stderr}"
            outputs[line] = result.stdout
    (described,) = [out for line, out in outputs.items() if "describe" in line and "pair" in line]
    # N_g = 2 * 3 rounds: alpha = 12^(1/2)
    assert "M_g = 12, N_g = 6" in described
    assert "3.464102" in described
    (parts,) = [out for line, out in outputs.items() if "my_parts" in line]
    assert parts.endswith("that was all\n")
