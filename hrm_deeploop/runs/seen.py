"""What a run has seen: the content of its tasks, and every pair that ever trained.

A checkpoint keeps both as tasks.json. The content says, task by task and pair by pair, whether the
data of an evaluation is the run's. The pairs that trained are known by their canonical keys, so a
pair that trained is recognised in another place, under another id, moved or recolored.
"""

import json
from collections.abc import Container, Iterable
from hashlib import sha256
from typing import NamedTuple

from arc_data.grid import Grid, grid_key
from arc_data.leaks import TrainingSet, canonical_key
from arc_data.sources import Collection
from arc_data.task import Pair, Task
from eval.record import Record

TASKS_FILE = "tasks.json"
DIGEST_SIZE = 16  # bytes; 128 bits of SHA-256
MOST_NAMED = 3  # differences in a message


class PairContent(Record):
    """SHA-256 of a pair's grids, its first 128 bits; ``output`` is None where it is not known."""

    input: str
    output: str | None


class TaskContent(Record):
    """The pairs of a task, in order."""

    train: tuple[PairContent, ...]
    test: tuple[PairContent, ...]


class Seen(Record):
    """What tasks.json holds.

    ``trained`` is None where it is not known, as for a checkpoint of another code.
    """

    tasks: dict[str, TaskContent]  # by id
    evaluated: tuple[str, ...]  # ids of the tasks whose test pairs are held out, sorted
    trained: tuple[str, ...] | None  # canonical keys of the pairs that have trained, sorted


class SeenPair(NamedTuple):
    """A test pair that the run has trained on."""

    task_id: str
    number: int


def see(collection: Collection, training: TrainingSet | None, before: Seen | None = None) -> Seen:
    """Return what a run has seen once it trains on ``training``, after what it had seen before.

    ``training`` is None where it is not known what trained.
    """
    trained: tuple[str, ...] | None = None
    if training is not None and (before is None or before.trained is not None):
        earlier = set() if before is None else set(before.trained or ())
        trained = tuple(sorted({_key(pair) for pairs in training for pair in pairs} | earlier))
    return Seen(
        tasks=_contents(collection.tasks),
        evaluated=tuple(sorted(map(_printable, collection.evaluated))),
        trained=trained,
    )


def describe_differences(seen: Seen, collection: Collection) -> str | None:
    """Say in which pairs a run's tasks and those of a collection differ; None if in none.

    Tasks that one side alone has are not compared. A test output that is known on one side alone is
    no difference: solutions become known.
    """
    found, evaluated = [], set(map(_printable, collection.evaluated))
    for task_id, now in _contents(collection.tasks).items():
        then = seen.tasks.get(task_id)
        if then is not None and then != now:
            found += [f"task {task_id}, {what}" for what in _differences(then, now)]
        if then is not None and (task_id in seen.evaluated) != (task_id in evaluated):
            was, is_now = ("", "not ") if task_id in seen.evaluated else ("not ", "")
            found.append(f"task {task_id} was {was}evaluated and is {is_now}evaluated now")
    if not found:
        return None
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return "; ".join(found[:MOST_NAMED]) + more


def trained_tests(seen: Seen, collection: Collection) -> list[SeenPair]:
    """List the test pairs of evaluated tasks that the run has trained on.

    A test pair that is a copy of a demonstration of its own task is ARC's doing and not listed.
    """
    trained = set(seen.trained or ())
    return [
        SeenPair(task.id, number)
        for task in collection.evaluated_tasks
        for number in trained_numbers(task, trained)
    ]


def untrained_validation(seen: Seen, collection: Collection) -> tuple[Task, ...]:
    """Return the validation tasks whose held-out demonstration the run has not trained on."""
    trained = set(seen.trained or ())
    return tuple(task for task in collection.validation_tasks if not trained_numbers(task, trained))


def trained_numbers(task: Task, trained: Container[str]) -> list[int]:
    """List the test pairs of a task that trained, but for copies of its own demonstrations."""
    own = {_key(pair) for pair in task.train}
    return [
        number
        for number, pair in enumerate(task.test)
        if pair.output is not None and _key(pair) in trained and _key(pair) not in own
    ]


def _contents(tasks: Iterable[Task]) -> dict[str, TaskContent]:
    return {
        _printable(task.id): TaskContent(
            train=tuple(map(_content, task.train)), test=tuple(map(_content, task.test))
        )
        for task in tasks
    }


def _printable(task_id: str) -> str:
    """Write an id so that a file holds it: a lone surrogate, which JSON may have, by its escape."""
    return json.dumps(task_id)[1:-1]


def _content(pair: Pair) -> PairContent:
    output = None if pair.output is None else _short(grid_key(pair.output))
    return PairContent(input=_short(grid_key(pair.input)), output=output)


def _short(key: tuple[tuple[int, ...], bytes]) -> str:
    return sha256(repr(key).encode()).digest()[:DIGEST_SIZE].hex()


def _key(pair: Pair) -> str:
    grids: tuple[Grid, ...] = pair.grids
    return canonical_key(grids)[:DIGEST_SIZE].hex()


def _differences(then: TaskContent, now: TaskContent) -> list[str]:
    found = []
    for part in ("train", "test"):
        before, after = getattr(then, part), getattr(now, part)
        if len(before) != len(after):
            found.append(f"{part} has {len(after)} pairs, the run's {len(before)}")
        for number, (one, other) in enumerate(zip(before, after, strict=False)):
            outputs = {one.output, other.output} - {None}
            if one.input != other.input or len(outputs) > 1:
                found.append(f"{part} pair {number} has other grids")
    return found
