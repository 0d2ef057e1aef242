"""Checkpoints: complete or absent, checked on load, and nothing in them runs."""

import pickle

import pytest
import torch

from hrm_deeploop.runs import checkpoint as module
from hrm_deeploop.runs.checkpoint import (
    list_checkpoints,
    load_into,
    load_training_state,
    load_weights,
    prune_checkpoints,
    save_checkpoint,
)


def save(root, step=7, value=1.0):
    return save_checkpoint(
        root,
        step,
        weights={"model": {"weight": torch.full((2, 3), value)}},
        training_state={"step": step, "carry": {"z": torch.ones(2)}},
        texts={"puzzles.json": "{}"},
    )


def test_a_checkpoint_holds_what_was_saved(tmp_path):
    path = save(tmp_path)
    assert path.name == "step_00000007"
    assert sorted(p.name for p in path.iterdir()) == [
        "model.safetensors",
        "puzzles.json",
        "training_state.pt",
    ]
    assert torch.equal(load_weights(path, "model")["weight"], torch.ones(2, 3))
    assert load_training_state(path)["step"] == 7
    assert list_checkpoints(tmp_path) == {7: path}


def test_saving_a_step_again_replaces_it(tmp_path):
    save(tmp_path)
    path = save(tmp_path, value=2.0)
    assert load_weights(path, "model")["weight"].unique().tolist() == [2.0]


def test_a_failure_while_writing_leaves_the_earlier_ones_and_no_new_one(tmp_path, monkeypatch):
    save(tmp_path, step=1)

    def full_disk(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.torch, "save", full_disk)
    with pytest.raises(ValueError, match=r"could not be written .*No space left.* intact"):
        save(tmp_path, step=2)
    assert list(list_checkpoints(tmp_path)) == [1]
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]  # nothing half-written
    save(tmp_path, step=2)
    assert list(list_checkpoints(tmp_path)) == [1, 2]


def test_left_overs_of_a_killed_run_are_no_obstacle(tmp_path):
    for name in ("step_00000007.partial", "step_00000007.replaced"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"half")
    assert list_checkpoints(tmp_path) == {}
    save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000007"]


def test_pruning_keeps_the_last_the_best_and_every_nth(tmp_path):
    for step in range(10, 80, 10):
        save(tmp_path, step=step)
    prune_checkpoints(tmp_path, keep_last=2, keep_every=30, keep={20})
    assert list(list_checkpoints(tmp_path)) == [20, 30, 60, 70]
    prune_checkpoints(tmp_path, keep_last=1, keep_every=None, keep=set())
    assert list(list_checkpoints(tmp_path)) == [70]


def test_checkpoints_are_listed_by_step_and_others_ignored(tmp_path):
    for step in (100, 20, 3):
        save(tmp_path, step=step)
    (tmp_path / "step_00000009.partial").mkdir()
    (tmp_path / "step_x").mkdir()
    (tmp_path / "step_00000011").write_text("a file")
    assert list(list_checkpoints(tmp_path)) == [3, 20, 100]
    assert list_checkpoints(tmp_path / "absent") == {}


def test_what_is_no_checkpoint_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"not a checkpoint, it has no model\.safetensors"):
        load_weights(tmp_path, "model")
    (tmp_path / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"model\.safetensors: not a readable safetensors file"):
        load_weights(tmp_path, "model")
    path = save(tmp_path)
    whole = (path / "training_state.pt").read_bytes()
    (path / "training_state.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="not a readable training state"):
        load_training_state(path)


def test_a_pickle_is_not_run(tmp_path):
    trace = tmp_path / "it_ran"

    class Malicious:
        def __reduce__(self):
            return (exec, (f"open({str(trace)!r}, 'w').close()",))

    path = save(tmp_path)
    (path / "training_state.pt").write_bytes(pickle.dumps(Malicious(), protocol=2))
    with pytest.raises(ValueError, match="not a readable training state"):
        load_training_state(path)
    assert not trace.exists()
    pickle.loads(pickle.dumps(Malicious()))
    assert trace.exists()  # so the file above was one that would have run


def test_weights_of_another_architecture_are_refused_by_name(tmp_path):
    path = save(tmp_path)
    with pytest.raises(ValueError, match=r"weight is \(2, 3\), expected \(5, 3\)"):
        load_into(torch.nn.Linear(3, 5, bias=False), path, "model")
    with pytest.raises(ValueError, match="missing bias"):
        load_into(torch.nn.Linear(3, 2), path, "model")
    with pytest.raises(ValueError, match="missing a, and 1 more"):
        load_into(torch.nn.ParameterDict({"a": torch.zeros(1)}), path, "model")
