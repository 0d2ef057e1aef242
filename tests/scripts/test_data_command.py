"""scripts/data.py: validate, leaks, stats, show."""

import json

import pytest

from tests.commands import ROOT, in_process

CASES = ROOT / "tests" / "data" / "cases"


def data(*arguments):
    return in_process("data", *arguments)


def test_validate_lists_all_problems_and_exits_with_1():
    result = data("validate", CASES)
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    assert lines[-1] == "8 problems"
    for name in ("31_wide", "color_10", "empty_grid", "fraction", "missing_test_key"):
        assert sum(f"refuse_{name}.json" in line for line in lines) == 1
    assert not any("accept_" in line for line in lines)


def test_validate_accepts_good_files_and_folders(tmp_path):
    result = data("validate", *sorted(CASES.glob("accept_*.json")), "output=json")
    assert result.returncode == 0
    assert json.loads(result.stdout) == {"problems": [], "num_tasks": 5}
    absent = data("validate", tmp_path / "absent")
    assert absent.returncode == 1
    assert "nothing there" in absent.stdout


def test_validate_prints_a_name_with_odd_characters_on_one_line(tmp_path):
    (tmp_path / "a\nb\udcff.json").write_text("{")
    result = data("validate", tmp_path)
    assert result.returncode == 1
    assert len(result.stdout.splitlines()) == 2


def test_leaks_lists_what_trains_and_what_repeats():
    result = data("leaks", "data=arc1", "data.tasks=[40853293,070dd51e]", "output=json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["across"] == ["test pair 0 of 070dd51e is test pair 0 of 40853293"]
    assert found["equal_tasks"] == [["40853293", "070dd51e"]]
    text = data("leaks", "data=arc1-mini").stdout
    assert "test pair 0 of 0d3d703e is train pair 3 of 0d3d703e" in text
    assert "(leaks): 0" in text


def test_stats_names_sources_sizes_and_what_is_left_out():
    result = data("stats", "data=arc1", "data.canvas=6", "data.num_aug=2")
    assert result.returncode == 0, result.stderr
    for part in ("Apache-2.0, sha256", "59, 13 evaluated", "6 x 6, 36 tokens", "741: "):
        assert part in result.stdout


def test_show_draws_a_task_and_saves_pictures(tmp_path):
    for name in ("task.png", "task.svg"):
        result = data("show", "0d3d703e", "puzzle=3", f"save={tmp_path / name}")
        assert result.returncode == 0, result.stderr
        assert "0d3d703e (training)" in result.stdout
        assert (tmp_path / name).stat().st_size > 1000
    plain = json.loads(data("show", "0d3d703e", "output=json").stdout)
    turned = json.loads(data("show", "0d3d703e", "puzzle=3", "output=json").stdout)
    assert plain["train"][0]["input"] == [[3, 1, 2]] * 3
    assert turned["train"][0]["input"] != plain["train"][0]["input"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected one of validate, leaks, stats, show first, got nothing"),
        (["look"], "expected one of validate, leaks, stats, show first, got look"),
        (["validate"], "validate needs at least one path"),
        (["show"], "show needs one task id"),
        (["show", "nope"], "show: nope not among the 800 tasks of arc1"),
        (["show", "0d3d703e", "puzzle=99999"], "puzzle=99999: 0d3d703e has puzzles 0 to 1000"),
        (["show", "0d3d703e", "save=x.gif"], "save=x.gif: allowed are names that end in .png"),
        (["stats", "data=folder"], "data: source=folder needs folders"),
        (["stats", "data=folder", "data.folders=[nowhere]"], "nowhere: expected a folder"),
        (["stats", "data=arc1", "data.evaluate=most"], "evaluate='most': allowed are evaluation"),
        (["stats", "extra"], "stats: expected key=value, got 'extra'"),
        (["leaks", "data=latest"], "data=latest: there is no such choice"),
    ],
)
def test_a_mistake_is_one_line(arguments, message):
    result = data(*arguments)
    assert result.returncode == 2
    assert message in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
