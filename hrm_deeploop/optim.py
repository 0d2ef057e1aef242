"""The network's optimiser, the learning-rate schedule and weight averaging."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from adam_atan2_pytorch import AdamAtan2
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from hrm_deeploop.config import OptimConfig
from hrm_deeploop.transition import Gates, Transition

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
    """Adam-atan2 (Everett et al. 2024, arXiv:2407.05872) with a = b = 1 as in HRM, or AdamW.

    ``parameters``, or groups of them, are on the device that they will be trained on. Both kinds
    keep the same state on every device, so that a run can be continued on another.
    """
    options: dict[str, Any] = {
        "lr": config.lr,
        "betas": (config.beta1, config.beta2),
        "weight_decay": config.weight_decay,
    }
    if config.optimizer == "adamw":
        return torch.optim.AdamW(parameters, fused=True, **options)
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
