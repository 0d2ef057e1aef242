"""Comparisons: arms, seeds and a grid, shared by processes, continued, and told honestly."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eval.comparison import comparison_tables, difference_to
from eval.paired import Difference
from hrm_deeploop.runs.cells import _key, cell_name
from hrm_deeploop.runs.comparison import (
    CompareOptions,
    Plan,
    find_baselines,
    parse_share,
    wait_for_cells,
)
from hrm_deeploop.runs.costs import run_costs
from scripts.compare import main as compare_main

ROOT = Path(__file__).parents[2]


def command(*overrides):
    script = str(ROOT / "scripts" / "compare.py")
    return [sys.executable, script, "experiment=smoke", "total_steps=4", *overrides]


def run(*overrides):
    return subprocess.run(command(*overrides), capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Two arms, two points of a grid, two seeds."""
    run_dir = tmp_path_factory.mktemp("compare") / "cmp"
    options = ["data.validation=0.5", "grid={optim.lr:[1e-3,5e-4]}", "seeds=[0,1]"]
    options += [f"run_dir={run_dir}", "output=json"]
    result = run(*options)
    assert result.returncode == 0, result.stderr
    return run_dir, options, json.loads(result.stdout)


def test_a_comparison_states_its_arms_its_choice_and_its_difference(compared):
    run_dir, _, printed = compared
    comparison = json.loads((run_dir / "comparison.json").read_text())
    assert comparison == printed
    assert list(comparison["arms"]) == ["vanilla", "deeploop"]
    assert len(comparison["grid"]) == 4
    for name, arm in comparison["arms"].items():
        own = [cell for cell in comparison["grid"] if cell["arm"] == name]
        assert len(own) == 2
        assert all(cell["validation_loss"] > 0 for cell in own)
        best = max(own, key=lambda c: (c["validation_arc_prize_at_2"], -c["validation_loss"]))
        assert arm["chosen"] == best["point"]
        assert arm["seeds"] == [0, 1]
        assert (arm["steps"], arm["examples"]) == (4, 32)
        for score in ("all_tests", "arc_prize"):
            assert set(arm["ladder"][score]) == {"1", "2", "4", "8", "16"}
    assert comparison["arms"]["vanilla"]["difference"] is None
    differences = comparison["arms"]["deeploop"]["difference"]["all_tests"]["2"]
    assert set(differences) == set(Difference._fields)
    assert differences["low_with_seeds"] <= differences["mean"] <= differences["high_with_seeds"]
    assert comparison_tables(comparison)["all_tests difference with seeds"].rows
    turned = difference_to(comparison, "deeploop")
    assert set(turned["all_tests difference"].rows) == {"vanilla"}
    assert set(turned["arc_prize difference with seeds"].rows) == {"vanilla"}
    chosen = {arm["chosen"]["optim.lr"] for arm in comparison["arms"].values()}
    differ = {"scaling.rule", "optim.lr"} if len(chosen) == 2 else {"scaling.rule"}
    assert set(comparison["config_difference"]) == differ
    written = {path.name for path in run_dir.iterdir() if path.is_file()}
    assert written == {
        *("comparison.json", "comparison.md", "comparison.html", "ladder.png", "curves.png")
    }
    html = (run_dir / "comparison.html").read_text()
    assert "held-out demonstrations by point of the grid" in html
    assert html.count("data:image/png;base64,") == 2


def test_finished_cells_are_read_and_not_run_again(compared):
    run_dir, options, printed = compared
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("cell.json")}
    assert len(before) == 2 * 2 + 2
    again = run(*options)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == printed
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("cell.json")} == before


def test_two_processes_share_the_cells(compared, tmp_path):
    _, options, printed = compared
    own = [option for option in options if not option.startswith("run_dir=")]
    own.append(f"run_dir={tmp_path / 'cmp'}")
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    processes = [subprocess.Popen(command(*own, f"share={i}/2"), **pipes) for i in range(2)]
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    shared = json.loads(outputs[0][0])
    assert outputs[1][0] == ""
    assert "this share is done; share 0 writes the report" in outputs[1][1]
    for name, arm in printed["arms"].items():
        assert shared["arms"][name]["train_loss"] == arm["train_loss"]
        assert shared["arms"][name]["ladder"] == arm["ladder"]


def test_an_equal_budget_of_flops_gives_the_deeper_arm_fewer_steps(tmp_path):
    deeper = "+arms.deeper={scaling:deeploop,model.L_cycles:4}"
    result = run(f"run_dir={tmp_path}", deeper, "budget=flops", "total_steps=12", "output=json")
    assert result.returncode == 0, result.stderr
    arms = json.loads(result.stdout)["arms"]
    assert arms["deeper"]["steps"] < 12 == arms["vanilla"]["steps"] == arms["deeploop"]["steps"]
    assert arms["deeper"]["flops"] == pytest.approx(arms["vanilla"]["flops"], rel=0.1)


def test_what_diverges_is_told_and_never_chosen(tmp_path):
    grid = ["grid={optim.lr:[1e30,1e-3]}", "data.validation=0.5"]
    result = run(f"run_dir={tmp_path}", *grid, "output=json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert {cell["status"] for cell in found["grid"] if cell["point"]["optim.lr"] > 1} == {
        "diverged"
    }
    for arm in found["arms"].values():
        assert arm["chosen"] == {"optim.lr": 0.001}
    boom = "+arms.boom={scaling:deeploop,optim.lr:1e30}"
    result = run(f"run_dir={tmp_path / 'boom'}", boom)
    assert result.returncode == 0, result.stderr
    assert "0 of 1, 1 diverged" in result.stdout
    assert "failures: runs that diverged" in (tmp_path / "boom" / "comparison.md").read_text()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["grid={optim.lr:[1e-3]}"], "choosing vanilla's point needs data.validation above 0"),
        (["share=2/2"], "share=2/2: allowed are 0/2 to 1/2"),
        (["share=x"], "share=x: string should match pattern"),
        (["seeds=[]"], "seeds=[]"),
        (["seeds=[0,1,0]"], "seeds=[0, 1, 0]: 0 is given twice"),
        (["grid={seed:[1,2]}", "data.validation=0.5"], "grid.seed: a grid has keys of a run other"),
        (["grid={optim.lr:[1e-3,0.001]}", "data.validation=0.5"], "0.001 is given twice"),
        (["budget=money"], "budget=money: input should be 'steps', 'examples' or 'flops'"),
        (["+arms.a={seed:1}"], "arms.a: seed given"),
        (
            ["+arms.a={optim.lr:1}", "grid={optim.lr:[1]}", "data.validation=0.5"],
            "arms.a and grid both set optim.lr",
        ),
        (["baseline=deepnorm"], "deepnorm is not among the arms vanilla, deeploop"),
        (["baseline={deeploop:deeploop}"], "deeploop is compared with itself"),
        (["baseline=[vanilla]"], "baseline=['vanilla']: expected an arm, or one for each"),
        (
            ["arms=[vanilla,deeploop,deeploop_mini]"],
            "configs/arms/deeploop.yaml and deeploop_mini.yaml both name an arm deeploop",
        ),
        (["arms=[vanilla,vanilla]"], "both name an arm vanilla"),
        (["seeds=[-1]"], "seeds.0=-1: input should be greater than or equal to 0"),
        (["seeds=[]"], "seeds=[]: expected at least 1"),
        (
            ["budget=flops", "+arms.a={total_steps:3}"],
            "arms.a: budget=flops sets how long a run is, not total_steps",
        ),
        (
            ["budget=examples", "data.validation=0.5", "grid={epochs:[1,2]}"],
            "grid.epochs: budget=examples sets how long a run is",
        ),
        (
            ["grid={optim.lr:[1e-3]}", "data.validation=0.5", "+arms.a={data.validation:0}"],
            "grid: choosing a's point needs data.validation above 0",
        ),
    ],
)
def test_a_mistake_is_one_line(overrides, message, tmp_path):
    given = ["experiment=smoke", "total_steps=4", f"run_dir={tmp_path / 'cmp'}", *overrides]
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        compare_main(given)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "cmp").exists()


def test_each_arm_has_its_baseline():
    arms = ["a", "b", "c", "d"]
    assert find_baselines(arms, None) == {"b": "a", "c": "a", "d": "a"}
    assert find_baselines(arms, "c") == {"a": "c", "b": "c", "d": "c"}
    assert find_baselines(arms, {"b": "a", "d": "c"}) == {"b": "a", "d": "c"}


def test_differences_are_of_the_arms_that_were_asked_for(compared):
    _, options, printed = compared
    result = run(*options, "baseline={vanilla:deeploop}")  # nothing is trained again
    assert result.returncode == 0, result.stderr
    again = json.loads(result.stdout)
    turned = again["arms"]["vanilla"]["difference"]["arc_prize"]["2"]
    first = printed["arms"]["deeploop"]["difference"]["arc_prize"]["2"]
    assert again["arms"]["deeploop"]["difference"] is None
    assert turned["mean"] == -first["mean"]
    assert (turned["won"], turned["lost"]) == (first["lost"], first["won"])
    assert turned["low"] == pytest.approx(-first["high"], abs=1e-12)
    assert [cell["seconds"] for cell in again["cells"]] == [c["seconds"] for c in printed["cells"]]


def test_a_row_of_differences_names_both_arms_where_baselines_differ(compared):
    _, _, comparison = compared
    both = {**comparison["arms"], "vanilla": comparison["arms"]["deeploop"]}
    pairs = {"vanilla": "deeploop", "deeploop": "vanilla"}
    tables = comparison_tables({**comparison, "arms": both, "baselines": pairs})
    assert list(tables["all_tests difference"].rows) == ["vanilla - deeploop", "deeploop - vanilla"]


def test_other_attempts_count_a_finished_cell_anew_and_train_nothing(compared, tmp_path):
    run_dir, options, printed = compared
    result = run(*options, "evaluation.attempts=[1,3]", f"report_dir={tmp_path / 'report'}")
    assert result.returncode == 0, result.stderr
    again = json.loads(result.stdout)
    for name, arm in again["arms"].items():
        assert list(arm["ladder"]["all_tests"]) == ["1", "3"]
        assert arm["seconds"] == printed["arms"][name]["seconds"]
        before = printed["arms"][name]["ladder"]["arc_prize"]
        assert arm["ladder"]["arc_prize"]["1"] == before["1"]
    assert (tmp_path / "report" / "comparison.json").is_file()
    assert (
        json.loads((run_dir / "comparison.json").read_text())["arms"].keys() == again["arms"].keys()
    )


def test_a_finished_cell_of_other_data_is_refused(compared, tmp_path):
    run_dir, options, _ = compared
    shutil.copytree(run_dir, tmp_path / "cmp")
    (manifest,) = (tmp_path / "cmp" / "vanilla").glob("lr0.001-seed0/manifest.json")
    known = json.loads(manifest.read_text())
    known["data"]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(known))
    result = run(*options, f"run_dir={tmp_path / 'cmp'}")
    assert result.returncode == 2
    assert "the data has changed since the run was started" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("budget", "steps"), [("examples", [60, 120, 60, 120]), ("flops", [60, 120, 30, 60])]
)
def test_a_budget_is_equal_at_every_point_of_the_grid(budget, steps, tmp_path):
    """Half the batch takes twice the steps; three updates of L cost twice what one does."""
    options = CompareOptions(
        arms={"a": {"scaling": "vanilla"}, "b": {"optim.global_batch_size": 4}},
        baseline=None,
        seeds=(0,),
        grid={"model.L_cycles": (1, 3)},
        budget=budget,
        share=None,
        run_dir=str(tmp_path),
        report_dir=str(tmp_path),
    )
    overrides = ["experiment=smoke", "data.validation=0.5", "total_steps=60"]
    comparison = Plan(options, overrides)
    costs = [run_costs(cell.config) for cell in comparison.grid_cells()]
    assert [cost["steps"] for cost in costs] == steps
    for cost in costs:
        assert cost[budget] == pytest.approx(costs[0][budget], rel=0.02)


def test_what_is_not_of_every_seed_says_so(compared):
    _, _, comparison = compared
    arms = comparison["arms"]
    broken = {
        **arms["deeploop"],
        **{"num_tested": 1, "num_diverged": 1, "failures": ["seed 1: the loss is nan"]},
    }
    tables = comparison_tables({**comparison, "arms": {**arms, "deeploop": broken}})
    for name in ("all_tests", "arc_prize difference", "all_tests over votes"):
        assert "deeploop (1 of 2)" in tables[name].rows
    assert "1 diverged" in tables["training"].rows["deeploop"][1]
    assert tables["failures"].rows["deeploop"] == ["1", "seed 1: the loss is nan"]
    assert tables["failures"].rows["vanilla"][1].startswith("seed 0: not learning, loss 2.")


def test_kappa_has_a_table_for_every_module_that_was_measured(compared):
    _, _, comparison = compared
    found = {"5": {"kappa_loop": 1.5, "gradient_loop": 0.75, "cosine_loop": 0.5}}
    arms = {name: {**arm, "alignment": found} for name, arm in comparison["arms"].items()}
    tables = comparison_tables({**comparison, "arms": arms})
    assert tables["kappa_loop"].rows["deeploop"] == ["1.50, 0.50, 0.75"]
    assert "kappa_H" not in tables


def test_the_papers_ladder_stands_beside_arc1_evaluation_alone(compared):
    _, _, comparison = compared
    tables = comparison_tables({**comparison, "is_arc1_evaluation": True})
    assert tables["all_tests"].rows["DeepLoop (paper)"][:2] == ["35.50", "39.75"]
    assert "DeepLoop (paper)" not in tables["arc_prize"].rows
    assert "DeepLoop (paper)" not in comparison_tables(comparison)["all_tests"].rows


def test_names_of_cells_and_shares(monkeypatch):
    assert cell_name({"optim.lr": 0.001, "model.L_cycles": 6}, 2) == "lr0.001-L_cycles6-seed2"
    assert cell_name({}, 0) == "seed0"
    assert parse_share("1/3") == (1, 3)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert parse_share(None) == (2, 4)


def test_a_point_is_chosen_by_what_it_solves_then_by_loss(tmp_path):
    options = CompareOptions(
        arms={"a": {"scaling": "vanilla"}},
        baseline=None,
        seeds=(0,),
        grid={"optim.lr": (1e-3, 2e-3, 3e-3, 4e-3)},
        budget="steps",
        share=None,
        run_dir=str(tmp_path),
        report_dir=str(tmp_path),
    )
    comparison = Plan(options, ["experiment=smoke", "data.validation=0.5"])
    found = [(0.2, 0.5), (0.3, 0.9), (0.3, 0.8), None]  # the last one diverged
    for cell, scores in zip(comparison.grid_cells(), found, strict=True):
        validation = scores and {"eval/arc_prize_at_2": scores[0], "eval/loss": scores[1]}
        cell.directory.mkdir(parents=True)
        known = {"key": _key(cell.config), "validation": validation}
        (cell.directory / "cell.json").write_text(json.dumps(known))
    assert comparison.choose() == {"a": {"optim.lr": 3e-3}}


def test_a_share_that_waits_says_for_what(tmp_path, monkeypatch, capsys):
    options = CompareOptions(
        arms={"a": {"scaling": "vanilla"}, "b": {"scaling": "deeploop"}},
        baseline=None,
        seeds=(0, 1),
        grid={},
        budget="steps",
        share=None,
        run_dir=str(tmp_path),
        report_dir=str(tmp_path),
    )
    comparison = Plan(options, ["experiment=smoke"])
    cells = comparison.final_cells(comparison.choose())

    def finish_one(_):
        missing = [cell for cell in cells if not (cell.directory / "cell.json").exists()]
        missing[0].directory.mkdir(parents=True)
        known = {"key": _key(missing[0].config), "test": {}, "failure": None}
        (missing[0].directory / "cell.json").write_text(json.dumps(known))

    monkeypatch.setattr("hrm_deeploop.runs.comparison.time.sleep", finish_one)
    assert len(wait_for_cells(cells, test=True)) == 4
    (line,) = capsys.readouterr().err.splitlines()  # said once in five minutes
    assert "waiting for 4 cells of other shares (a seed0, b seed0, a seed1, ...)" in line
