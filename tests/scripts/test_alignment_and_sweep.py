"""scripts/alignment.py and scripts/sweep.py, as a user runs them."""

import json
import re

import pytest

from eval.comparison import CellResult, Comparison
from eval.plots import plot_sweep
from hrm_deeploop.hrm import HRM
from hrm_deeploop.runs.alignment import AlignmentResult, AlignmentRow, _row_names
from hrm_deeploop.runs.metrics import read_metrics
from hrm_deeploop.runs.sweep import (
    Sweep,
    SweepOptions,
    SweepRow,
    summarize,
    sweep_points,
)
from scripts.sweep import main as sweep_main
from tests.commands import ROOT
from tests.commands import in_process as run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two smoke runs of different depth that measured alignment on the way."""
    found = []
    for depth in (2, 3):
        run_dir = tmp_path_factory.mktemp("runs") / f"L{depth}"
        result = run(
            *("train", "experiment=smoke", f"model.L_cycles={depth}", f"run_dir={run_dir}"),
            *("alignment.every=10", "alignment.rows=4", "alignment.segment=2"),
            "optim.ema_rate=null",
        )
        assert result.returncode == 0, result.stderr
        found.append(run_dir)
    return found


def test_training_logs_kappa_on_the_way(runs):
    for depth, run_dir in zip((2, 3), runs, strict=True):
        rows = [r for r in read_metrics(run_dir / "metrics.jsonl") if "alignment/kappa_L" in r]
        assert [row["step"] for row in rows] == [10, 20]
        for row in rows:
            assert 0 < row["alignment/kappa_L"] <= depth
            assert 0 < row["alignment/kappa_H"] <= 1 + 1e-6
            assert 0 < row["alignment/gradient_L"] <= 1 + 1e-6
            assert -1 / (depth - 1) <= row["alignment/cosine_L"] <= 1 + 1e-6


def test_training_logs_what_the_script_measures_at_its_checkpoint(runs):
    options = ("rows=4", "batches=1", "segment=2", "output=json")
    result = run("alignment", f"run={runs[1]}", "checkpoint=all", *options)
    logged = [r for r in read_metrics(runs[1] / "metrics.jsonl") if "alignment/kappa_L" in r]
    for row, measured in zip(logged, json.loads(result.stdout)["rows"], strict=True):
        for key in ("kappa_H", "kappa_L", "cosine_L", "gradient_L"):
            name, _, module = key.partition("_")
            expected = measured["modules"][module][name]
            assert row[f"alignment/{key}"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("key", "allowed"),
    [("alignment.segment=4", "allowed are 1 to 3"), ("attention=flash", "allowed are auto, sdpa")],
)
def test_an_alignment_that_cannot_be_measured_is_refused_before_training(key, allowed, tmp_path):
    own = ("experiment=smoke", "alignment.every=10", f"run_dir={tmp_path}/run")
    refused = run("train", *own, key)
    assert refused.returncode == 2
    assert allowed in refused.stderr.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_alignment_of_several_depths_gives_gamma_and_the_threshold(runs, tmp_path):
    out = tmp_path / "alignment.json"
    paths = f"run=[{','.join(map(str, runs))}]"
    result = run("alignment", paths, "batches=2", "rows=4", f"out={out}", "output=json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert json.loads(out.read_text()) == found
    assert [row["modules"]["L"]["rounds"] for row in found["rows"]] == [2, 3]
    assert found["p_star"] == pytest.approx((1 + found["gamma"]) / 4)
    for row in found["rows"]:
        L = row["modules"]["L"]
        assert L["kappa"] <= L["rounds"]
        assert set(L["sublayers"]) == {"0.attention", "0.mlp"}
    loaded = AlignmentResult.load(out)
    for line in loaded.rows:
        assert line.bound == pytest.approx(line.modules["H"].bound + line.modules["L"].bound)


def test_every_run_has_a_row_of_its_own():
    rows = [
        AlignmentRow(
            run=f"runs/{depth}/vanilla/seed0",
            checkpoint="step_1",
            rule="vanilla",
            revisited="L",
            modules={},
        )
        for depth in (2, 6)
    ]
    assert _row_names(rows) == [f"{depth}/vanilla/seed0/step_1" for depth in (2, 6)]
    assert _row_names(rows[:1]) == ["vanilla/seed0/step_1"]
    twice = run("alignment", "run=[a,a]")
    assert "a is given twice" in twice.stderr.splitlines()[-1]


def test_alignment_of_every_checkpoint_is_a_line_each(runs):
    result = run("alignment", f"run={runs[0]}", "checkpoint=all", "batches=1", "rows=4")
    assert result.returncode == 0, result.stderr
    assert "no gamma" not in result.stdout  # one depth
    assert "step_00000010" in result.stdout
    assert "step_00000020" in result.stdout
    one = run("alignment", f"run={runs[0]}", "batches=1", "rows=4", "segment=3")
    assert "L 0.attention" in one.stdout
    refused = run("alignment", f"run={runs[0]}", "segment=4")
    assert refused.returncode == 2
    assert "segment=4: allowed are 1 to 3" in refused.stderr.splitlines()[-1]


@pytest.mark.slow
def test_gamma_is_not_given_for_runs_that_differ_otherwise(runs, tmp_path):
    other = tmp_path / "other"
    run("train", "experiment=smoke", "model.L_cycles=3", "gradient=full", f"run_dir={other}")
    few = ("batches=1", "rows=4")
    result = run("alignment", f"run=[{runs[0]},{other}]", *few)
    assert "no gamma: the runs differ in gradient" in result.stdout
    assert not re.search(r"\d ±", result.stdout)  # one batch has no spread
    both = f"run=[{runs[0]},{runs[1]}]"
    result = run("alignment", both, *few, "checkpoint=all")
    assert "no gamma: checkpoint=all takes several steps of a run" in result.stdout


def test_runs_are_found_through_their_comparisons(runs, tmp_path):
    for depth, run_dir in zip((2, 3), runs, strict=True):
        comparison = tmp_path / f"C{depth}"
        (comparison / "deeploop").mkdir(parents=True)
        (comparison / "deeploop" / "lr0.1-seed0").symlink_to(run_dir)
        known = Comparison.load(ROOT / "docs" / "results" / "L2-kappa.json")
        moved = {"run_dirs": ("once/elsewhere/deeploop/lr0.1-seed0",)}
        arm = known.arms["deeploop"].model_copy(update=moved)
        known.model_copy(update={"arms": {"deeploop": arm}}).save(comparison / "comparison.json")
    both = f"run=[{tmp_path / 'C2'},{tmp_path / 'C3'}]"
    options = (both, "batches=2", "rows=4", "output=json")
    found = json.loads(run("alignment", *options, "arm=deeploop").stdout)
    assert [row["modules"]["L"]["rounds"] for row in found["rows"]] == [2, 3]
    assert found["gamma"] is not None
    assert all(row["modules"]["L"]["kappa_sd"] > 0 for row in found["rows"])
    refused = run("alignment", *options, "arm=vanilla")
    assert refused.returncode == 2
    assert f"arm=vanilla: {tmp_path / 'C2'} has deeploop" in refused.stderr.splitlines()[-1]
    refused = run("alignment", f"run={runs[0]}", "arm=vanilla")
    assert "is no comparison, it has no comparison.json" in refused.stderr.splitlines()[-1]


def row(depth, p, statuses, losses=(), kappas=()):
    return SweepRow(
        depth=depth,
        p=p,
        num_seeds=len(statuses),
        rounds=depth,
        share_trained=statuses.count("trained") / len(statuses),
        train_loss=tuple(losses),
        validation_loss=(),
        kappa=tuple(kappas),
        status=tuple(statuses),
    )


def sweep_of(rows, which="both", other=0.5):
    return Sweep(which=which, other=other, depth_key="L_cycles", revisited="L", rows=tuple(rows))


def test_a_sweeps_rows_count_the_seeds_that_train(tmp_path):
    options = SweepOptions(
        exponents=(0.0, 0.5),
        which="both",
        other=0.5,
        depths=(2,),
        seeds=(0, 1, 2),
        workers=1,
        cluster=None,
        address=None,
        run_dir=str(tmp_path),
    )
    cells = []
    for arm, losses in {"p0.0-depth2": (0.4, 2.1, None), "p0.5-depth2": (0.5, 0.6, 0.7)}.items():
        for seed, loss in enumerate(losses):
            run_dir = tmp_path / arm / str(seed)
            run_dir.mkdir(parents=True)
            measured = [{"step": s, "alignment/kappa_L": s / 10 + seed} for s in (1, 2)]
            (run_dir / "metrics.jsonl").write_text("\n".join(map(json.dumps, measured)) + "\n")
            status = "diverged" if loss is None else "trained" if loss < 1 else "not learning"
            scores = dict(all_tests_at_2=0.0, arc_prize_at_2=0.0)
            cells.append(
                CellResult(
                    **dict(arm=arm, point={}, seed=seed, key="", steps=1, examples=1, flops=1),
                    **dict(params=1, test=None, failure=None, seconds=1.0),
                    status=status,
                    train_loss=loss,
                    first_train_loss=None,
                    validation=None if loss is None else {"loss": 2 * loss, **scores},
                    run_dir=str(run_dir),
                )
            )
    first, second = summarize(options, cells, {2: 4}, HRM).rows
    assert first.share_trained == pytest.approx(1 / 3)
    assert (first.train_loss, first.validation_loss, first.kappa) == ((0.4,), (0.8,), (0.2,))
    assert first.status == ("trained", "not learning", "diverged")
    assert second.share_trained == 1
    assert second.train_loss == (0.5, 0.6, 0.7)
    assert second.kappa == pytest.approx([0.2, 1.2, 2.2])
    assert {line.rounds for line in (first, second)} == {4}


def test_the_boundary_is_where_every_seed_trains_from_there_on(tmp_path):
    all_train, some, none = ["trained"] * 2, ["trained", "diverged"], ["diverged"] * 2
    rows = [
        *(row(2, p, s) for p, s in ((0, some), (0.25, all_train), (0.5, all_train))),
        *(row(4, p, s) for p, s in ((0, all_train), (0.25, some), (0.5, all_train))),
        *(row(8, p, s) for p, s in ((0, none), (0.25, all_train), (0.5, none))),
        *(row(9, p, none) for p in (0, 0.25, 0.5)),
    ]
    sweep = sweep_of(rows)
    assert sweep.boundaries == {2: 0.25, 4: 0.5, 8: 0.25, 9: None}
    plot_sweep(sweep_points(sweep), sweep.boundaries, "L_cycles", tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").stat().st_size > 0
    sweep.save(tmp_path / "sweep.json")
    assert Sweep.load(tmp_path / "sweep.json") == sweep


def test_the_threshold_follows_from_kappa_over_depths():
    rows = [row(d, 0.5, ["trained"], [1.0], [2 * d**0.5, 2 * d**0.5]) for d in (2, 8)]
    rows += [row(2, 0.25, ["trained"], [1.0], [1.0])]
    sweep = sweep_of(rows)
    assert set(sweep.thresholds) == {0.5}
    assert sweep.thresholds[0.5] == pytest.approx((0.5, 1.5 / 4))
    tables = sweep.tables()
    assert tables["threshold"].rows == {"gamma": ["0.50"], "p*": ["0.38"]}
    of_H = sweep_of(rows, which="H", other=0.25).tables()
    assert "threshold" not in of_H
    assert of_H["share trained"].caption.endswith("p of H, L at p=0.25")
    assert tables["boundary"].rows == {"L_cycles 2": ["0.25"], "L_cycles 8": ["0.5"]}


def test_a_sweep_tells_what_share_trains_and_what_loss_it_has(tmp_path):
    options = ["experiment=smoke", "total_steps=4", "exponents=[0,0.5]", "depths=[1,2]"]
    options += ["seeds=[0,1]", "which=L", "workers=1", f"run_dir={tmp_path / 'sweep'}"]
    result = run("sweep", *options, "output=json")
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert [(row["depth"], row["p"]) for row in rows] == [(1, 0), (1, 0.5), (2, 0), (2, 0.5)]
    for row in rows:
        assert row["num_seeds"] == 2
        assert row["share_trained"] == row["status"].count("trained") / 2
        assert len(row["train_loss"]) == row["status"].count("trained")
    config = (tmp_path / "sweep" / "p0.5-depth2" / "seed1" / "config.yaml").read_text()
    assert "p_H: 0.5" in config
    assert "L_cycles: 2" in config
    assert (tmp_path / "sweep" / "sweep.png").is_file()
    again = run("sweep", *options, "output=json")
    assert json.loads(again.stdout)["rows"] == rows
    twice = run("sweep", "experiment=smoke", "depths=[2,2]")
    assert "depths=[2, 2]: 2 is given twice" in twice.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("which=X", "which=X: input should be 'both', 'H' or 'L'"),
        ("exponents=0.5", "exponents=0.5: expected a list, exponents=[0.5]"),
        ("exponents=null", "exponents=None: expected a list"),
        ("exponents=[a]", "exponents.0=a: input should be a valid number"),
        ("exponents=[9]", "exponents.0=9.0: input should be less than or equal to 4"),
        ("depths=[0]", "depths.0=0: input should be greater than 0"),
    ],
)
def test_a_sweeps_mistake_is_one_line(override, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        sweep_main(["experiment=smoke", override])
    assert "more)" not in str(error.value)
