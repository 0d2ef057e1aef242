"""The pinned collections hold what their names say."""

import pytest

from arc_data import sources
from arc_data.config import DataConfig


def load(source, canvas=30, tasks=None):
    return sources.load(DataConfig(source=source, canvas=canvas, num_aug=0, seed=0, tasks=tasks))


def test_arc1_mini_is_the_59_tasks_that_fit_6_by_6():
    mini = load("arc1-mini", canvas=6)
    assert len(mini.tasks) == 59
    assert max(task.max_side for task in mini.tasks) == 6
    assert sum(len(task.test) for task in mini.evaluated_tasks) == 69
    evaluation = load("arc1").evaluated
    assert sum(task.id in evaluation for task in mini.tasks) == 13


@pytest.mark.parametrize(
    ("source", "num_tasks", "num_evaluated", "num_pairs"),
    [("arc1", 800, 400, 419), ("arc2", 1120, 120, 167)],
)
def test_the_public_sets_are_complete(source, num_tasks, num_evaluated, num_pairs):
    collection = load(source)
    assert len(collection.tasks) == num_tasks
    assert len(collection.evaluated) == num_evaluated
    assert sum(len(task.test) for task in collection.evaluated_tasks) == num_pairs


def test_the_content_hash_pins_the_data():
    """Another hash means other tasks: numbers of earlier runs are no longer comparable."""
    assert load("arc1").content_hash[:16] == "b6710be2f3f8372c"
    assert load("arc1", tasks=("007bbfb7",)).content_hash != load("arc1").content_hash


def test_a_canvas_excludes_larger_tasks_and_counts_them():
    collection = load("arc1", canvas=6)
    assert len(collection.tasks) == 59
    assert collection.num_too_large == 741
    assert len(collection.evaluated) == 13


def test_a_canvas_that_no_task_fits_says_what_would():
    with pytest.raises(ValueError, match=r"data\.canvas=2: none of the 59 tasks .* allowed is 3"):
        load("arc1-mini", canvas=2)


def test_an_unknown_task_is_named():
    with pytest.raises(ValueError, match=r"data\.tasks: nope not among the 59 tasks of arc1-mini"):
        load("arc1-mini", tasks=("nope",))
