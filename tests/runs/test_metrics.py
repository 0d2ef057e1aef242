"""metrics.jsonl has no gap and no repeat; Weights & Biases never asks."""

import json
import sys
import types

import pytest

from hrm_deeploop.loggers.wandb import start_wandb
from hrm_deeploop.runs.metrics import MetricsLog, open_log, read_metrics


def test_a_resumed_run_drops_what_came_after_its_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in (10, 20, 30):
        log.write({"step": step, "train/lm_loss": 1 / step})
    log.close()
    with path.open("a") as file:
        file.write('{"step": 35, "train/lm')  # the process died here
    resumed = MetricsLog(path, resumed_step=20)
    resumed.write({"step": 30, "train/lm_loss": 0.5})
    resumed.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [10, 20, 30]
    assert read_metrics(path)[-1]["train/lm_loss"] == 0.5


def test_a_new_run_starts_an_empty_log_and_only_the_main_rank_writes(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    options = dict(logger="none", config={}, resumed_step=0)
    with open_log(path, is_main=False, **options) as log:
        assert log is None
    assert not path.exists()
    with open_log(path, is_main=True, **options) as log:
        log.write({"step": 1})
    assert read_metrics(path) == [{"step": 1}]


@pytest.mark.parametrize(
    ("environment", "mode"),
    [({}, "offline"), ({"WANDB_API_KEY": "k"}, None), ({"WANDB_MODE": "disabled"}, None)],
)
def test_wandb_is_offline_without_a_key(environment, mode, monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # no .netrc
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    calls = []
    fake = types.SimpleNamespace(init=lambda **options: calls.append(options))
    monkeypatch.setitem(sys.modules, "wandb", fake)
    start_wandb(tmp_path / "run", {"lr": 1.0})
    assert calls[0]["mode"] == mode
    assert calls[0]["config"] == {"lr": 1.0}
    start_wandb(tmp_path / "run", {"lr": 1.0})  # a resumed run goes on as the same
    assert calls[1]["id"] == calls[0]["id"]
    assert calls[1]["resume"] == "allow"
    start_wandb(tmp_path / "other", {"lr": 1.0})
    assert calls[2]["id"] != calls[0]["id"]


def test_trackio_logs_rows_at_their_steps_under_the_runs_name(monkeypatch, tmp_path):
    rows, options = [], {}

    fake = types.SimpleNamespace(
        init=lambda **given: options.update(given),
        log=lambda row, step: rows.append((step, row)),
        finish=lambda: rows.append("finished"),
    )
    monkeypatch.setitem(sys.modules, "trackio", fake)
    path = tmp_path / "run" / "metrics.jsonl"
    with open_log(path, is_main=True, logger="trackio", config={"lr": 1.0}, resumed_step=0) as log:
        log.write({"step": 3, "train/lm_loss": 0.5})
    assert rows == [(3, {"train/lm_loss": 0.5}), "finished"]
    assert (options["name"], options["config"]) == ("run", {"lr": 1.0})


def test_a_logger_that_is_not_installed_says_how_it_is(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "trackio", None)
    with (
        pytest.raises(ValueError, match=r"pip install 'hrm-deeploop\[trackio\]'"),
        open_log(tmp_path / "m.jsonl", is_main=True, logger="trackio", config={}, resumed_step=0),
    ):
        pass
