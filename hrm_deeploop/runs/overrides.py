"""Overrides as a shell passes them: quoted for Hydra, and refused where no command means them."""

import json
import re
from collections.abc import Mapping, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

MANY = ("arms",)  # groups of which a command takes several files
# Overrides whose list elements are task ids.
ID_LIST = re.compile(r"(?P<key>tasks|data\.tasks|data\.evaluate)=\[(?P<ids>.+)\]")
LIST_ELEMENT = re.compile(r"""\s*'[^']*'|\s*"[^"]*"|[^,]+""")


def quote_ids(override: str) -> str:
    """Quote the ids of an override that lists ids: Hydra would read 00576224 as a number."""
    match = ID_LIST.fullmatch(override)
    if match is None:
        return override
    ids = [part.strip() for part in LIST_ELEMENT.findall(match["ids"])]
    quoted = [part if part[:1] in ("'", '"') else json.dumps(part) for part in ids]
    return f"{match['key']}=[{','.join(quoted)}]"


def quote_value(override: str) -> str:
    """Quote a value that Hydra can't read as it stands, such as a path with a space or a ``=``.

    Of a list that can't be read, each element that can't.
    """
    key, equals, value = override.partition("=")
    if not equals or not value or _is_readable(override):
        return override
    if value[0] == "[" and value[-1] == "]":
        parts = [part.strip() for part in LIST_ELEMENT.findall(value[1:-1])]
        quoted = [part if _is_readable(f"{key}=[{part}]") else _quote(part) for part in parts]
        return f"{key}=[{','.join(quoted)}]"
    return override if value[0] in "[{'\"" else f"{key}={_quote(value)}"


def _quote(value: str) -> str:
    """Quote a value as Hydra's grammar does: a backslash before a quote and at the end."""
    inner = re.sub(r'(\\*)("|$)', lambda m: 2 * m[1] + ('\\"' if m[2] else ""), value)
    return f'"{inner}"'


def _is_readable(override: str) -> bool:
    try:
        OverridesParser.create().parse_override(override)
    except HydraException:
        return False
    return True


def check_form(overrides: Sequence[str], groups: Mapping[str, Sequence[str]]) -> None:
    """Refuse what Hydra's grammar takes and no command means.

    Args:
        groups: the choices of every group of files, by its name.

    Raises:
        ValueError: one line with what works in its place.
    """
    for given, override in zip(overrides, parse_overrides(overrides), strict=True):
        key, value = override.key_or_group, override.value()
        if not key:
            raise ValueError(f"{given!r}: expected key=value (see --help)")
        if key.split(".")[0] == "hydra":
            raise ValueError(
                f"{given}: Hydra's own settings are not used; run_dir=... names the run"
            )
        if override.package is not None:
            raise ValueError(f"{given}: give the key alone, {key}=..., without @")
        if override.is_delete():
            raise ValueError(f"{given}: nothing can be deleted; null switches off what may be off")
        if override.is_sweep_override():
            listed = given.partition("=")[2]
            if key == "seed":
                raise ValueError(
                    f"{given}: one run has one seed; compare seeds=[{listed}] has several"
                )
            raise ValueError(
                f"{given}: several values; one value with commas in it is '{key}=\"{listed}\"', a "
                f"list {key}=[{listed}], and compare trains several"
            )
        if key in groups and override.is_add():
            raise ValueError(f"{given}: leave the + out, {given.lstrip('+')}")
        if key in groups and isinstance(value, list) and key not in MANY:
            raise ValueError(f"{given}: one of {', '.join(groups[key])} is expected, no list")


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Read overrides by Hydra's grammar.

    Raises:
        ValueError: one line that names what is none.
    """
    parser, parsed = OverridesParser.create(), []
    for override in overrides:
        if override in ("-m", "--multirun"):
            raise ValueError(
                f"{override}: compare trains several, with seeds=[0,1,2] and "
                "'grid={optim.lr:[1e-3,2e-3]}'"
            )
        try:
            parsed.append(parser.parse_override(override))
        except HydraException as error:
            raise ValueError(f"{override!r}: expected key=value (see --help)") from error
    return parsed
