"""Composing a configuration: files of configs/, overrides on top; a mistake is one line."""

import copy
import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hrm_deeploop.config import options_of
from hrm_deeploop.registry import load_plugins, near_names
from hrm_deeploop.runs.overrides import check_form, parse_overrides, quote_ids, quote_value
from hrm_deeploop.scaling import RULES

PACKAGE_DIR = Path(__file__).resolve().parents[1]
# Inside an installed package; at the top of a checkout.
CONFIG_DIR = next(
    place for place in (PACKAGE_DIR / "configs", PACKAGE_DIR.parent / "configs") if place.is_dir()
)
Composed = Any  # a DictConfig: its own annotations offend whoever checks types at run time
MISSING = "???"  # what stands in a file for a value that has to be given


def compose_config(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Compose ``configs/<name>.yaml`` under ``overrides`` into plain containers.

    Raises:
        ValueError: one line that names the override, and what is allowed in its place.
    """
    return Composer(name, overrides).values()


class Composer:
    """A configuration that Hydra composes once; arms, points and seeds are merged on top of it.

    Changes are values by dotted key (``{"scaling": "vanilla", "optim.lr": 1e-3}``). A change that
    chooses a file of a group with defaults of its own (``model``, ``data``) costs one composition
    more, however often it is made.

    Args:
        name: of the file of ``configs/``.
        overrides: ``key=value``, as on the command line.
        changes: values by key that hold in every call of :meth:`values`.
    """

    def __init__(
        self, name: str, overrides: Sequence[str], changes: Mapping[str, Any] | None = None
    ) -> None:
        self.name = name
        self.overrides = [quote_value(quote_ids(override)) for override in overrides]
        check_form(self.overrides, config_groups())
        self.changes = flatten_groups(changes or {})
        self._composed: dict[tuple[str, ...], dict[str, Any]] = {}

    def values(self, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the values under the overrides and ``changes``, as plain containers.

        Raises:
            ValueError: one line that names the override or the key, and what is allowed.
        """
        changes = {**self.changes, **flatten_groups(changes or {})}
        load_plugins(changes.get("plugins", ()))
        groups = {
            key: choice
            for key, choice in changes.items()
            if key in config_groups() and isinstance(choice, str)
        }
        nodes = {key: _plain_node(key, choice) for key, choice in groups.items()}
        files = [f"{key}={choice}" for key, choice in groups.items() if nodes[key] is None]
        values = copy.deepcopy(self._compose(tuple(files)))
        values |= {key: node for key, node in nodes.items() if node is not None}
        defaults = copy.deepcopy(values)
        for key, value in changes.items():
            if key not in groups:
                _check_key(key, defaults, f"{key}={format_value(value)}")
                level = values
                *path, name = key.split(".")
                for part in path:
                    level = level[part]
                level[name] = copy.deepcopy(value)
        strings = list(_strings(values))
        missing = sorted(key for key, text in strings if text == MISSING)
        if missing:
            raise ValueError(f"{missing[0]}: a value is required, {missing[0]}=...")
        return _resolve(values) if any("${" in text for _, text in strings) else values

    def _compose(self, files: tuple[str, ...]) -> dict[str, Any]:
        """Compose under the overrides and the files that changes choose, once for each choice."""
        if files not in self._composed:
            self._composed[files] = _plain(_compose(self.name, [*self.overrides, *files]))
        return self._composed[files]


def _plain(config: Composed, *, resolve: bool = False) -> dict[str, Any]:
    values = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _resolve(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in what refers to other keys.

    Raises:
        ValueError: one line that names what can't be found.
    """
    try:
        return _plain(OmegaConf.create(values), resolve=True)
    except OmegaConfBaseException as error:
        raise ValueError(str(error).split("\n", maxsplit=1)[0]) from error


def _strings(values: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """List the strings of plain containers with their dotted keys."""
    if isinstance(values, str):
        yield key, values
    elif isinstance(values, dict | list):
        for name, entry in values.items() if isinstance(values, dict) else enumerate(values):
            yield from _strings(entry, f"{key}.{name}" if key else str(name))


def _compose(name: str, overrides: list[str]) -> Composed:
    parsed = parse_overrides(overrides)
    load_plugins(_plugins(parsed))
    _offer_rules()
    searched = f"hydra.searchpath=[{','.join(f'file://{place}' for place in config_dirs()[1:])}]"
    with initialize_config_dir(str(CONFIG_DIR), version_base=None):
        _check_groups(parsed)
        try:
            return compose(config_name=name, overrides=[searched, *overrides])
        except (HydraException, OmegaConfBaseException) as error:
            # The keys that there are depend on the files that groups choose.
            chosen = [
                given
                for given, override in zip(overrides, parsed, strict=True)
                if override.key_or_group in config_groups()
            ]
            try:
                plain = compose(config_name=name, overrides=[searched, *chosen])
            except HydraException:
                plain = compose(config_name=name)
                for given, override in zip(overrides, parsed, strict=True):
                    if override.key_or_group in config_groups():
                        shown = f"{given}: {name} takes no file of configs/{override.key_or_group}"
                        raise ValueError(
                            f"{shown}; its keys: {', '.join(map(str, plain))}"
                        ) from error
            defaults = OmegaConf.to_container(plain)
            for override in parsed:
                if not (override.is_add() or override.key_or_group in config_groups()):
                    _check_key(override.key_or_group, defaults, str(override.input_line))
            raise ValueError(str(error).split("\n", maxsplit=1)[0]) from error


def _plugins(parsed: Sequence[Override]) -> list[str]:
    """Return the modules that the overrides name as plugins."""
    for override in parsed:
        value = override.value()
        if override.key_or_group == "plugins" and isinstance(value, list):
            return [str(module) for module in value]
    return []


def _plain_node(group: str, choice: str) -> dict[str, Any] | None:
    """Return the values of a choice that has values alone; None if it has defaults of its own."""
    _check_choice(group, choice)
    if group in REGISTERED:
        return REGISTERED[group](choice)
    text = config_file(f"{group}/{choice}").read_text(encoding="utf-8")
    values = OmegaConf.to_container(OmegaConf.create(text))
    if "@package" in text or not isinstance(values, dict) or "defaults" in values:
        return None
    return {str(key): value for key, value in values.items()}


def flatten_groups(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Write nested values of a group with dotted keys: ``{"optim": {"lr": 1}}`` is ``optim.lr``.

    The values of other keys stay whole, as a transition's name and options do.
    """
    groups, flat = config_groups().keys() | {"evaluation", "alignment"}, {}
    for key, value in changes.items():
        if key in groups and isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": entry for inner, entry in value.items()}
        else:
            flat[key] = value
    return flat


def chosen_files(overrides: Sequence[str], group: str) -> list[str]:
    """The files of a group that the overrides name, as they name them."""
    for override in parse_overrides(overrides):
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


def _rule_values(name: str) -> dict[str, Any]:
    """Return ``scaling`` as a rule's name and the defaults of its options; None is to be given."""
    options = options_of(name).model_fields.items()
    return {
        "rule": name,
        **{key: None if field.is_required() else field.default for key, field in options},
    }


# Groups whose choices are registered kinds, beside those whose choices are files.
REGISTERED: dict[str, Callable[[str], dict[str, Any]]] = {"scaling": _rule_values}


def config_groups() -> dict[str, list[str]]:
    """List the choices of every group, by the group's name."""
    return {**_file_groups(), "scaling": list(RULES)}


def config_dirs() -> list[Path]:
    """List where files of configurations are: the project's, then the working directory's."""
    own = Path.cwd() / "configs"
    return [CONFIG_DIR, *([own] if own.is_dir() and own != CONFIG_DIR else [])]


def config_file(name: str) -> Path:
    """Return the file of a configuration, such as ``arms/vanilla``."""
    places = [place / f"{name}.yaml" for place in config_dirs()]
    return next((path for path in places if path.is_file()), places[0])


def _file_groups() -> dict[str, list[str]]:
    groups: dict[str, set[str]] = {}
    for place in config_dirs():
        for path in place.iterdir():
            if path.is_dir() and not path.name.startswith("_"):
                found = {file.stem for file in path.glob("[!_]*.yaml")}
                groups.setdefault(path.name, set()).update(found)
    return {name: sorted(choices) for name, choices in sorted(groups.items())}


def _offer_rules() -> None:
    """Offer every registered scaling rule to Hydra, as if each had a file."""
    store = ConfigStore.instance()
    for name in RULES:
        store.store(group="scaling", name=name, node=_rule_values(name))


def _check_groups(parsed: Sequence[Override]) -> None:
    groups = config_groups()
    for override in parsed:
        key, value = override.key_or_group, override.value()
        if key not in groups or override.is_delete() or override.is_add():
            continue
        if not isinstance(value, str | list):
            value = [getattr(value, "text", value)]
        for choice in value if isinstance(value, list) else [value]:
            _check_choice(key, choice)


def _check_choice(group: str, choice: Any) -> None:
    allowed = config_groups()[group]
    if choice not in allowed:
        raise ValueError(
            f"{group}={choice}: there is no such choice; {near_names(str(choice), allowed)}"
            + ("; a rule of your own needs plugins=[its module]" if group in REGISTERED else "")
        )


def _check_key(key: str, defaults: Any, shown: str) -> None:
    """Refuse a key that the configuration ``defaults`` does not have; ``shown`` is as given."""
    level, path = defaults, key.split(".")
    for depth, part in enumerate(path):
        if not isinstance(level, dict):
            inside = ".".join(path[:depth])
            raise ValueError(
                f"{shown}: {inside} is one value ({level}), so there is no key "
                f"in it; it is given as a whole, {inside}=..."
            )
        if part not in level:
            allowed = sorted(map(str, level))
            near = difflib.get_close_matches(part, allowed, n=2)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            inside = ".".join(path[:depth]) or "the configuration"
            raise ValueError(
                f"{shown}: there is no key {part!r} in {inside}; "
                f"{hint}allowed: {', '.join(allowed) or 'none'}"
            )
        level = level[part]


def run_name(*, _root_: Any) -> str:
    """Fill in ``${run_name:}`` of ``configs/train.yaml``: data, scaling and seed.

    Between them stand the model, the transitions and the gradient where they are not those that a
    run has without a word about them, so runs that differ in these have places of their own.
    """
    from hrm_deeploop.runs.config import MODELS  # with torch, which commands about data do without

    name = _root_.model.name
    if name not in MODELS or MODELS[name].depth_key not in _root_.model:
        return str(name)  # what is wrong is said when the values are checked
    kind = MODELS[name]
    parts = [_root_.data.source, kind.short_name(_root_.model), _root_.scaling.rule]
    for key, module in kind.loops.items():
        if _root_[key] != "huginn":
            parts.append(f"{module}-{_joined(_root_[key])}")
    if _root_.gradient != kind.gradients[0]:
        parts.append(_root_.gradient)
    return "-".join([*(str(part) for part in parts if part), f"seed{_root_.seed}"])


def _joined(choice: Any) -> str:
    """A name, or a name and its options, without what is no part of a file's name."""
    words = choice.values() if isinstance(choice, DictConfig) else [choice]
    return "-".join(re.sub(r"[^\w.]+", "_", str(word)) for word in words)


OmegaConf.register_new_resolver("run_name", run_name)
