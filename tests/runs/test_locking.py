"""Directories are held before they are looked at, by one process, which is named."""

import errno
import os
import shutil
import signal
import stat
from contextlib import contextmanager

import pytest

from hrm_deeploop.runs import session, validation
from hrm_deeploop.runs.checkpoint import list_checkpoints
from hrm_deeploop.runs.locking import HOLDER_FILE, check_file_system, hold_directory
from hrm_deeploop.runs.metrics import read_metrics
from hrm_deeploop.stop_signals import StopSignals
from tests.commands import in_process

OWN = ("experiment=smoke", "total_steps=6", "checkpoint_every=2", "log_every=1")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = tmp_path_factory.mktemp("locking") / "run"
    assert in_process("train", *OWN, "keep_last=9", f"run_dir={place}").returncode == 0
    return place


def test_a_held_directory_names_its_holder_and_an_unused_one_is_not_left(tmp_path):
    place = tmp_path / "a" / "b"
    with hold_directory(place, "training"):
        assert (place / HOLDER_FILE).is_file()
        with (
            pytest.raises(ValueError, match=f"is training there .process {os.getpid()} on .*since"),
            hold_directory(place, "training"),
        ):
            pass
    assert not (tmp_path / "a").exists()
    with hold_directory(place, "training"):
        (place / "kept").touch()
    assert sorted(path.name for path in place.iterdir()) == [".lock", "kept"]


def test_a_directory_that_cant_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(ValueError, match=r"run_dir=.*file/x: .*file is no directory"),
        hold_directory(tmp_path / "file" / "x", "training"),
    ):
        pass


def test_a_run_goes_on_from_what_is_there_once_it_holds_the_directory(
    finished, tmp_path, monkeypatch
):
    """Another training saves and leaves between the start and the lock."""
    place = tmp_path / "run"
    shutil.copytree(finished, place)
    later = tmp_path / "later"
    (place / "checkpoints" / "step_00000006").rename(later)

    @contextmanager
    def hold(directory, doing):
        with hold_directory(directory, doing):
            later.rename(place / "checkpoints" / "step_00000006")
            yield

    monkeypatch.setattr(session, "hold_directory", hold)
    rows = read_metrics(place / "metrics.jsonl")
    result = in_process("train", *OWN, f"run_dir={place}", "resume=auto")
    assert result.returncode == 0, result.stderr
    assert read_metrics(place / "metrics.jsonl") == rows  # nothing was cut, nothing repeated


def test_a_finished_run_that_appears_meanwhile_is_not_overwritten(finished, tmp_path, monkeypatch):
    place = tmp_path / "run"

    @contextmanager
    def hold(directory, doing):
        with hold_directory(directory, doing):
            shutil.copytree(finished, place, dirs_exist_ok=True)
            yield

    monkeypatch.setattr(session, "hold_directory", hold)
    result = in_process("train", *OWN, f"run_dir={place}")
    assert result.returncode == 2
    assert "holds a run already" in result.stderr.splitlines()[-1]


def test_two_processes_do_not_make_one_evaluation(finished, tmp_path):
    place = tmp_path / "run"
    shutil.copytree(finished, place)
    with hold_directory(place / "eval" / "step_00000006", "evaluating", key="out"):
        result = in_process("evaluate", f"run={place}")
        assert result.returncode == 2
        last = result.stderr.splitlines()[-1]
        assert f"another process is evaluating there (process {os.getpid()} on " in last
        other = in_process("evaluate", f"run={place}", "votes=1")  # of its own directory
        assert other.returncode == 0, other.stderr
    assert in_process("evaluate", f"run={place}").returncode == 0


def test_what_a_file_system_lacks_is_said_before_the_first_step(tmp_path, monkeypatch, caplog):
    check_file_system(tmp_path)
    assert not caplog.text
    assert not list(tmp_path.iterdir())
    real = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr("os.fsync", fsync)
    check_file_system(tmp_path)
    assert "can't flush directories" in caplog.text

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"\.probe: No space left on device"):
        check_file_system(tmp_path)
    assert not list(tmp_path.iterdir())


VALIDATED = ("data.validation=0.5", "eval_interval=2", "checkpoint_every=null", "keep_last=9")


def test_a_signal_ends_a_validation_and_the_next_start_makes_up_for_it(tmp_path, monkeypatch):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    own = ("experiment=smoke", "total_steps=6", "log_every=1", *VALIDATED)
    assert in_process("train", *own, f"run_dir={whole}").returncode == 0
    real, calls = validation.predict, []

    def predict(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:  # of the second validation, at step 4
            os.kill(os.getpid(), signal.SIGTERM)
        yield from real(*arguments, **options)

    monkeypatch.setattr(validation, "predict", predict)
    result = in_process("train", *own, f"run_dir={stopped}")
    assert result.returncode == 143, result.stderr
    assert max(list_checkpoints(stopped / "checkpoints")) == 4
    scored = [row["step"] for row in read_metrics(stopped / "metrics.jsonl") if "eval/loss" in row]
    assert scored == [2]
    monkeypatch.undo()
    result = in_process("train", *own, f"run_dir={stopped}", "resume=auto")
    assert result.returncode == 0, result.stderr

    def scores(place):
        return [
            {key: value for key, value in row.items() if not key.startswith("seconds/")}
            for row in read_metrics(place / "metrics.jsonl")
            if "eval/loss" in row
        ]

    assert scores(stopped) == scores(whole)
    assert [row["step"] for row in scores(whole)] == [2, 4, 6]


def test_signals_that_were_ignored_stay_so():
    """As SIGHUP under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.is_asked()
            os.kill(os.getpid(), signal.SIGUSR2)
            assert stop.received == signal.SIGUSR2
    finally:
        signal.signal(signal.SIGHUP, before)
