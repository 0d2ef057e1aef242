"""The import rule, and that devices are named in one file."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "arc_data": {"arc_data"},
    "hrm_deeploop": {"hrm_deeploop"},
    "eval": {"arc_data", "hrm_deeploop", "eval"},
    "scripts": {"arc_data", "hrm_deeploop", "eval", "scripts"},
}
SCRIPTS_ONLY = {"hydra", "omegaconf"}
SOURCES = [path for package in ALLOWED for path in sorted((ROOT / package).rglob("*.py"))]


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_the_packages_are_found():
    assert len(SOURCES) > 30


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_what_its_package_may(path):
    package, names = path.relative_to(ROOT).parts[0], imported(path)
    assert names & ALLOWED.keys() <= ALLOWED[package]
    if package != "scripts":
        assert not names & SCRIPTS_ONLY
    if package == "arc_data":
        assert "torch" not in names


def test_eval_touches_torch_in_one_file():
    assert [p.name for p in (ROOT / "eval").glob("*.py") if "torch" in imported(p)] == [
        "predict.py"
    ]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_but_device_names_a_device(path):
    if path.name == "device.py":
        return
    code = re.sub(r'""".*?"""|#[^\n]*', "", path.read_text(), flags=re.DOTALL)
    assert not re.search(r"\bcuda\b|\bmps\b|nccl|gloo", code.replace("CUDA", ""))
