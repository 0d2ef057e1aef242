"""Comparisons: arms, seeds and a grid, shared by processes, continued, and told honestly."""

import json
import re
import shutil

import pytest

from eval.comparison import CellResult, Comparison, difference_to
from eval.paired import Difference, compare_ranks
from hrm_deeploop.runs.cells import _key, cell_name
from hrm_deeploop.runs.comparison import (
    CompareOptions,
    Plan,
    find_baselines,
    plan_comparison,
)
from hrm_deeploop.runs.compose import Composer
from hrm_deeploop.runs.costs import run_costs
from scripts.compare import main as compare_main
from tests.commands import ROOT, in_a_process, in_process

OWN = ("experiment=smoke", "total_steps=4", "workers=1")


def run(*overrides):
    return in_process("compare", *OWN, *overrides)


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
    assert set(differences) == set(Difference.model_fields)
    assert differences["low_with_seeds"] <= differences["mean"] <= differences["high_with_seeds"]
    loaded = Comparison.load(run_dir / "comparison.json")
    assert loaded.tables()["all_tests difference with seeds"].rows
    turned = difference_to(loaded, "deeploop")
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


@pytest.mark.slow
def test_cells_side_by_side_have_the_numbers_of_cells_one_by_one(compared, tmp_path):
    _, options, printed = compared
    own = [option for option in options if not option.startswith("run_dir=")]
    here = (*OWN, *own, f"run_dir={tmp_path / 'cmp'}", "workers=2")
    result = in_a_process("compare", *here, variables={"OMP_NUM_THREADS": "1"})
    assert result.returncode == 0, result.stderr
    for name, arm in printed["arms"].items():
        found = json.loads(result.stdout)["arms"][name]
        assert found["train_loss"] == pytest.approx(arm["train_loss"], rel=1e-5)
        assert found["num_tested"] == arm["num_tested"] == 2


def test_any_two_arms_have_a_difference(compared):
    comparison = Comparison.from_json(json.dumps(compared[2]), "printed")
    stored = comparison.arms["deeploop"].difference.all_tests[2]
    assert comparison.difference("deeploop") == stored
    turned = comparison.difference("vanilla", baseline="deeploop")
    assert (turned.mean, turned.won, turned.lost) == (-stored.mean, stored.lost, stored.won)
    ranks = [comparison.truth_ranks(name) for name in ("deeploop", "vanilla")]
    by_hand = compare_ranks(*ranks, [1]).arc_prize[1]
    assert comparison.difference("deeploop", attempts=1, score="arc_prize") == by_hand
    with pytest.raises(ValueError, match="vanilla is compared with no other arm"):
        comparison.difference("vanilla")
    with pytest.raises(ValueError, match="no results of an arm 'x'; there are vanilla, deeploop"):
        comparison.difference("x", baseline="vanilla")
    assert "Comparison(all_tests at K=2" in repr(comparison)
    assert comparison._repr_html_().count("<table>") == len(comparison.tables())


@pytest.mark.slow
def test_a_sweep_of_nothing_evaluated_ends_with_what_was_validated(tmp_path):
    options = ["data.evaluate=none", "data.validation=0.5", "grid={optim.lr:[1e-3]}"]
    result = run(f"run_dir={tmp_path}", *options)
    assert result.returncode == 2  # no test pairs to compare
    assert "no task is evaluated with data.evaluate=none" in result.stderr.splitlines()[-1]
    own = [*OWN, "exponents=[0.5]", *options[:2], f"run_dir={tmp_path / 'sweep'}", "output=json"]
    swept = in_process("sweep", *own)
    assert swept.returncode == 0, swept.stderr
    (row,) = json.loads(swept.stdout)["rows"]
    assert row["num_seeds"] == 1


def test_an_equal_budget_of_flops_gives_the_deeper_arm_fewer_steps(tmp_path):
    deeper = "+arms.deeper={scaling:deeploop,model.L_cycles:4}"
    result = run(f"run_dir={tmp_path}", deeper, "budget=flops", "total_steps=12", "output=json")
    assert result.returncode == 0, result.stderr
    arms = json.loads(result.stdout)["arms"]
    assert arms["deeper"]["steps"] < 12 == arms["vanilla"]["steps"] == arms["deeploop"]["steps"]
    assert arms["deeper"]["flops"] == pytest.approx(arms["vanilla"]["flops"], rel=0.1)


@pytest.mark.slow
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
        (["workers=0"], "workers"),
        (["address=auto"], "address=auto needs cluster=ray"),
        (["share=0/2"], "there is no key 'share'"),
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
    comparison = Comparison.from_json(json.dumps(compared[2]), "printed")
    both = {**comparison.arms, "vanilla": comparison.arms["deeploop"]}
    pairs = {"vanilla": "deeploop", "deeploop": "vanilla"}
    tables = comparison.model_copy(update={"arms": both, "baselines": pairs}).tables()
    assert list(tables["all_tests difference"].rows) == ["vanilla - deeploop", "deeploop - vanilla"]


def test_another_comparison_is_stated_in_a_line_beside_this_one(tmp_path):
    other = ROOT / "docs" / "results" / "demo.json"
    options = ["total_steps=1", f"run_dir={tmp_path}", f"beside={other}"]
    printed = run(*options).stdout.splitlines()
    (line,) = [line for line in printed if line.startswith("beside, from")]
    assert line == f"beside, from {other}: {Comparison.load(other)!r}"
    assert len(line) < 300


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
        workers=1,
        cluster=None,
        address=None,
        run_dir=str(tmp_path),
        report_dir=str(tmp_path),
    )
    overrides = ["experiment=smoke", "data.validation=0.5", "total_steps=60"]
    comparison = Plan(options, Composer("compare", overrides))
    costs = [run_costs(cell.config) for cell in comparison.grid_cells()]
    assert [cost.steps for cost in costs] == steps
    for cost in costs:
        assert getattr(cost, budget) == pytest.approx(getattr(costs[0], budget), rel=0.02)


def test_what_is_not_of_every_seed_says_so(compared):
    comparison = Comparison.from_json(json.dumps(compared[2]), "printed")
    broken = comparison.arms["deeploop"].model_copy(
        update={"num_tested": 1, "num_diverged": 1, "failures": ("seed 1: the loss is nan",)}
    )
    arms = {**comparison.arms, "deeploop": broken}
    tables = comparison.model_copy(update={"arms": arms}).tables()
    for name in ("all_tests", "arc_prize difference", "all_tests over votes"):
        assert "deeploop (1 of 2)" in tables[name].rows
    assert "1 diverged" in tables["training"].rows["deeploop"][1]
    assert tables["failures"].rows["deeploop"] == ["1", "seed 1: the loss is nan"]
    assert tables["failures"].rows["vanilla"][1].startswith("seed 0: not learning, loss 2.")


def test_kappa_has_a_table_for_every_module_that_was_measured(compared):
    comparison = Comparison.from_json(json.dumps(compared[2]), "printed")
    found = {5: {"kappa_loop": 1.5, "gradient_loop": 0.75, "cosine_loop": 0.5}}
    arms = {
        name: arm.model_copy(update={"alignment": found}) for name, arm in comparison.arms.items()
    }
    tables = comparison.model_copy(update={"arms": arms}).tables()
    assert tables["kappa_loop"].rows["deeploop"] == ["1.50, 0.50, 0.75"]
    assert "kappa_H" not in tables


def test_the_papers_ladder_stands_beside_arc1_evaluation_alone(compared):
    comparison = Comparison.from_json(json.dumps(compared[2]), "printed")
    tables = comparison.model_copy(update={"is_arc1_evaluation": True}).tables()
    assert tables["all_tests"].rows["DeepLoop (paper)"][:2] == ["35.50", "39.75"]
    assert "DeepLoop (paper)" not in tables["arc_prize"].rows
    assert "DeepLoop (paper)" not in comparison.tables()["all_tests"].rows


def test_names_of_cells(monkeypatch):
    assert cell_name({"optim.lr": 0.001, "model.L_cycles": 6}, 2) == "lr0.001-L_cycles6-seed2"
    assert cell_name({}, 0) == "seed0"
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="compare is started once, without torchrun"):
        plan_comparison(Composer("compare", ["experiment=smoke"]))


def test_a_point_is_chosen_by_what_it_solves_then_by_loss(tmp_path):
    options = CompareOptions(
        arms={"a": {"scaling": "vanilla"}},
        baseline=None,
        seeds=(0,),
        grid={"optim.lr": (1e-3, 2e-3, 3e-3, 4e-3)},
        budget="steps",
        workers=1,
        cluster=None,
        address=None,
        run_dir=str(tmp_path),
        report_dir=str(tmp_path),
    )
    comparison = Plan(options, Composer("compare", ["experiment=smoke", "data.validation=0.5"]))
    found = [(0.2, 0.5), (0.3, 0.9), (0.3, 0.8), None]  # the last one diverged
    for cell, scores in zip(comparison.grid_cells(), found, strict=True):
        validation = scores and dict(arc_prize_at_2=scores[0], all_tests_at_2=0.0, loss=scores[1])
        cell.directory.mkdir(parents=True)
        CellResult(
            **dict(arm="a", point=cell.point, seed=0, key=_key(cell.config), run_dir="x"),
            **dict(steps=1, examples=1, flops=1, params=1, test=None, failure=None),
            **dict(status="trained", train_loss=1.0, first_train_loss=None, seconds=1.0),
            validation=validation,
        ).save(cell.directory / "cell.json")
    assert comparison.choose() == {"a": {"optim.lr": 3e-3}}
