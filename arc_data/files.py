"""Task files: folders of JSON as in ARC-AGI and ConceptARC, and Kaggle's pairs of files.

Reading does not stop at the first problem: :class:`~arc_data.task.InvalidDataError` carries all.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from arc_data.grid import GRID_TOO_LARGE, MAX_SIDE, grid_problems, shown
from arc_data.task import InvalidDataError, Split, Task, parse_task, task_problems

INVALID = "not a valid task"
LARGER_THAN_ARC = f"larger than {MAX_SIDE} x {MAX_SIDE}"
REPEATED = "an id that an earlier task has"


def read_json(path: Path) -> Any:
    """The value of a JSON file.

    Raises:
        InvalidDataError: if the file can't be read, is not UTF-8 or JSON, or repeats a key.
    """
    if not path.is_file():  # a pipe would be waited for
        raise InvalidDataError([f"{path}: expected a file, got {_kind(path)}"])
    repeated: list[str] = []

    def build(entries: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(entries)
        if len(built) < len(entries):
            keys = [key for key, _ in entries]
            repeated.extend(key for key in built if keys.count(key) > 1)
        return built

    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=build)
    except OSError as error:
        raise InvalidDataError([f"{path}: expected a readable file ({error.strerror})"]) from error
    except UnicodeDecodeError as error:
        raise InvalidDataError([f"{path}: expected UTF-8 text (byte {error.start})"]) from error
    except RecursionError as error:
        raise InvalidDataError([f"{path}: expected JSON, got too many nested lists"]) from error
    except ValueError as error:
        raise InvalidDataError([f"{path}: expected JSON ({error})"]) from error
    if repeated:
        raise InvalidDataError(f"{path}: expected key {shown(key)} once" for key in repeated)
    return value


def _kind(path: Path) -> str:
    if path.is_dir():
        return "a folder"
    return "something that is no regular file" if path.exists() else "nothing there"


class LeftOut(NamedTuple):
    """A task that can't be used: why, and every problem, one line each."""

    task_id: str
    reason: str
    split: Split
    problems: tuple[str, ...]


class Found(NamedTuple):
    """The tasks of a folder or file, and those of it that can't be used."""

    tasks: list[Task]
    left_out: list[LeftOut]

    def strictly(self) -> list[Task]:
        """Return the tasks.

        Raises:
            InvalidDataError: with every problem, if one can't be used.
        """
        if self.left_out:
            raise InvalidDataError(line for entry in self.left_out for line in entry.problems)
        return self.tasks


def read_folder(folder: Path) -> list[Task]:
    """Read every task of a folder; see :func:`find_tasks`.

    Raises:
        InvalidDataError: with every problem of every file, ids that occur twice included.
    """
    return find_tasks(folder).strictly()


def find_tasks(folder: Path) -> Found:
    """Find every ``*.json`` under ``folder``, at any depth; a task's id is its file's stem.

    A folder named ``training`` or ``evaluation`` on the way says which split a task is of (training
    if none does). Links to folders are followed, hidden files are passed over. Of two files with
    one id the first counts, by path.

    Raises:
        InvalidDataError: if there is no such folder, a folder in it can't be read, or no task in it
            can be used.
    """
    if not folder.is_dir():
        raise InvalidDataError([f"{folder}: expected a folder of task files"])
    paths = sorted(_task_files(folder))
    if not paths:
        raise InvalidDataError([f"{folder}: expected at least one .json file"])
    found, seen = Found([], []), {}
    for path in paths:
        split, first = _split_of(folder, path), seen.setdefault(path.stem, path)
        if first != path:
            problem = f"{path}: expected an id of its own, {first} has the same"
            found.left_out.append(LeftOut(path.stem, REPEATED, split, (problem,)))
            continue
        _add(found, path.stem, split, lambda path=path, split=split: _read_task_file(path, split))
    return _usable(found)


def _task_files(folder: Path) -> Iterator[Path]:
    """Every file that names a task, under ``folder`` and where links in it lead, each folder once.

    Raises:
        InvalidDataError: if a folder can't be read.
    """

    def refuse(error: OSError) -> None:
        raise InvalidDataError([f"{error.filename}: can't be read ({error.strerror})"]) from error

    seen: set[str] = set()
    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:  # a link to a folder that it is in
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in (*names, *(name for name in folders if Path(name).suffix.lower() == ".json")):
            if Path(name).suffix.lower() == ".json" and not name.startswith("."):
                yield Path(place) / name


def _add(found: Found, task_id: str, split: Split, read: Callable[[], Task]) -> None:
    """Read a task, or list it with the reason why it can't be used."""
    try:
        found.tasks.append(read())
    except InvalidDataError as error:
        too_large = all(GRID_TOO_LARGE in problem for problem in error.problems)
        reason = LARGER_THAN_ARC if too_large else INVALID
        found.left_out.append(LeftOut(task_id, reason, split, error.problems))


def _usable(found: Found) -> Found:
    """Return what was found, if there is a task in it.

    Raises:
        InvalidDataError: with every problem, if there is none.
    """
    if not found.tasks:
        found.strictly()
    return found


def _read_task_file(path: Path, split: Split) -> Task:
    """Read a task; a list of pairs, as re-arc's files are, demonstrates with all but the last."""
    value = read_json(path)
    if isinstance(value, list) and len(value) > 1:
        value = {"train": value[:-1], "test": value[-1:]}
    return parse_task(path.stem, value, str(path), split)


def _split_of(folder: Path, path: Path) -> Split:
    for name in reversed((folder.resolve().name, *path.relative_to(folder).parts[:-1])):
        if name in ("training", "evaluation"):
            return name
    return "training"


def read_kaggle(challenges: Path, solutions: Path | None) -> list[Task]:
    """Read every task of Kaggle's files; see :func:`find_kaggle`.

    Raises:
        InvalidDataError: with every problem of both files, and where they do not fit together.
    """
    return find_kaggle(challenges, solutions).strictly()


def find_kaggle(challenges: Path, solutions: Path | None) -> Found:
    """Find the tasks of a ``*_challenges.json``, with the outputs of its ``*_solutions.json``.

    Raises:
        InvalidDataError: if a file is none, they do not fit together, or no task can be used.
    """
    values = _read_object(challenges)
    outputs = {}
    if solutions is not None:
        outputs = _read_object(solutions)
        problems = [
            problem
            for task_id, entry in outputs.items()
            for problem in _solution_problems(entry, f"{solutions}, task {shown(task_id)}")
        ]
        problems = problems or list(_mismatches(values, outputs, challenges, solutions))
        if problems:
            raise InvalidDataError(problems)
    found = Found([], [])
    for task_id, value in sorted(values.items()):
        where = f"{challenges}, task {shown(task_id)}"

        def read(task_id: str = task_id, value: Any = value, where: str = where) -> Task:
            problems = list(task_problems(value, where))
            if problems:
                raise InvalidDataError(problems)
            for entry, grid in zip(value["test"], outputs.get(task_id, ()), strict=False):
                entry["output"] = grid
            return parse_task(task_id, value, where, "evaluation")

        _add(found, task_id, "evaluation", read)
    return _usable(found)


def _read_object(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict) or not value:
        raise InvalidDataError(
            [f"{path}: expected an object with task ids as keys, got {shown(value)}"]
        )
    return value


def _solution_problems(value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{where}: expected a list of grids, got {shown(value)}"
        return
    for i, grid in enumerate(value):
        yield from grid_problems(grid, f"{where}, test pair {i}, output")


def _mismatches(
    tasks: dict[str, Any], outputs: dict[str, Any], challenges: Path, solutions: Path
) -> Iterator[str]:
    known = set(tasks)
    tasks = {id_: value for id_, value in tasks.items() if not any(task_problems(value, ""))}
    for task_id in tasks:
        if task_id not in outputs:
            yield f"{solutions}: expected task {shown(task_id)} of {challenges.name}, got none"
    for task_id, grids in outputs.items():
        if task_id not in known:
            yield f"{solutions}, task {shown(task_id)}: expected a task of {challenges.name}"
        elif task_id not in tasks:
            continue  # its challenge can't be used
        elif len(grids) != len(tasks[task_id]["test"]):
            yield (
                f"{solutions}, task {shown(task_id)}: expected {len(tasks[task_id]['test'])} "
                f"outputs as in {challenges.name}, got {len(grids)}"
            )
        else:
            for i, entry in enumerate(tasks[task_id]["test"]):
                if entry.get("output") not in (None, grids[i]):
                    yield (
                        f"{solutions}, task {shown(task_id)}, test pair {i}: expected the output "
                        f"that {challenges.name} has"
                    )


def read_any(path: Path) -> list[Task]:
    """The tasks of a folder, of one task file, or of a Kaggle challenges or solutions pair.

    A ``*_challenges.json`` is read with the ``*_solutions.json`` beside it, if there is one.

    Raises:
        InvalidDataError: with every problem found.
    """
    if path.is_dir():
        return read_folder(path)
    if path.name.endswith("_challenges.json"):
        solutions = path.with_name(path.name.replace("_challenges.json", "_solutions.json"))
        return read_kaggle(path, solutions if solutions.exists() else None)
    return [_read_task_file(path, "training")]
