"""Collections hold what their names say, combine, and hold out what was asked for."""

import json

import pytest
from pydantic import ValidationError

from arc_data import sources

PAIR = {"input": [[1]], "output": [[2]]}


def write_tasks(folder, *ids, color=1):
    folder.mkdir(parents=True, exist_ok=True)
    for task_id in ids:
        task = {"train": [PAIR], "test": [{"input": [[color]], "output": [[2]]}]}
        (folder / f"{task_id}.json").write_text(json.dumps(task))
    return str(folder)


def test_arc1_mini_is_the_59_tasks_that_fit_6_by_6(data_config):
    mini = sources.load(data_config(canvas=6))
    assert len(mini.tasks) == 59
    assert max(task.max_side for task in mini.tasks) == 6
    assert sum(len(task.test) for task in mini.evaluated_tasks) == 69
    assert [task.split for task in mini.tasks].count("evaluation") == 13


@pytest.mark.parametrize(
    ("source", "num_tasks", "num_evaluated", "num_pairs"),
    [("arc1", 800, 400, 419), ("arc2", 1120, 120, 167)],
)
def test_the_public_sets_are_complete(source, num_tasks, num_evaluated, num_pairs, data_config):
    collection = sources.load(data_config(source=source, evaluate="evaluation"))
    assert len(collection.tasks) == num_tasks
    assert len(collection.evaluated) == num_evaluated
    assert sum(len(task.test) for task in collection.evaluated_tasks) == num_pairs


def test_the_content_hash_pins_the_data(data_config):
    """Another hash means other tasks: numbers of earlier runs are no longer comparable."""
    arc1 = sources.load(data_config(source="arc1", evaluate="evaluation"))
    assert arc1.content_hash[:16] == "b6710be2f3f8372c"
    other = sources.load(data_config(source="arc1", evaluate="all"))
    assert other.content_hash != arc1.content_hash


def test_a_canvas_excludes_larger_tasks_by_name(data_config):
    collection = sources.load(data_config(source="arc1", canvas=6, evaluate="evaluation"))
    assert len(collection.tasks) == 59
    assert len(collection.too_large) == 741
    assert "007bbfb7" in collection.too_large
    assert len(collection.evaluated) == 13


def test_a_canvas_that_no_task_fits_says_what_would(data_config):
    with pytest.raises(ValueError, match=r"data\.canvas=2: none of the 59 tasks .* allowed is 3"):
        sources.load(data_config(canvas=2))


@pytest.mark.parametrize("key", ["tasks", "evaluate"])
def test_an_unknown_id_is_named(key, data_config):
    message = rf"data\.{key}=\['nope'\]: nope not among the 59 tasks of arc1-mini"
    with pytest.raises(ValueError, match=message):
        sources.load(data_config(**{key: ("nope",)}))


@pytest.mark.parametrize(
    ("evaluate", "expected"),
    [
        ("all", 59),
        ("none", 0),
        ("training", 46),
        ("evaluation", 13),
        (0.25, 15),
        (("0d3d703e",), 1),
    ],
)
def test_what_is_evaluated_is_chosen_by_split_ids_or_share(evaluate, expected, data_config):
    assert len(sources.load(data_config(evaluate=evaluate)).evaluated) == expected


def test_a_share_depends_on_the_seed_and_not_on_the_other_tasks(data_config):
    chosen = sources.load(data_config(evaluate=0.5)).evaluated
    assert chosen != sources.load(data_config(evaluate=0.5, seed=1)).evaluated
    assert sources.load(data_config(evaluate=0.25)).evaluated < chosen


@pytest.mark.parametrize("evaluate", [0.0, 1.0, 2, True, "test", [], [1], None])
def test_another_form_of_evaluate_is_refused(evaluate, data_config):
    with pytest.raises(
        ValidationError, match="allowed are evaluation, training, all, none, a share"
    ):
        data_config(evaluate=evaluate)


def test_folders_combine_and_an_extra_folder_only_trains(data_config, tmp_path):
    first = write_tasks(tmp_path / "one" / "evaluation", "a", "b")
    second = write_tasks(tmp_path / "two", "c")
    extra = write_tasks(tmp_path / "three" / "evaluation", "d")
    collection = sources.load(
        data_config(
            source="folder", folders=(first, second), extra_folders=(extra,), evaluate="evaluation"
        )
    )
    assert [task.id for task in collection.tasks] == ["a", "b", "c", "d"]
    assert collection.evaluated == {"a", "b"}
    assert [one.name for one in collection.contributions] == [first, second, extra]


def test_of_tasks_with_one_id_the_first_counts_and_the_rest_is_listed(data_config, tmp_path):
    first = write_tasks(tmp_path / "one", "a", "b", color=1)
    second = write_tasks(tmp_path / "two", "b", "c", color=5)
    collection = sources.load(
        data_config(source="folder", folders=(first,), extra_folders=(second,), evaluate="all")
    )
    assert [task.id for task in collection.tasks] == ["a", "b", "c"]
    assert collection.repeated == ("b",)
    assert collection.tasks[1].test[0].input.item() == 1
    assert collection.evaluated == {"a", "b"}


def test_arc1_evaluation_recurs_in_arc2_training(data_config):
    collection = sources.load(
        data_config(
            source="arc1",
            splits=("evaluation",),
            extra_sources=("arc2/training",),
            evaluate="evaluation",
        )
    )
    assert len(collection.evaluated) == 400
    assert len(collection.repeated) == 376
    assert len(collection.tasks) == 400 + 1000 - 376


def test_the_licence_of_a_folder_is_read_from_beside_it(data_config, tmp_path):
    folder = write_tasks(tmp_path / "set" / "corpus", "a")
    (tmp_path / "set" / "LICENSE").write_text("\nMIT License\n\nCopyright")
    collection = sources.load(data_config(source="folder", folders=(folder,)))
    assert collection.contributions[0].licence == "MIT License"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(source="folder"), "source=folder needs folders"),
        (dict(source="kaggle"), "source=kaggle needs challenges"),
        (dict(folders=("x",)), "belongs to source=folder, not arc1-mini"),
        (dict(solutions="x"), "solutions=.*/x needs challenges"),
    ],
)
def test_a_source_needs_its_paths_and_no_others(changes, message, data_config):
    with pytest.raises(ValidationError, match=message):
        data_config(**changes)


@pytest.mark.parametrize("name", ["arc3", "arc2/test", "latest", "folder"])
def test_an_unknown_extra_source_is_refused(name, data_config):
    with pytest.raises(ValueError, match=f"data.extra_sources={name}: allowed are arc1, arc1-mini"):
        sources.load(data_config(extra_sources=(name,)))
