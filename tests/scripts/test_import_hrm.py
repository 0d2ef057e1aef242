"""A checkpoint of the released HRM code is evaluated, whatever the order of its rows."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from eval.predictions import load_predictions
from hrm_deeploop.device import Ranks
from hrm_deeploop.runs.checkpoint import load_weights
from hrm_deeploop.runs.config import load_config
from hrm_deeploop.runs.training import train_run
from tests.commands import in_process as run

TABLE = "model.inner.puzzle_emb.weights"
NAMES = [
    *("<blank>", "25ff71a9_t6_0213456789", "0d3d703e", "0d3d703e_t3_0123456789"),
    *("25ff71a9", "elsewhere_t1_0123456789", "0d3d703e_t7_0987654321", "elsewhere"),
    *("25ff71a9_t1_0123456789", "0d3d703e_t0_0132456789"),
]
DATA = ["data=arc1-mini", "data.tasks=[0d3d703e,25ff71a9,3c9b0459]", "data.num_aug=3"]


@pytest.fixture
def release(data_dir, tmp_path):
    """Writes a released checkpoint's files with its rows in some order; returns the overrides."""
    recorded = load_file(data_dir / "hrm_parity.safetensors")
    facts = json.loads((data_dir / "hrm_parity_config.json").read_text())
    state = {k.removeprefix("state/"): v for k, v in recorded.items() if k.startswith("state/")}

    def write(order, *, prefix="_orig_mod.", names=NAMES, arch=None):
        folder = tmp_path / "release"
        folder.mkdir(exist_ok=True)
        renamed = {prefix + name: tensor for name, tensor in state.items()}
        renamed[prefix + TABLE] = state[TABLE][order]
        torch.save(renamed, folder / "step_1234")
        (folder / "identifiers.json").write_text(json.dumps([names[i] for i in order]))
        config = {"arch": {**facts, **(arch or {})}, "epochs": 10, "lr": 1e-4, "seed": 0}
        (folder / "all_config.yaml").write_text(json.dumps(config))
        return [
            f"checkpoint={folder / 'step_1234'}",
            f"identifiers={folder / 'identifiers.json'}",
            *DATA,
        ]

    return write, state[TABLE]


def test_rows_follow_their_names_and_the_run_is_evaluated(release, tmp_path):
    write, table = release
    evaluated = []
    for i, prefix in enumerate(("_orig_mod.", "")):
        order = np.random.default_rng(i).permutation(len(NAMES)).tolist()
        run_dir = tmp_path / f"run{i}"
        result = run(
            "import_hrm", *write(order, prefix=prefix), f"run_dir={run_dir}", "output=json"
        )
        assert result.returncode == 0, result.stderr
        said = json.loads(result.stdout)
        assert (said["num_rows"], said["num_tasks"], said["num_tasks_covered"]) == (10, 3, 2)
        assert said["num_covered"] == 7

        checkpoint = run_dir / "checkpoints" / "step_00001234"
        rows = load_weights(checkpoint, "puzzle_embedding")["weight"]
        saved = json.loads((checkpoint / "puzzles.json").read_text())["tasks"]
        first = {}
        for entry in saved:
            first[entry["id"]] = sum(len(e["puzzles"]) for e in saved[: saved.index(entry)])
        assert torch.equal(rows[first["0d3d703e"]], table[NAMES.index("0d3d703e")])
        assert torch.equal(rows[first["elsewhere"]], table[NAMES.index("elsewhere")])

        result = run("evaluate", f"run={run_dir}")
        assert result.returncode == 0, result.stderr
        assert "puzzles have a row among the 9" in result.stderr
        evaluated.append(load_predictions(run_dir / "eval" / "step_00001234" / "predictions.npz"))
    by_vote = []
    for predictions in evaluated:
        keys = zip(
            predictions.task.tolist(),
            predictions.test_index.tolist(),
            predictions.dihedral.tolist(),
            map(tuple, predictions.colors.tolist()),
            strict=True,
        )
        grids = [(g.shape, g.tobytes()) for g in predictions.grids()]
        by_vote.append(
            dict(zip(keys, zip(grids, predictions.halt.tolist(), strict=True), strict=True))
        )
    assert by_vote[0].keys() == by_vote[1].keys()
    for key, (grid, halt) in by_vote[0].items():
        assert by_vote[1][key][0] == grid
        assert by_vote[1][key][1] == pytest.approx(halt, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(order=range(9)), "they are of different data sets"),
        (
            dict(arch={"H_layers": 3}),
            "H.blocks.2.attention.o_proj.weight is None, expected (32, 32)",
        ),
        (dict(arch={"num_heads": 5}), "hidden_size=32 must be a multiple of num_heads=5"),
    ],
)
def test_files_that_do_not_fit_are_refused(release, change, message, tmp_path):
    write, _ = release
    order = list(range(len(NAMES)))
    options = {key: value for key, value in change.items() if key != "order"}
    overrides = write(order, **options)
    if "order" in change:
        path = tmp_path / "release" / "identifiers.json"
        path.write_text(json.dumps(json.loads(path.read_text())[:-1]))
    result = run("import_hrm", *overrides, f"run_dir={tmp_path / 'run'}")
    assert result.returncode == 2
    assert message in result.stderr.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_a_file_that_is_no_checkpoint_is_refused(release, tmp_path):
    write, _ = release
    overrides = write(list(range(len(NAMES))))
    (tmp_path / "release" / "step_1234").write_bytes(b"junk")
    result = run("import_hrm", *overrides, f"run_dir={tmp_path / 'run'}")
    assert result.returncode == 2
    assert "not a readable state dict" in result.stderr.splitlines()[-1]
    missing = run("import_hrm", "checkpoint=nowhere", "identifiers=x", "run_dir=y")
    assert "all_config.yaml: not a readable YAML file" in missing.stderr.splitlines()[-1]


def test_an_imported_run_is_not_trained_further(release, tmp_path):
    write, _ = release
    run_dir = tmp_path / "run"
    assert run("import_hrm", *write(list(range(10))), f"run_dir={run_dir}").returncode == 0
    config = load_config(run_dir).changed(run_dir=str(run_dir), resume="auto")
    with pytest.raises(ValueError, match="imported from HRM; such a run is evaluated"):
        train_run(config, Ranks(device=torch.device("cpu")))
