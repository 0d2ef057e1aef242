"""What a comparison of runs may claim: the difference of their configurations, and their ladders.

An arm is a declared set of overrides. Everything else must be equal between the arms, and a
comparison in which something undeclared differs is refused.
"""

from collections.abc import Iterable, Mapping
from typing import Any

# Where a run is kept, how it is continued and where its kinds are defined is not what was run.
NOT_COMPARED = frozenset(("run_dir", "resume", "plugins"))

ConfigDifference = dict[str, dict[str, Any]]
"""Dotted key -> arm -> value, of the keys in which the arms' configurations differ."""


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def config_difference(configs: Mapping[str, Mapping[str, Any]]) -> ConfigDifference:
    """Every key whose value is not the same in all configurations; a missing one is None."""
    flat = {name: flatten(config) for name, config in configs.items()}
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    difference = {key: {name: values.get(key) for name, values in flat.items()} for key in keys}
    return {
        key: values
        for key, values in difference.items()
        if key not in NOT_COMPARED and len(set(map(repr, values.values()))) > 1
    }


def check_declared(difference: ConfigDifference, declared: Mapping[str, Iterable[str]]) -> None:
    """Refuse a difference that no arm declares; ``scaling`` declares ``scaling.rule`` too.

    Raises:
        ValueError: naming the undeclared keys and their values.
    """
    allowed = sorted({key for keys in declared.values() for key in keys})
    undeclared = [
        f"{key} ({', '.join(f'{arm}: {value}' for arm, value in values.items())})"
        for key, values in difference.items()
        if not any(key == name or key.startswith(name + ".") for name in allowed)
    ]
    if undeclared:
        raise ValueError(
            f"the arms differ in {'; '.join(undeclared)}, but declare only {', '.join(allowed)}"
        )


def format_difference(difference: ConfigDifference) -> str:
    """One line per key."""
    lines = [
        f"  {key}: " + ", ".join(f"{arm} = {value}" for arm, value in values.items())
        for key, values in difference.items()
    ]
    return "\n".join(["configuration difference (all else is equal):", *(lines or ["  none"])])
