"""The command line shared by all scripts: Hydra composes, pydantic checks, mistakes are one line.

A script takes ``key=value`` overrides. Its effective configuration goes to stderr, its result to
stdout; with ``output=json`` stdout is one JSON object and nothing else. A user's mistake prints one
line and exits with 2.
"""

import difflib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

CONFIG_DIR = Path(__file__).resolve().parent.parent / "configs"
TRACEBACK_VARIABLE = "HRM_DEEPLOOP_TRACEBACK"
USER_ERROR, OUT_OF_MEMORY, INTERRUPTED = 2, 3, 130
LESS_MEMORY = "less is needed with a smaller micro_batch_size (train) or batch_size (evaluate)"
# Overrides whose list elements are task ids.
ID_LIST = re.compile(r"(?P<key>tasks|data\.tasks|data\.evaluate)=\[(?P<ids>.+)\]")
LIST_ELEMENT = re.compile(r"""\s*'[^']*'|\s*"[^"]*"|[^,]+""")

HELP = """
Usage: python scripts/{name}.py [key=value ...]

Groups choose a file of configs/:
{groups}

{keys}
A mistake is one line; {traceback}=1 shows where it was found.
"""


def launch(
    main: Callable[[list[str]], dict[str, Any]], name: str, doc: str | None, keys_of: Sequence[str]
) -> None:
    """Run ``main`` with the command line's overrides and exit with its status.

    ``main`` prints the text form itself and returns what ``output=json`` prints, with the entries
    ``output`` and, if it is not 0, ``exit_status``, which are taken out. ``keys_of`` are the files
    of configs/ that hold the script's keys, for ``--help``.
    """
    overrides = sys.argv[1:]
    for stream in (sys.stdout, sys.stderr):  # ids and names of files may hold any character
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        if any(argument in ("-h", "--help") for argument in overrides):
            print((doc or "").strip() + "\n" + _help(name, keys_of))
            return
        result = main(overrides)
        status, output = result.pop("exit_status", 0), result.pop("output", "text")
        if output == "json":
            print(json.dumps(result))
        sys.stdout.flush()
        sys.exit(status)
    except BrokenPipeError:  # the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (ValueError, OSError) as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(USER_ERROR)
    except RuntimeError as error:
        # torch's, which is not imported here: scripts about data alone start without it.
        if type(error).__name__ != "OutOfMemoryError" or os.environ.get(TRACEBACK_VARIABLE):
            raise
        text = str(error).split(". ")[0]
        print(f"{name}: {text}; {LESS_MEMORY}", file=sys.stderr)
        sys.exit(OUT_OF_MEMORY)
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def compose_config(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The values of ``configs/<name>.yaml`` under ``overrides``, as plain containers.

    Raises:
        ValueError: one line that names the override, and what is allowed in its place.
    """
    overrides = [_quote_value(_quote_ids(override)) for override in overrides]
    parsed = _parse(overrides)
    with initialize_config_dir(str(CONFIG_DIR), version_base=None):
        _check_groups(parsed)
        try:
            config = compose(config_name=name, overrides=overrides)
            missing = sorted(OmegaConf.missing_keys(config))
            if missing:
                raise ValueError(f"{missing[0]}: a value is required, {missing[0]}=...")
            values = OmegaConf.to_container(config, resolve=True)
        except (HydraException, OmegaConfBaseException) as error:
            # The keys that there are depend on the files that groups choose.
            chosen = [
                given
                for given, override in zip(overrides, parsed, strict=True)
                if override.key_or_group in _groups()
            ]
            _check_keys(parsed, OmegaConf.to_container(compose(config_name=name, overrides=chosen)))
            raise ValueError(str(error).split("\n", maxsplit=1)[0]) from error
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def chosen_files(overrides: Sequence[str], group: str) -> list[str]:
    """The files of a group that the overrides name, as they name them."""
    for override in _parse(overrides):
        if override.key_or_group == group and not (override.is_add() or override.is_delete()):
            value = override.value()
            return [str(choice) for choice in (value if isinstance(value, list) else [value])]
    return []


def format_value(value: Any) -> str:
    """A plain value as the right side of an override; keys of mappings are names."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{format_value(v)}" for key, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(format_value, value)) + "]"
    return json.dumps(value)


def take_output(values: dict[str, Any]) -> str:
    """Remove the key ``output`` from the values and return it.

    Raises:
        ValueError: if it is neither ``text`` nor ``json``.
    """
    output = values.pop("output")
    if output not in ("text", "json"):
        raise ValueError(f"output={output}: allowed are text and json")
    return output


def show_config(text: str) -> None:
    """Print an effective configuration to stderr."""
    print(text.rstrip(), file=sys.stderr)


def _quote_ids(override: str) -> str:
    """Quote the ids of an override that lists ids: Hydra would read 00576224 as a number."""
    match = ID_LIST.fullmatch(override)
    if match is None:
        return override
    ids = [part.strip() for part in LIST_ELEMENT.findall(match["ids"])]
    quoted = [part if part[:1] in ("'", '"') else json.dumps(part) for part in ids]
    return f"{match['key']}=[{','.join(quoted)}]"


def _quote_value(override: str) -> str:
    """Quote a value that Hydra can't read as it stands, such as a path with a space or a ``=``."""
    key, equals, value = override.partition("=")
    try:
        OverridesParser.create().parse_override(override)
    except HydraException:
        if equals and value and value[0] not in "[{'\"":
            return f"{key}={json.dumps(value, ensure_ascii=False)}"
    return override


def _parse(overrides: Sequence[str]) -> list[Override]:
    parser, parsed = OverridesParser.create(), []
    for override in overrides:
        try:
            parsed.append(parser.parse_override(override))
        except HydraException as error:
            raise ValueError(f"{override!r}: expected key=value (see --help)") from error
    return parsed


def _groups() -> dict[str, list[str]]:
    return {
        path.name: sorted(file.stem for file in path.glob("[!_]*.yaml"))
        for path in sorted(CONFIG_DIR.iterdir())
        if path.is_dir()
    }


def _check_groups(parsed: Sequence[Override]) -> None:
    groups = _groups()
    for override in parsed:
        key, value = override.key_or_group, override.value()
        if key not in groups or override.is_delete() or override.is_add():
            continue
        if not isinstance(value, str | list):
            value = [getattr(value, "text", value)]
        for choice in value if isinstance(value, list) else [value]:
            if choice not in groups[key]:
                raise ValueError(
                    f"{key}={choice}: there is no such file in configs/{key}/; "
                    f"allowed: {', '.join(groups[key])}"
                )


def _check_keys(parsed: Sequence[Override], defaults: Any) -> None:
    for override in parsed:
        level, path = defaults, override.key_or_group.split(".")
        if override.is_add() or override.key_or_group in _groups():
            continue
        for depth, part in enumerate(path):
            if not isinstance(level, dict):
                inside = ".".join(path[:depth])
                raise ValueError(
                    f"{override.input_line}: {inside} is one value ({level}), so there is no key "
                    f"in it; it is given as a whole, {inside}=..."
                )
            if part not in level:
                allowed = sorted(map(str, level))
                near = difflib.get_close_matches(part, allowed, n=2)
                hint = f"did you mean {' or '.join(near)}? " if near else ""
                inside = ".".join(path[:depth]) or "the configuration"
                raise ValueError(
                    f"{override.input_line}: there is no key {part!r} in {inside}; "
                    f"{hint}allowed: {', '.join(allowed) or 'none'}"
                )
            level = level[part]


def _help(name: str, keys_of: Sequence[str]) -> str:
    groups = "\n".join(f"  {group}={{{','.join(files)}}}" for group, files in _groups().items())
    keys = "\n".join(
        f"Keys of configs/{file}.yaml:\n"
        + (CONFIG_DIR / f"{file}.yaml").read_text(encoding="utf-8")
        for file in keys_of
    )
    return HELP.format(name=name, groups=groups, keys=keys, traceback=TRACEBACK_VARIABLE)
