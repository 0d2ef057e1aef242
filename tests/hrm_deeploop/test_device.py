"""Device and dtype are chosen from what the machine has, and one rank needs no group."""

import pytest
import torch

from hrm_deeploop import device as module
from hrm_deeploop.device import Ranks, choose_device, choose_dtype, join_ranks, same_order

CPU = torch.device("cpu")


def test_auto_prefers_cuda_then_mps_then_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device("auto") == CPU
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("auto").type == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert choose_device("auto") == torch.device("cuda", 3)


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: chosen[-1])
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_device("cuda") == torch.device("cuda", 3)
    monkeypatch.setenv("LOCAL_RANK", "4")
    with pytest.raises(ValueError, match="allowed is --nproc-per-node 1 to 4"):
        choose_device("cuda")


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


def test_auto_dtype_of_a_gpu_without_bfloat16_units_is_float32(monkeypatch):
    """torch emulates it there, and says that it is supported unless asked for that."""
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation
    )
    assert choose_dtype("auto", torch.device("cuda")) == torch.float32


def test_same_order_is_for_a_while():
    assert not torch.are_deterministic_algorithms_enabled()
    with same_order():
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_one_rank_needs_no_process_group(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    ranks = join_ranks("cpu")
    assert ranks == Ranks(device=CPU)
    assert ranks.is_main
    tensor = torch.arange(3)
    assert torch.equal(ranks.sum(tensor), tensor)
    assert torch.equal(ranks.gather_rows(tensor), tensor)
    assert ranks.agree(15) == 15
    assert ranks.agree(None) is None
    network = torch.nn.Linear(1, 1)
    assert module.data_parallel(network, ranks) is network
