"""Values checked, and read from and written as YAML; a mistake is one line. No torch."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

MAX_YAML = 2**20  # bytes
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
    # A value that is no member of a union is one mistake, whatever each member says of it.
    same = [p for p in problems if _place(p) == _place(problems[0])]
    others = len({_place(p) for p in problems}) - 1
    text = _describe(problems[0], prefix)
    for problem in same[1:]:
        text += f", or {_lowered(problem['msg'].removeprefix('Input should be '))}"
    return text + (f" (and {others} more)" if others else "")


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _only_follows(problem: Any, problems: Sequence[Any]) -> bool:
    """Whether a list is too short because of a wrong element, which has a problem of its own."""
    place = problem["loc"]
    return problem["type"] == "too_short" and any(
        len(other["loc"]) > len(place) and other["loc"][: len(place)] == place for other in problems
    )


# Types of a union's members, by which pydantic tells their problems apart.
UNION_MEMBER = re.compile(
    r"literal\[.*\]|function-.*|constrained-.*|tuple\[.*\]|lax-or-strict\[.*\]"
)
UNION_TYPES = ("int", "str", "float", "bool")


def _place(problem: Any) -> tuple[Any, ...]:
    """Where a problem is, without the member of a union that it is about."""
    place = problem["loc"]
    while len(place) > 1 and isinstance(place[-1], str):
        if place[-1] not in UNION_TYPES and not UNION_MEMBER.fullmatch(place[-1]):
            break
        place = place[:-1]
    return place


def _describe(problem: Any, prefix: str) -> str:
    own = _place(problem)
    loc = (prefix, *own) if prefix else own
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


class _Loader(yaml.SafeLoader):
    """Reads plain values: no aliases, which a few lines can nest into billions of entries."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.get_event()
            raise yaml.MarkedYAMLError(
                problem="an alias is no part of a configuration", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)


def read_yaml(path: Path) -> Any:
    """Read the plain containers of a YAML file.

    Raises:
        ValueError: if it can't be read, is not YAML, or is no configuration's size.
    """
    try:
        if path.stat().st_size > MAX_YAML:
            raise ValueError(f"more than {MAX_YAML:,} bytes")
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)  # a SafeLoader
    except RecursionError as error:
        raise ValueError(f"{path}: not a readable YAML file (too deeply nested)") from error
    except (yaml.YAMLError, OSError, ValueError) as error:
        text = " ".join(str(error).split())
        raise ValueError(f"{path}: not a readable YAML file ({text})") from error
