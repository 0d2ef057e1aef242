"""Kinds by name: scaling rules, transitions, models, optimisers, loggers.

A kind is registered where it is defined, by a decorator, and owns its facts. Whoever needs one asks
for it by the name that a configuration has. A module of the user's registers its own kinds in the
same way; :func:`load_plugins` imports it.
"""

import difflib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

Kind = TypeVar("Kind")
PACKAGE = __name__.partition(".")[0]
NOTEBOOK = "__main__"  # the module of what a notebook or a script defines


class UnknownNameError(ValueError):
    """Nothing of that name is registered."""


class Registry(Generic[Kind]):
    """Kinds of one sort by name, in the order in which they were registered.

    Args:
        key: the configuration key that chooses one, for messages.
        what: what one of them is called, for messages.
    """

    def __init__(self, key: str, what: str) -> None:
        self.key = key
        self.what = what
        self._kinds: dict[str, Kind] = {}
        self._origins: dict[str, str] = {}
        REGISTRIES[key] = self

    def register(self, name: str) -> Callable[[Any], Any]:
        """Return a decorator that registers what it decorates, and returns it.

        Raises:
            ValueError: if another place has registered the name. The same definition may come
                again, as when a notebook's cell is run twice.
        """

        def decorate(kind: Any) -> Any:
            self.add(name, kind, origin=kind.__module__)
            return kind

        return decorate

    def add(self, name: str, kind: Kind, *, origin: str) -> None:
        """Register ``kind``, which the module ``origin`` defines."""
        known = self._origins.get(name)
        if known is not None and known != origin:
            raise ValueError(
                f"{self.key}={name}: {origin} registers a {self.what} of a name that {known} has "
                "registered; choose another name"
            )
        self._kinds[name] = kind
        self._origins[name] = origin

    def __getitem__(self, name: str) -> Kind:
        """Return the kind of that name.

        Raises:
            UnknownNameError: naming the nearest known names, and all.
        """
        if name not in self._kinds:
            raise UnknownNameError(
                f"{self.key}={name}: there is no such {self.what}; {near_names(name, self)}; "
                "a kind of your own needs plugins=[its module]"
            )
        return self._kinds[name]

    def __contains__(self, name: object) -> bool:
        return name in self._kinds

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def origin(self, name: str) -> str | None:
        """Return the module that defined a kind of the user's own; None for one of ours."""
        origin = self._origins.get(name)
        ours = origin is None or origin.split(".")[0] == PACKAGE
        return None if ours else origin

    def defined_in(self, module: str) -> dict[str, Kind]:
        """Return the kinds that a module defined, by name."""
        return {name: self._kinds[name] for name, o in self._origins.items() if o == module}


REGISTRIES: dict[str, Registry[Any]] = {}


def near_names(name: str, known: Iterable[str]) -> str:
    """Say which known names are near a mistaken one, and which there are."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=2)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{hint}allowed: {', '.join(names) or 'none'}"


def load_plugins(modules: Iterable[str]) -> None:
    """Import the user's modules, which register their kinds; the working directory is searched too.

    It stays on the path: workers, which search where this process does, find the modules as well.

    Raises:
        ValueError: naming the module that can't be imported, and why.
    """
    for name in modules:
        if name == NOTEBOOK or name in sys.modules:
            continue
        place = str(Path.cwd())
        if place not in sys.path:
            sys.path.append(place)
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ValueError(f"plugins=[{name}]: can't be imported ({error})") from error


Kinds = dict[str, dict[str, Any]]
"""Kinds by name, by the key of their registry."""


def notebook_kinds() -> Kinds:
    """Return what a notebook or script has registered, which no other process can import."""
    return {key: registry.defined_in(NOTEBOOK) for key, registry in REGISTRIES.items()}


def register_all(kinds: Kinds) -> None:
    """Register the kinds of another process's notebook."""
    for key, named in kinds.items():
        for name, kind in named.items():
            REGISTRIES[key].add(name, kind, origin=NOTEBOOK)
