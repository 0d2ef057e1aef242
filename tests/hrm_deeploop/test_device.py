"""Device and dtype are chosen from what the machine has, and one rank needs no group."""

import pytest
import torch

from hrm_deeploop import device as module
from hrm_deeploop.device import Ranks, choose_device, choose_dtype, join_ranks

CPU = torch.device("cpu")


def test_auto_prefers_cuda_then_mps_then_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device("auto") == CPU
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("auto").type == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert choose_device("auto") == torch.device("cuda", 3)


def test_an_absent_device_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(
        ValueError, match="device=cuda: not available on this machine, which has cpu"
    ):
        choose_device("cuda")


@pytest.mark.parametrize(("has_it", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_dtype_is_bfloat16_where_the_processor_computes_in_it(monkeypatch, has_it, dtype):
    monkeypatch.setattr(module, "_cpu_has_bfloat16", lambda: has_it)
    assert choose_dtype("auto", CPU) == dtype
    assert choose_dtype("float64", CPU) == torch.float64


def test_one_rank_needs_no_process_group(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    ranks = join_ranks("cpu")
    assert ranks == Ranks(device=CPU)
    assert ranks.is_main
    tensor = torch.arange(3)
    assert torch.equal(ranks.sum(tensor), tensor)
    assert torch.equal(ranks.gather_rows(tensor), tensor)
    network = torch.nn.Linear(1, 1)
    assert module.data_parallel(network, ranks) is network
