"""Loggers: where a run's numbers go beside metrics.jsonl, a file each."""

from hrm_deeploop.loggers import trackio, wandb
from hrm_deeploop.loggers.base import LOGGERS, Logger, logger

__all__ = ["LOGGERS", "Logger", "logger", "trackio", "wandb"]
