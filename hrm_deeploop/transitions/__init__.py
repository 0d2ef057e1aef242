"""Loop transitions, a file each; base.py has their general form and table."""

from hrm_deeploop.transitions import (
    huginn,
    hyperloop,
    once_a_cycle,
    operloop,
    parcae,
    recirculation,
    recurrent_gpt,
)
from hrm_deeploop.transitions.base import TRANSITIONS, Transition, TransitionConfig, transition

__all__ = [
    "HUGINN",
    "TRANSITIONS",
    "Transition",
    "TransitionConfig",
    "huginn",
    "hyperloop",
    "once_a_cycle",
    "operloop",
    "parcae",
    "recirculation",
    "recurrent_gpt",
    "transition",
]
HUGINN = TransitionConfig(name="huginn")
