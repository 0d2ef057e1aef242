"""The network's optimiser, the learning-rate schedule and weight averaging."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from adam_atan2_pytorch import AdamAtan2
from pydantic import Field, field_validator
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from hrm_deeploop.config import MAX_RATE, MAX_STEPS, StrictConfig
from hrm_deeploop.registry import Registry
from hrm_deeploop.transitions.base import Transition
from hrm_deeploop.transitions.streams import Gates

Build = Callable[..., torch.optim.Optimizer]  # of parameters, lr, betas and weight_decay
OPTIMIZERS: Registry[Build] = Registry("optim.optimizer", "optimiser")


def optimizer(name: str) -> Callable[[Build], Build]:
    """Register a function that builds an optimiser as ``name``."""
    return OPTIMIZERS.register(name)


class OptimConfig(StrictConfig):
    """Optimisers, learning-rate schedule and weight averaging."""

    optimizer: str
    global_batch_size: int = Field(ge=1, le=2**24)
    lr: float = Field(gt=0, le=MAX_RATE)
    lr_warmup_steps: int = Field(ge=0, le=MAX_STEPS)
    lr_min_ratio: float = Field(ge=0, le=1)  # where the decay ends, as a share of lr
    lr_decay_fraction: float = Field(gt=0, le=1)  # cosine over this last share of the run
    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    weight_decay: float = Field(ge=0, le=MAX_RATE)
    puzzle_emb_lr: float = Field(ge=0, le=MAX_RATE)
    puzzle_emb_weight_decay: float = Field(ge=0, le=MAX_RATE)
    ema_rate: float | None = Field(gt=0, lt=1)  # null: evaluate the raw weights

    @field_validator("optimizer")
    @classmethod
    def _is_registered(cls, name: str) -> str:
        OPTIMIZERS[name]
        return name

    @property
    def predicting_weights(self) -> str:
        """The file of a checkpoint that holds the weights to predict with."""
        return "model" if self.ema_rate is None else "ema"


ParamList = tuple[Tensor, ...] | list[Tensor]


def parameter_groups(network: nn.Module) -> list[dict[str, Any]]:
    """Every parameter once: those that decay, and the vectors of transitions, which do not.

    All of HRM's own decay, its biases too. Biases and gains of gates would be pulled to where the
    gate is 1/2 and depends on nothing: far from where they start, and in a long run all the way.
    """
    vectors = [
        parameter
        for module in network.modules()
        if isinstance(module, Gates | Transition)
        for parameter in module.parameters(recurse=False)
    ]
    apart = {id(parameter) for parameter in vectors}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in network.parameters() if id(p) not in apart]}
    ]
    return [*groups, {"params": vectors, "weight_decay": 0.0}] if vectors else groups


def build_optimizer(
    parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]], config: OptimConfig
) -> torch.optim.Optimizer:
    """Build the configured optimiser of ``parameters``, or of groups of them.

    They are on the device that they will be trained on. Every kind keeps the same state on every
    device, so that a run can be continued on another.
    """
    options: dict[str, Any] = {
        "lr": config.lr,
        "betas": (config.beta1, config.beta2),
        "weight_decay": config.weight_decay,
    }
    return OPTIMIZERS[config.optimizer](parameters, **options)


@optimizer("adamw")
def adamw(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    """Build AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101)."""
    return torch.optim.AdamW(parameters, fused=True, **options)


@optimizer("adam_atan2")
def adam_atan2(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    """Build Adam-atan2 (Everett et al. 2024, arXiv:2407.05872) with a = b = 1 as in HRM."""
    # The package's own default is a = 1.27. Its foreach variant has another state, with a copy of
    # the initial weights.
    return AdamAtan2(parameters, a=1.0, b=1.0, **options)


def lr_ratio(step: int, *, total_steps: int, config: OptimConfig) -> float:
    """Learning rate of the step after ``step`` finished ones, as a share of its peak.

    Linear warm-up over ``lr_warmup_steps``, then constant, then a cosine down to ``lr_min_ratio``
    over the last ``lr_decay_fraction`` of the run (1.0: all that follows the warm-up, HRM).
    """
    if step < config.lr_warmup_steps:
        return (step + 1) / config.lr_warmup_steps
    decay_start = max(config.lr_warmup_steps, round(total_steps * (1 - config.lr_decay_fraction)))
    progress = min(1.0, max(0.0, (step - decay_start) / max(1, total_steps - decay_start)))
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return config.lr_min_ratio + (1 - config.lr_min_ratio) * cosine


def build_scheduler(
    optimizer: torch.optim.Optimizer, *, total_steps: int, config: OptimConfig
) -> LambdaLR:
    """``lr_ratio`` as a scheduler that is stepped once per optimiser step."""
    return LambdaLR(optimizer, lambda step: lr_ratio(step, total_steps=total_steps, config=config))


def average_weights(network: nn.Module, ema_rate: float) -> AveragedModel:
    """An exponential moving average of ``network``'s weights; the puzzle table is not in it.

    The rate of the n-th update is min(ema_rate, (1 + n) / (10 + n)), so that a short run does not
    end with its initial weights still in the average.
    """

    def update(averaged: ParamList, current: ParamList, _: Tensor | int) -> None:
        n = int(model.n_averaged)  # on the host, unlike the copy that is handed over
        get_ema_multi_avg_fn(min(ema_rate, (1 + n) / (10 + n)))(averaged, current, n)

    model = AveragedModel(network, multi_avg_fn=update)
    return model
