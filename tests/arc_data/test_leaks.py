"""A leak is found whatever augmentation hides it, and nothing else is."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arc_data import sources
from arc_data.augment import from_dihedral
from arc_data.leaks import canonical_key, find_leaks, format_match, training_set

colors = st.permutations(range(1, 10)).map(lambda p: (0, *p))
cells = st.lists(st.integers(0, 9), min_size=6, max_size=6)


@given(cells, cells, colors, st.integers(0, 7))
def test_the_key_is_the_same_under_every_augmentation(first, second, colors, dihedral):
    grids = [np.array(cells, dtype=np.uint8).reshape(2, 3) for cells in (first, second)]
    move = from_dihedral(dihedral, colors)
    assert canonical_key(grids) == canonical_key([move.apply(grid) for grid in grids])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([[0, 1]], [[1, 0, 0]]),  # shape
        ([[0, 1]], [[1, 1]]),  # black is kept
        ([[0, 0, 1]], [[1, 1, 0]]),
        ([[1, 2, 1]], [[1, 1, 2]]),
        ([[1, 2, 3, 4]], [[1, 2], [3, 4]]),
    ],
)
def test_other_content_has_another_key(one, other):
    grid = np.array([[5]], dtype=np.uint8)
    keys = [canonical_key([np.array(value, dtype=np.uint8), grid]) for value in (one, other)]
    assert keys[0] != keys[1]


def test_input_and_output_move_together():
    """Turning the output alone is another pair: its key must not be made grid by grid."""
    grid = np.array([[1, 0, 0], [1, 2, 0]], dtype=np.uint8)
    assert canonical_key([grid, grid]) != canonical_key([grid, np.rot90(grid, 2)])


L_PAIR = {"input": [[1, 0, 0], [1, 2, 0]], "output": [[3, 3]]}
# L_PAIR with 1, 2, 3 -> 4, 5, 6 after a quarter turn left
TURNED = {"input": [[0, 0], [0, 5], [4, 4]], "output": [[6], [6]]}
OTHER = {"input": [[7, 7]], "output": [[0, 7]]}


def load(data_config, tmp_path, evaluated, trained, **changes):
    for split, tasks in (("evaluation", evaluated), ("training", trained)):
        for task_id, (train, test) in tasks.items():
            path = tmp_path / split / f"{task_id}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps({"train": train, "test": test}))
    return sources.load(
        data_config(source="folder", folders=(str(tmp_path),), evaluate="evaluation", **changes)
    )


def test_a_leak_is_found_named_and_excluded(data_config, tmp_path):
    collection = load(
        data_config,
        tmp_path,
        {"held": ([OTHER], [OTHER, L_PAIR])},
        {"a": ([OTHER, TURNED], [TURNED])},
    )
    report = find_leaks(collection)
    assert [format_match(match) for match in report.across] == [
        "test pair 0 of held is train pair 0 of a",
        "test pair 1 of held is train pair 1 of a",
        "test pair 1 of held is test pair 0 of a",
    ]
    assert [format_match(m) for m in report.within] == [
        "test pair 0 of held is train pair 0 of held"
    ]
    by_task = dict(
        zip(
            (task.id for task in collection.tasks),
            map(len, training_set(collection, report, "exclude")),
            strict=True,
        )
    )
    assert by_task == {"a": 0, "held": 1}  # the held-out task keeps its own demonstration
    assert sum(map(len, training_set(collection, report, "keep"))) == 4
    with pytest.raises(ValueError, match=r"data\.leaks=error: 3 held-out pairs"):
        training_set(collection, report, "error")


def test_a_held_out_demonstration_does_not_train_in_another_task(data_config, tmp_path):
    other = {"input": [[7, 8, 7]], "output": [[0, 7]]}
    tasks = {"a": ([OTHER, other, L_PAIR], [OTHER]), "b": ([TURNED], [other])}
    collection = load(data_config, tmp_path, {}, tasks, validation=0.9)
    assert collection.validation == {"a"}
    report = find_leaks(collection)
    assert [format_match(match) for match in report.across] == [
        "train pair 2 of a is train pair 0 of b"
    ]
    trained = training_set(collection, report, "exclude")
    assert list(map(len, trained)) == [3, 1]  # a keeps two demonstrations and its test pair
    held = canonical_key([np.array(grid, np.uint8) for grid in L_PAIR.values()])
    assert held not in {canonical_key(pair.grids) for pairs in trained for pair in pairs}


def test_validation_without_a_task_of_three_demonstrations_is_refused(data_config, tmp_path):
    with pytest.raises(ValueError, match=r"data\.validation=0\.5: no task of folder has three"):
        load(data_config, tmp_path, {}, {"a": ([OTHER, L_PAIR], [OTHER])}, validation=0.5)


def test_no_test_pair_of_an_evaluated_task_trains(data_config):
    """By content, up to augmentation, on real tasks."""
    collection = sources.load(data_config(source="arc1", canvas=12, evaluate="evaluation"))
    trained = training_set(collection, find_leaks(collection), "exclude")
    held = {canonical_key(pair.grids) for task in collection.evaluated_tasks for pair in task.test}
    for task, pairs in zip(collection.tasks, trained, strict=True):
        own = {canonical_key(pair.grids) for pair in task.train}
        leaked = {canonical_key(pair.grids) for pair in pairs} & held
        assert leaked <= own, task.id  # what is left is a task's own symmetric copy


def test_the_same_task_under_two_ids_is_found_in_arc1(data_config):
    collection = sources.load(
        data_config(source="arc1", tasks=("40853293", "070dd51e"), evaluate="evaluation")
    )
    report = find_leaks(collection)
    assert report.equal_tasks == (("40853293", "070dd51e"),)
    assert {match.found.task_id for match in report.across} == {"40853293"}


def test_the_symmetric_copies_within_0d3d703e_are_reported(data_config):
    collection = sources.load(data_config(tasks=("0d3d703e",)))
    report = find_leaks(collection)
    assert report.across == ()
    assert {match.found.number for match in report.within} == {0, 1, 2, 3}
    assert list(map(len, training_set(collection, report, "exclude"))) == [4]


def test_a_hidden_output_is_compared_by_its_input(data_config, tmp_path):
    hidden = {"input": L_PAIR["input"]}
    collection = load(
        data_config, tmp_path, {"held": ([OTHER], [hidden])}, {"a": ([TURNED], [OTHER])}
    )
    (match,) = find_leaks(collection).across
    assert format_match(match) == "the input of test pair 0 of held is train pair 0 of a"


def test_nothing_left_to_train_is_an_error(data_config, tmp_path):
    collection = load(
        data_config, tmp_path, {"held": ([OTHER], [L_PAIR])}, {}, splits=("evaluation",)
    )
    assert len(training_set(collection, find_leaks(collection), "exclude")[0]) == 1
    trained = load(data_config, tmp_path, {}, {"a": ([L_PAIR], [L_PAIR])}, tasks=("a",))
    alone = find_leaks(trained)
    assert len(training_set(trained, alone, "exclude")[0]) == 2
