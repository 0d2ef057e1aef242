"""metrics.jsonl has no gap and no repeat; Weights & Biases never asks."""

import json
import sys
import types

import pytest

from hrm_deeploop.runs.metrics import MetricsLog, open_log, read_metrics, start_wandb


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
