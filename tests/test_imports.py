"""The import rule, and that devices are named in one file."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What the modules of a floor may import of ours; `hrm_deeploop` is the part of it below `runs`.
ALLOWED = {
    "arc_data": {"arc_data"},
    "hrm_deeploop": {"hrm_deeploop"},
    "eval": {"arc_data", "eval"},
    "hrm_deeploop.runs": {"arc_data", "hrm_deeploop", "eval", "hrm_deeploop.runs"},
    "scripts": {"hrm_deeploop", "hrm_deeploop.runs", "arc_data", "eval", "scripts"},
}
COMPOSING = {"hydra", "omegaconf"}
SOURCES = [
    path
    for package in ("arc_data", "hrm_deeploop", "eval", "scripts")
    for path in sorted((ROOT / package).rglob("*.py"))
]


def floor(module: str) -> str:
    """The floor of a module of ours, by its dotted name."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[:2] == ["hrm_deeploop", "runs"] else parts[0]


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {floor(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(floor(node.module))
    return names


def test_the_packages_are_found():
    assert len(SOURCES) > 30


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_what_its_floor_may(path):
    own = floor(".".join(path.relative_to(ROOT).with_suffix("").parts))
    if path == ROOT / "hrm_deeploop" / "__init__.py":
        own = "hrm_deeploop.runs"  # the public names, which are loaded on first use
    names = imported(path)
    assert names & ALLOWED.keys() <= ALLOWED[own]
    if path.name not in ("compose.py", "overrides.py"):
        assert not names & COMPOSING
    if own in ("arc_data", "eval"):
        assert "torch" not in names


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_but_device_names_a_device(path):
    if path.name == "device.py":
        return
    code = re.sub(r'""".*?"""|#[^\n]*', "", path.read_text(), flags=re.DOTALL)
    assert not re.search(r"\bcuda\b|\bmps\b|nccl|gloo", code.replace("CUDA", ""))
