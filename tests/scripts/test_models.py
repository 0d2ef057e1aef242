"""Every model and transition, trained and evaluated from the command line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from hrm_deeploop.config import TransitionName
from hrm_deeploop.metrics import read_metrics
from scripts import cli
from scripts.run_config import RunConfig, validate

ROOT = Path(__file__).parents[2]
ENTERS_ONCE = ("vanilla", "hyperloop", "hyperloop_aligned", "operloop", "recirculation")


def run(script, *overrides):
    command = [sys.executable, str(ROOT / "scripts" / f"{script}.py"), *overrides]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_looped_model_goes_through_training_evaluation_alignment_and_a_sweep(tmp_path):
    run_dir = tmp_path / "run"
    model = ["experiment=smoke", "model=looped", "model.prelude_layers=1", "transition=operloop"]
    trained = run("train", *model, f"run_dir={run_dir}", "stop_after=12")
    assert trained.returncode == 0, trained.stderr
    trained = run("train", *model, f"run_dir={run_dir}", "resume=auto", "alignment.every=10")
    assert trained.returncode == 0, trained.stderr
    for halting in ("fixed", "act"):
        result = run("evaluate", f"run={run_dir}", f"halting={halting}", "output=json")
        assert result.returncode == 0, result.stderr
        ladder = json.loads(result.stdout)["ladder"]
        assert set(ladder["all_tests"]) == {"1", "2", "4", "8", "16"}
    result = run("alignment", f"run={run_dir}", "batches=1", "rows=4", "output=json")
    assert result.returncode == 0, result.stderr
    (row,) = json.loads(result.stdout)["rows"]
    assert row["modules"] == ["prelude", "loop"]
    assert (row["rounds_loop"], row["rounds_prelude"]) == (3, 1)
    options = ["experiment=smoke", "model=looped", "total_steps=2", "exponents=[0.5]"]
    result = run("sweep", *options, "depths=[1,2]", f"run_dir={tmp_path / 'sweep'}")
    assert result.returncode == 0, result.stderr
    assert "rounds 2" in result.stdout


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["gradient=all_rounds"], "allowed are last_cycle, last_update, full"),
        (["model=looped", "gradient=full"], "allowed are all_rounds, last_round"),
        (["model=looped", "transition_H=parcae"], "transition_H=parcae: looped has no H"),
        (["model=looped", "scaling=deeploop_asymmetric"], "looped has no H"),
        *(
            ([f"transition={name}", "gradient=last_update"], "takes the input in at the first upd")
            for name in ENTERS_ONCE
        ),
        *(
            (
                ["model=looped", f"transition={name}", "gradient=last_round"],
                "at the first round, which must carry gradient; allowed: all_rounds",
            )
            for name in ENTERS_ONCE
        ),
        *(
            ([f"transition={pair[0]}", f"transition_H={pair[1]}"], "grow without bound")
            for name in ("recirculation", "operloop", "hyperloop", "hyperloop_aligned")
            for pair in ((name, "recirculation"), ("recirculation", name))
        ),
        (
            ["transition=hyperloop", "transition_H=recirculation"],
            "allowed are huginn, vanilla, parcae, parcae_aligned, recurrent_gpt$",
        ),
        (["transition=null"], "expected one of huginn, vanilla"),
        (
            ["transition.name=operloop"],
            "transition is one value .huginn., so there is no key",
        ),
        (["model=looped", "model.rouns=3"], "did you mean rounds"),
        (["model=looped", "model.L_cycles=3"], "no key 'L_cycles' in model; allowed: coda_layers"),
        (["scaling=custom", "scaling.p_L=0.5", "scaling.count=gradient"], "needs scaling.p_H"),
        (["model.name=foo"], "model.name=foo: allowed are 'hrm', 'looped'"),
        (["transition={name:huginn,step:unit}"], "step=unit: huginn has no options"),
        (["transition={name:huginn,stpe:null}"], "transition.stpe=None: there is no such key"),
        (["transition=foo"], "^transition=foo: input should be 'huginn'"),
        (["transition_L=operloop"], "no key 'transition_L' .*; did you mean transition_H or trans"),
        (["scaling=custom"], "needs scaling.p_L and scaling.count, and with model=hrm scaling.p_H"),
        (["model.name=looped"], "a kind of model is chosen by model=FILE"),
        (["model=looped", "model.rounds=0"], "model.rounds=0: input should be greater"),
    ],
)
def test_parts_that_do_not_fit_are_refused(overrides, message):
    def read():
        values = cli.compose_config("train", ["experiment=smoke", *overrides])
        cli.take_output(values)
        return validate(RunConfig, values)

    with pytest.raises(ValueError, match=message) as error:
        read()
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["hrm_tiny", "looped"])
@pytest.mark.parametrize("transition", get_args(TransitionName))
def test_every_transition_trains_by_one_override(tmp_path, model, transition):
    options = ["experiment=smoke", f"model={model}", f"transition={transition}"]
    result = run("train", *options, f"run_dir={tmp_path / 'run'}")
    assert result.returncode == 0, result.stderr
    losses = [row["train/lm_loss"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert losses[-1] < losses[0]
