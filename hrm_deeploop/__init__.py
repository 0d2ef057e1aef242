"""Hierarchical recurrent reasoning on ARC-AGI with DeepLoop residual scaling.

>>> import hrm_deeploop as hd
>>> hd.power_law(12, 0.5)
ResidualScaling(alpha=4.898979485566356, beta=0.10206207261596577)

The names below are loaded on first use, so that importing the package is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arc_data.task import Task
    from hrm_deeploop.hrm import HRM
    from hrm_deeploop.looped import Looped
    from hrm_deeploop.runs.api import compare, evaluate, train
    from hrm_deeploop.runs.run import Run, load_run
    from hrm_deeploop.scaling import power_law, scaling_rule

__all__ = [
    "HRM",
    "Looped",
    "Run",
    "Task",
    "compare",
    "evaluate",
    "load_run",
    "power_law",
    "scaling_rule",
    "train",
]
_MODULES = {
    "HRM": "hrm_deeploop.hrm",
    "Looped": "hrm_deeploop.looped",
    "Run": "hrm_deeploop.runs.run",
    "Task": "arc_data.task",
    "compare": "hrm_deeploop.runs.api",
    "evaluate": "hrm_deeploop.runs.api",
    "load_run": "hrm_deeploop.runs.run",
    "power_law": "hrm_deeploop.scaling",
    "scaling_rule": "hrm_deeploop.scaling",
    "train": "hrm_deeploop.runs.api",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
