"""Values checked, and read from and written as YAML; a mistake is one line. No torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

WHOLE_LINE = "whole_line"  # type of a problem whose message names the key already


def validate(kind: type[BaseModel], values: dict[str, Any]) -> Any:
    """``kind(**values)``, whose first problem is one line with key, value and what is allowed."""
    try:
        return kind(**values)
    except ValidationError as error:
        raise ValueError(one_line(error)) from error


def one_line(error: ValidationError, prefix: str = "") -> str:
    """Say the first problem, and how many more there are; its key begins with ``prefix``."""
    problems = [p for p in error.errors() if not _only_follows(p, error.errors())]
    more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
    return _describe(problems[0], prefix) + more


def _only_follows(problem: Any, problems: Sequence[Any]) -> bool:
    """Whether a list is too short because of a wrong element, which has a problem of its own."""
    place = problem["loc"]
    return problem["type"] == "too_short" and any(
        len(other["loc"]) > len(place) and other["loc"][: len(place)] == place for other in problems
    )


def _describe(problem: Any, prefix: str) -> str:
    loc = (prefix, *problem["loc"]) if prefix else problem["loc"]
    if loc in (("transition", "name"), ("transition_H", "name"), ("scaling", "rule")):
        loc = loc[:1]  # which is given as the name
    key = ".".join(map(str, loc))
    if problem["type"] == WHOLE_LINE:
        return problem["msg"]
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":  # our own validators name the values themselves
        return f"{key}: {message}" if key and not message.startswith(key) else message
    if problem["type"] == "extra_forbidden":
        return f"{key}={problem['input']}: there is no such key"
    if problem["type"] == "missing":
        return f"{key}: a value is required"
    if problem["type"] == "tuple_type":
        given = problem["input"]
        return f"{key}={given}: expected a list" + ("" if given is None else f", {key}=[{given}]")
    if problem["type"] == "too_short":
        return f"{key}={list(problem['input'])}: expected at least {problem['ctx']['min_length']}"
    return f"{key}={problem['input']}: {message[0].lower()}{message[1:]}"


def to_yaml(config: BaseModel) -> str:
    """The values as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def read_yaml(path: Path) -> Any:
    """The plain containers of a YAML file.

    Raises:
        ValueError: if it can't be read or is not YAML.
    """
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a readable YAML file ({error})") from error
