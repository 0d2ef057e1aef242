"""The machine: which device, which dtype, which rank. The only file that names a device.

``torchrun`` starts one process per rank and describes the group in the environment; without it
there is one rank and no process group.
"""

import ctypes
import gc
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

DeviceName = Literal["auto", "cuda", "mps", "cpu"]
DtypeName = Literal["auto", "bfloat16", "float32", "float64"]


def choose_device(name: DeviceName) -> torch.device:
    """``auto`` takes cuda, then mps, then cpu.

    Raises:
        ValueError: if the named device is not there.
    """
    available: dict[DeviceName, bool] = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        name = next(candidate for candidate, there in available.items() if there)
    if not available[name]:
        there = ", ".join(candidate for candidate, is_there in available.items() if is_there)
        raise ValueError(f"device={name}: not available on this machine, which has {there}")
    if name == "cuda":
        local_rank, num_gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local_rank >= num_gpus:
            raise ValueError(
                f"torchrun started more processes than this machine has GPUs: allowed is "
                f"--nproc-per-node 1 to {num_gpus}"
            )
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", torch.cuda.current_device())
    if name == "cpu":
        _keep_freed_memory()
    return torch.device(name)


def _keep_freed_memory() -> None:
    """Have glibc keep large blocks that are freed, instead of giving each back to the kernel.

    Every activation is otherwise mapped anew, and the kernel clears each page on its first touch: a
    fifth of a training step at full size. Without glibc nothing happens.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
    libc.mallopt(mmap_threshold, 2**30)
    libc.mallopt(trim_threshold, 2**31 - 1)


def choose_dtype(name: DtypeName, device: torch.device) -> torch.dtype:
    """``auto`` takes bfloat16 where the machine computes in it, else float32."""
    if name != "auto":
        return getattr(torch, name)
    # Emulated bfloat16 is slower than float32, so ask for the instructions themselves.
    if device.type == "cuda":
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_bfloat16 = device.type == "cpu" and _cpu_has_bfloat16()
    return torch.bfloat16 if has_bfloat16 else torch.float32


def _cpu_has_bfloat16() -> bool:
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def check_compiler(device: torch.device) -> None:
    """Refuse to compile on a CPU without a C++ compiler, before torch fails in two hundred lines.

    Raises:
        ValueError: naming the compiler that is not there.
    """
    usual = "clang++" if platform.system() == "Darwin" else "g++"
    name = os.environ.get("CXX", usual)
    if device.type == "cpu" and shutil.which(name.split()[0]) is None:
        raise ValueError(
            f"compile=true needs a C++ compiler on a CPU, and there is no {name} (CXX names "
            "another one); compile=false trains without"
        )


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process's place among those that train together."""

    device: torch.device
    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over the ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def max(self, tensor: Tensor) -> Tensor:
        """Largest value over the ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor

    def any(self, value: bool) -> bool:
        """Whether ``value`` is true on at least one rank; the same answer on all."""
        return bool(self.max(torch.tensor(int(value), device=self.device)))

    def agree(self, number: int | None) -> int | None:
        """The largest number that a rank has, None where none has any; the same on all."""
        if self.world_size == 1:
            return number
        return int(self.max(torch.tensor(number or 0, device=self.device))) or None

    def gather_rows(self, tensor: Tensor) -> Tensor:
        """The ranks' equally long tensors, one after another."""
        if self.world_size == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's value, by rank."""
        values: list[Any] = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values

    def from_main(self, compute: Callable[[], Any]) -> Any:
        """What ``compute`` returns on the main rank, which alone calls it; the same on all.

        A ValueError or OSError there is one on all.
        """
        if self.world_size == 1:
            return compute()
        outcome: list[Any] = [None]
        if self.is_main:
            try:
                outcome = [(compute(), None)]
            except (ValueError, OSError) as error:
                outcome = [(None, error)]
        dist.broadcast_object_list(outcome, src=0, device=self.device)
        value, error = outcome[0]
        if error is not None:
            raise error
        return value

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.world_size > 1:
            dist.barrier()


@contextmanager
def same_order() -> Iterator[None]:
    """Sums are added up in an order of their own, so that ranks that add the same get the same.

    A GPU otherwise adds to one place from many threads in the order in which they come.
    """
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)


def join_ranks(device_name: DeviceName) -> Ranks:
    """Choose the device and, under ``torchrun``, join its process group."""
    device = choose_device(device_name)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        return Ranks(device=device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Ranks(device=device, rank=dist.get_rank(), world_size=world_size)


def leave_ranks(ranks: Ranks) -> None:
    """Undo ``join_ranks`` at the end of a run that succeeded.

    After a failure the process just ends: the other ranks may be inside a collective, for which
    an orderly goodbye would wait forever, and torchrun ends them.
    """
    if ranks.world_size > 1:
        # What still refers to the group (DDP's cycles do) would keep its threads alive until the
        # interpreter is gone, which then aborts.
        gc.collect()
        dist.barrier()
        dist.destroy_process_group()


def data_parallel(network: nn.Module, ranks: Ranks) -> nn.Module:
    """``network`` with gradients averaged over the ranks; itself where there is one rank.

    Its buffers (initial states, rotary tables) never change, so they are not sent every forward.
    """
    if ranks.world_size == 1:
        return network
    # torch 2.13 renamed the option.
    renamed = "forward_sync_buffers" in signature(DistributedDataParallel).parameters
    options: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
    return DistributedDataParallel(network, **options)
