"""Task files: folders of JSON as in ARC-AGI and ConceptARC, and Kaggle's pairs of files.

Reading does not stop at the first problem: :class:`~arc_data.task.InvalidDataError` carries all.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from arc_data.grid import grid_problems, shown
from arc_data.task import InvalidDataError, Split, Task, parse_task, task_problems


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


def read_folder(folder: Path) -> list[Task]:
    """Every ``*.json`` under ``folder``, at any depth; the id of a task is its file's stem.

    A folder named ``training`` or ``evaluation`` on the way says which split a task is of (training
    if none does). Hidden files are passed over.

    Raises:
        InvalidDataError: with every problem of every file, ids that occur twice included.
    """
    if not folder.is_dir():
        raise InvalidDataError([f"{folder}: expected a folder of task files"])
    paths = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() == ".json"
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not paths:
        raise InvalidDataError([f"{folder}: expected at least one .json file"])
    tasks, problems, seen = [], [], {}
    for path in paths:
        first = seen.setdefault(path.stem, path)
        if first != path:
            problems.append(f"{path}: expected an id of its own, {first} has the same")
        try:
            tasks.append(_read_task_file(path, _split_of(folder, path)))
        except InvalidDataError as error:
            problems.extend(error.problems)
    if problems:
        raise InvalidDataError(problems)
    return tasks


def _read_task_file(path: Path, split: Split) -> Task:
    return parse_task(path.stem, read_json(path), str(path), split)


def _split_of(folder: Path, path: Path) -> Split:
    for name in reversed((folder.resolve().name, *path.relative_to(folder).parts[:-1])):
        if name in ("training", "evaluation"):
            return name
    return "training"


def read_kaggle(challenges: Path, solutions: Path | None) -> list[Task]:
    """The tasks of a ``*_challenges.json``, with the outputs of its ``*_solutions.json`` if given.

    Raises:
        InvalidDataError: with every problem of both files, and where they do not fit together.
    """
    tasks = _read_object(challenges, "task ids", task_problems)
    outputs = {}
    if solutions is not None:
        outputs = _read_object(solutions, "task ids", _solution_problems)
        problems = list(_mismatches(tasks, outputs, challenges, solutions))
        if problems:
            raise InvalidDataError(problems)
    for task_id, grids in outputs.items():
        for entry, grid in zip(tasks[task_id]["test"], grids, strict=True):
            entry["output"] = grid
    return [
        parse_task(task_id, value, f"{challenges}, task {shown(task_id)}", "evaluation")
        for task_id, value in sorted(tasks.items())
    ]


def _read_object(
    path: Path, keys: str, problems_of: Callable[[Any, str], Iterator[str]]
) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict) or not value:
        raise InvalidDataError(
            [f"{path}: expected an object with {keys} as keys, got {shown(value)}"]
        )
    problems = [
        problem
        for task_id, entry in value.items()
        for problem in problems_of(entry, f"{path}, task {shown(task_id)}")
    ]
    if problems:
        raise InvalidDataError(problems)
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
    for task_id in tasks:
        if task_id not in outputs:
            yield f"{solutions}: expected task {shown(task_id)} of {challenges.name}, got none"
    for task_id, grids in outputs.items():
        if task_id not in tasks:
            yield f"{solutions}, task {shown(task_id)}: expected a task of {challenges.name}"
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
