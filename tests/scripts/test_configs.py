"""Every file of configs/ composes into a valid run; a mistake is one clear line."""

import pytest
import torch

from hrm_deeploop.runs.build import build_network
from hrm_deeploop.runs.checking import validate
from hrm_deeploop.runs.compose import CONFIG_DIR, Composer, compose_config, format_value
from hrm_deeploop.runs.config import RunConfig, load_config, save_config
from hrm_deeploop.runs.costs import describe
from hrm_deeploop.scaling import RULES
from hrm_deeploop.transitions import TRANSITIONS
from scripts import cli

EXPERIMENTS = sorted(path.stem for path in (CONFIG_DIR / "experiment").glob("*.yaml"))
SCALINGS = ["custom", "deeploop", "deeploop_asymmetric", "deeploop_forward", "deepnorm", "vanilla"]
ENTERS_ONCE = ("once_a_cycle", "hyperloop", "hyperloop_aligned", "operloop", "recirculation")
CUSTOM = ["scaling.p_H=0.1", "scaling.p_L=0.2", "scaling.count=forward"]


def run_config(*overrides) -> RunConfig:
    values = compose_config("train", overrides)
    cli.take_output(values)
    return validate(RunConfig, values)


def test_the_promised_experiments_and_scalings_are_there():
    assert set(SCALINGS) <= set(RULES)
    assert {"mini", "smoke", "arc1", "arc2"} <= set(EXPERIMENTS)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_is_valid_with_every_scaling(experiment, scaling):
    custom = CUSTOM if scaling == "custom" else []
    config = run_config(f"experiment={experiment}", f"scaling={scaling}", *custom)
    assert config.scaling.rule == scaling


@pytest.mark.parametrize("experiment", ["arc1", "arc2"])
def test_the_full_experiments_have_hrms_published_hyperparameters(experiment):
    config = run_config(f"experiment={experiment}")
    model, optim = config.model, config.optim
    assert (model.hidden_size, model.num_heads, model.H_layers, model.L_layers) == (512, 8, 4, 4)
    assert (model.H_cycles, model.L_cycles, model.halt_max_steps) == (2, 2, 16)
    assert (model.halt_exploration_prob, model.puzzle_emb_ndim, model.mlp_width) == (0.1, 512, 1536)
    assert (optim.optimizer, optim.global_batch_size, optim.lr) == ("adam_atan2", 768, 1e-4)
    assert (optim.lr_warmup_steps, optim.lr_min_ratio, optim.weight_decay) == (2000, 1.0, 0.1)
    assert (optim.puzzle_emb_lr, optim.puzzle_emb_weight_decay) == (1e-2, 0.1)
    assert (config.data.num_aug, config.data.canvas, config.epochs) == (1000, 30, 100_000)
    assert (config.gradient, model.q_target, config.scaling.rule) == (
        *("last_cycle", "halt_only"),
        "deeploop",
    )


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "arc1-deeploop-seed0"),
        (["scaling=vanilla", "seed=3"], "arc1-vanilla-seed3"),
        (["transition=operloop"], "arc1-deeploop-L-operloop-seed0"),
        (["transition={name:operloop,step:unit}"], "arc1-deeploop-L-operloop-unit-seed0"),
        (["transition_H=parcae"], "arc1-deeploop-H-parcae-seed0"),
        (["gradient=last_update"], "arc1-deeploop-last_update-seed0"),
        (["model=looped"], "arc1-looped-r3-deeploop-seed0"),
        (["model=looped", "model.rounds=5"], "arc1-looped-r5-deeploop-seed0"),
        (
            ["model=looped", "transition=once_a_cycle"],
            "arc1-looped-r3-deeploop-loop-once_a_cycle-seed0",
        ),
        (["run_dir=elsewhere"], "elsewhere"),
    ],
)
def test_runs_of_other_models_have_other_places_by_default(overrides, name):
    expected = name if overrides == ["run_dir=elsewhere"] else f"runs/{name}"
    assert run_config(*overrides).run_dir == expected


def test_scaling_is_all_that_a_preset_changes():
    from eval.compare import config_difference

    configs = {name: run_config("experiment=arc1", f"scaling={name}") for name in SCALINGS[1:]}
    difference = config_difference({name: c.model_dump() for name, c in configs.items()})
    assert set(difference) == {"scaling.rule"}


def test_a_config_survives_its_file(tmp_path):
    config = run_config("experiment=mini", "optim.lr=3e-4")
    save_config(config, tmp_path)
    assert load_config(tmp_path) == config


def test_total_steps_overrides_epochs():
    assert run_config("experiment=arc1").num_steps(3081) == 100_000 * 3081 // 768
    assert run_config("experiment=arc1", "total_steps=7").num_steps(3081) == 7


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "modle.hidden_size=3",
            "there is no key 'modle' in .*; did you mean model?",
        ),
        ("model.hiden_size=3", "there is no key 'hiden_size' in model; did you mean hidden_size?"),
        ("optim.lr.x=3", r"optim.lr is one value \(0.001\), so there is no key"),
        ("+foo=1", "foo=1: there is no such key"),
        ("experiment=nope", "experiment=nope: there is no such choice; .*allowed: arc1, arc1-1gpu"),
        ("scaling=nope", "scaling=nope: there is no such choice; .*allowed: vanilla, deepnorm"),
        ("scaling.rule=nope", "^scaling=nope: there is no such scaling rule; .*allowed: vanilla"),
        ("scaling=custom", "scaling: rule=custom needs scaling.p_L and scaling.count"),
        ("scaling.p_L=0.3", "there is no key 'p_L' in scaling; allowed: rule"),
        ("data=nope", "data=nope: there is no such choice"),
        ("data.source=nope", "data.source=nope: input should be 'arc1', 'arc1-mini', 'arc2'"),
        (
            "gradient=nope",
            "gradient=nope: with model.name=hrm allowed are last_cycle, last_update, full",
        ),
        ("model.hidden_size=33", "hidden_size=33 must be a multiple of num_heads=2"),
        ("model.hidden_size=6", "odd head size of 3"),
        ("model.H_cycles=0", "model.H_cycles=0: input should be greater than or equal to 1"),
        ("model.L_cycles=0", "model.L_cycles=0: input should be greater than or equal to 1"),
        ("model.L_cycles=two", "model.L_cycles=two: input should be a valid integer"),
        ("model.L_cycles=true", "model.L_cycles=True: input should be a valid integer"),
        ("optim.lr=0", "optim.lr=0: input should be greater than 0"),
        ("optim.lr=nan", "optim.lr=nan: input should be a finite number"),
        ("evaluation.votes=5", r"evaluation.votes=5: there are 4 puzzles of a task"),
        ("data.canvas=31", "data.canvas=31: input should be less than or equal to 30"),
        ("data.splits=[]", r"data.splits=\[\]: expected at least 1"),
        ("output=xml", "output=xml: allowed are text and json"),
        ("total_steps", "'total_steps': expected key=value"),
        ("--verbose", "'--verbose': expected key=value"),
        ("model.hidden_size=[1", r"expected key=value"),
    ],
)
def test_a_mistake_is_one_line_that_names_key_value_and_what_is_allowed(override, message):
    with pytest.raises(ValueError, match=message) as error:
        run_config("experiment=smoke", override)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["gradient=all_rounds"], "allowed are last_cycle, last_update, full"),
        (["model=looped", "gradient=full"], "allowed are all_rounds, last_round"),
        (["model=looped", "transition_H=parcae"], "transition_H=parcae: looped has no H"),
        (["model=looped", "scaling=deeploop_asymmetric"], "about H and L: this model has loop"),
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
            "allowed are huginn, once_a_cycle, parcae, parcae_aligned, recurrent_gpt$",
        ),
        (["transition=null"], "expected one of huginn, hyperloop"),
        (
            ["transition.name=operloop"],
            "transition is one value .huginn., so there is no key",
        ),
        (["model=looped", "model.rouns=3"], "did you mean rounds"),
        (["model=looped", "model.L_cycles=3"], "no key 'L_cycles' in model; allowed: coda_layers"),
        (["scaling=custom", "scaling.p_L=0.5", "scaling.count=gradient"], "needs scaling.p_H"),
        (["model.name=foo"], "^model.name=foo: there is no such model; allowed: hrm, looped"),
        (["transition={name:huginn,step:unit}"], "step=unit: huginn has no options"),
        (["transition={name:huginn,stpe:null}"], "^transition: stpe=None: huginn has no options"),
        (["transition=foo"], "^transition=foo: there is no such transition; .*allowed: huginn"),
        (["transition_L=operloop"], "no key 'transition_L' .*; did you mean transition_H or trans"),
        (["scaling=custom"], "needs scaling.p_L and scaling.count"),
        (["model.name=looped"], "model.prelude_layers: a value is required"),
        (["model=looped", "model.rounds=0"], "model.rounds=0: input should be greater"),
    ],
)
def test_parts_that_do_not_fit_are_refused(overrides, message):
    with pytest.raises(ValueError, match=message) as error:
        run_config("experiment=smoke", *overrides)
    assert "\n" not in str(error.value)


def test_an_id_that_looks_like_a_number_is_kept_whole():
    ids = ("00576224", "40853293", "12e45678", "null", "a,b")
    for key in ("data.tasks", "data.evaluate"):
        override = f"{key}=[00576224, 40853293,12e45678,null,'a,b']"
        if key == "data.tasks":
            assert run_config("experiment=smoke", override).data.tasks == ids
        else:
            assert run_config("experiment=smoke", override).data.evaluate == ids
    assert run_config("experiment=smoke", "data.evaluate=0.5").data.evaluate == 0.5


def test_a_missing_value_is_named():
    with pytest.raises(ValueError, match="run: a value is required"):
        compose_config("evaluate", [])


@pytest.mark.parametrize("content", ["{", "- 1", "model: 3", "\x00"])
def test_a_config_file_that_is_none_is_refused(content, tmp_path):
    with pytest.raises(ValueError, match="not a run directory"):
        load_config(tmp_path)
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(ValueError):
        load_config(tmp_path)


@pytest.mark.parametrize(
    "value",
    [
        {"name": "operloop", "streams": 2, "step": "unit"},
        "operloop",
        "a, b",
    ],
)
def test_a_value_survives_as_an_override(value):
    given = f"transition={format_value(value)}"
    assert compose_config("train", ["experiment=smoke", given])["transition"] == value


def test_every_file_of_arms_is_one():
    for path in sorted((CONFIG_DIR / "arms").glob("*.yaml")):
        values = compose_config("compare", ["experiment=smoke", f"arms=[{path.stem}]"])
        assert values["arms"]
        looped = any("model.rounds" in own for own in values["arms"].values())
        composer = Composer("train", ["experiment=smoke", *(["model=looped"] if looped else [])])
        for name, own in values["arms"].items():
            composed = composer.values(own)
            cli.take_output(composed)
            assert validate(RunConfig, composed), name


@pytest.mark.parametrize("given", ["", "format: 2\n"])
def test_a_file_of_another_format_is_refused(given, tmp_path):
    save_config(run_config("experiment=smoke"), tmp_path)
    path = tmp_path / "config.yaml"
    path.write_text(path.read_text().replace("format: 1\n", given))
    with pytest.raises(ValueError, match="this version reads format 1"):
        load_config(tmp_path)


def test_a_change_is_checked_as_the_configuration_was():
    config = run_config("experiment=smoke", "dtype=float32")
    with pytest.raises(ValueError, match="attention=flash computes in bfloat16"):
        config.changed(attention="flash")
    assert config.changed(seed=3).seed == 3
    assert config.changed(seed=3).scaling == config.scaling


@pytest.mark.parametrize("transition", list(TRANSITIONS))
@pytest.mark.parametrize("model", ["hrm_tiny", "looped"])
def test_describe_takes_every_model_with_every_transition(model, transition):
    shape = ("model.rounds=5",) if model == "looped" else ("model.L_cycles=5",)
    overrides = ("experiment=smoke", f"model={model}", f"transition={transition}", *shape)
    config = run_config(*overrides)
    described = describe(config, 1)
    facts = described.to_json()
    revisited = "loop" if model == "looped" else "L"
    assert facts[f"R_g_{revisited}"] == 5
    network = build_network(config, torch.device("cpu"))
    assert facts["params"]["core"] == sum(p.numel() for p in network.parameters())
    assert f"transition {transition}" in str(described)
    plain = describe(run_config(*overrides, "transition=huginn"), 1).to_json()
    added = sum(p.numel() for t in network.transitions.values() for p in t.parameters())
    assert facts["params"]["core"] - plain["params"]["core"] == added
    flops = [found["flops"]["per_example_forward"] for found in (facts, plain)]
    assert flops[0] > flops[1] if added else flops[0] == flops[1]
    if transition == "recurrent_gpt":
        noise = network.num_noisy_updates * (36 + 1) * 32 * network.dtype.itemsize
        activations = [f["memory_per_rank"]["activations"] for f in (facts, plain)]
        assert activations[0] >= activations[1] + 8 * noise
