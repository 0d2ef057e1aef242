"""Checkpoints: complete or absent, checked on load, and nothing in them runs."""

import errno
import os
import pickle
import stat

import pytest
import torch

from arc_data.atomic import FILE_MODE
from hrm_deeploop.runs import checkpoint as module
from hrm_deeploop.runs.checkpoint import (
    Digests,
    clear_left_overs,
    is_whole,
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
        config_digest="of the configuration",
    )


def sign(path):
    """Write the digests of what lies there now, as if it had been saved so."""
    files = {p.name: module._digest(p) for p in path.iterdir() if p.name != "digests.json"}
    (path / "digests.json").write_text(Digests(files=files, config="").to_json())


def test_a_checkpoint_holds_what_was_saved(tmp_path):
    path = save(tmp_path)
    assert path.name == "step_00000007"
    assert sorted(p.name for p in path.iterdir()) == [
        "digests.json",
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


def test_what_a_killed_save_or_deletion_left_is_cleared(tmp_path):
    kept = save(tmp_path)
    (tmp_path / "step_00000003.partial").mkdir()
    (tmp_path / "step_00000007.replaced").mkdir()
    only = save(tmp_path, step=9)
    only.rename(only.with_name("step_00000009.replaced"))  # its replacement never came
    (tmp_path / "notes.partial").mkdir()
    clear_left_overs(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("notes.partial", "step_00000007", "step_00000009")
    ]
    assert is_whole(kept)
    assert is_whole(only)
    clear_left_overs(tmp_path / "absent")


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
    with pytest.raises(ValueError, match=r"digests\.json: not readable"):
        load_weights(tmp_path, "model")
    with pytest.raises(ValueError, match="no checkpoint is there any more"):
        load_weights(tmp_path / "pruned", "model")
    path = save(tmp_path)
    with pytest.raises(ValueError, match=r"ema\.safetensors: not a file that the checkpoint was"):
        load_weights(path, "ema")
    (path / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"model\.safetensors: damaged, it is not what was"):
        load_weights(path, "model")
    assert not is_whole(path)
    sign(path)
    with pytest.raises(ValueError, match=r"model\.safetensors: not a readable safetensors file"):
        load_weights(path, "model")
    (path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"not a whole checkpoint, model\.safetensors is gone"):
        load_weights(path, "model")
    whole = (path / "training_state.pt").read_bytes()
    (path / "training_state.pt").write_bytes(whole[: len(whole) // 2])
    sign(path)
    with pytest.raises(ValueError, match="not a readable training state"):
        load_training_state(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(value, tmp_path):
    path = save(tmp_path, value=value)
    with pytest.raises(ValueError, match="weight holds values that are not finite"):
        load_weights(path, "model")


def test_files_are_readable_as_the_umask_says(tmp_path):
    path = save(tmp_path)
    assert {p.stat().st_mode & 0o777 for p in path.iterdir()} == {FILE_MODE}


def test_a_file_that_may_not_be_read_is_called_so(tmp_path, monkeypatch):
    path = save(tmp_path)

    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "file_digest", refuse)
    with pytest.raises(ValueError, match=r"model\.safetensors: can't be read .Permission denied"):
        load_weights(path, "model")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cant_flush_folders_saves_all_the_same(number, tmp_path, monkeypatch):
    """As CIFS and FUSE answer."""
    real = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr("os.fsync", fsync)
    assert load_training_state(save(tmp_path))["step"] == 7
    number = errno.EIO
    with pytest.raises(ValueError, match="could not be written"):
        save(tmp_path, step=8)


def test_a_pickle_is_not_run(tmp_path):
    trace = tmp_path / "it_ran"

    class Malicious:
        def __reduce__(self):
            return (exec, (f"open({str(trace)!r}, 'w').close()",))

    path = save(tmp_path)
    (path / "training_state.pt").write_bytes(pickle.dumps(Malicious(), protocol=2))
    sign(path)
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
