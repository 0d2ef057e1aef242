"""The predictions file survives what it is given, and refuses what it was not."""

import numpy as np
import pytest

from arc_data.task import to_json
from eval.ladder import build_ladder
from eval.predictions import About, join, load_predictions, pool, replace_tasks
from eval.vote import count_ballots


def ladder_of(predictions):
    return build_ladder(count_ballots(predictions))


def test_predictions_survive_their_file(recorded, tmp_path):
    predictions, _ = recorded
    predictions.save(tmp_path / "predictions.npz")
    again = load_predictions(tmp_path / "predictions.npz")
    assert ladder_of(again) == ladder_of(predictions)
    assert list(map(to_json, again.tasks)) == list(map(to_json, predictions.tasks))


@pytest.mark.parametrize("task_id", ["a b/../c", "ü\n", "x\0", "", "\ud800"])
def test_any_id_and_a_hidden_output_survive_the_file(task_id, tmp_path, make_predictions, plain):
    about = About(facts={"run": "ü"})
    predictions = make_predictions([(task_id, 0, plain, [[1]], 0.5)], about=about)
    predictions.save(tmp_path / "p.npz")
    again = load_predictions(tmp_path / "p.npz")
    assert again.tasks[0].id == task_id
    assert again.tasks[0].test[0].output is None
    assert again.about == about


def test_a_file_that_is_none_is_refused(tmp_path):
    path = tmp_path / "predictions.npz"
    with pytest.raises(ValueError, match="not a predictions file"):
        load_predictions(path)
    path.write_bytes(b"junk")
    with pytest.raises(ValueError, match="not a predictions file"):
        load_predictions(path)
    np.savez(path, something=np.zeros(3))
    with pytest.raises(ValueError, match="not a predictions file"):
        load_predictions(path)


def test_a_damaged_file_is_refused_wherever_the_damage_is(recorded, tmp_path):
    path = tmp_path / "predictions.npz"
    recorded[0].save(path)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for damaged in [content[:n] for n in (0, 1, 100, len(content) // 2, len(content) - 1)] + [
        content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :]
        for at in rng.integers(0, len(content), 150)
    ]:
        path.write_bytes(damaged)
        try:
            load_predictions(path)  # a few bytes of the archive say nothing
        except ValueError as error:
            assert "not a predictions file" in str(error)  # noqa: PT017
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("vote", [0, 0], "two predictions for one test pair"),
        ("test_index", [0, 1], "a row of no test pair"),
        ("task", [0, 1], "a row of no task"),
        ("dihedral", [0, 8], "a row of no augmentation"),
        ("cells", [1], "cells do not fill"),
        ("cells", [1, 10], "cells of other colors"),
        ("halt", [0.5], "columns of different lengths"),
    ],
)
def test_columns_that_do_not_go_together_are_refused(
    column, value, message, tmp_path, make_predictions, plain
):
    path = tmp_path / "predictions.npz"
    make_predictions([("t", 0, plain, [[1]], 0.5)] * 2).save(path)
    with np.load(path) as file:
        columns = {name: file[name] for name in file.files}
    columns[column] = np.array(value, dtype=columns[column].dtype)
    np.savez(path, **columns)
    with pytest.raises(ValueError, match=message):
        load_predictions(path)


def test_taking_rows_takes_their_cells(make_predictions, plain):
    grids = [[[1, 2]], [], [[3], [4], [5]]]
    predictions = make_predictions([("t", i, plain, grid, 0.5) for i, grid in enumerate(grids)])
    taken = predictions.take(np.array([2, 1, 0, 2]))
    sizes = [grid.size for grid in taken.grids()]
    assert sizes == [3, 0, 2, 3]
    assert taken.cells.tolist() == [3, 4, 5, 1, 2, 3, 4, 5]
    assert join([taken, predictions]).cells.tolist() == [*taken.cells, *predictions.cells]


def test_pooling_counts_the_votes_of_all_files_by_id(make_predictions, make_task, plain):
    tasks = [make_task("t", [[7]]), make_task("u", [[8]])]
    one = make_predictions([("t", 0, plain, [[7]], 0.5), ("u", 0, plain, [[9]], 0.5)], tasks)
    two = make_predictions([("u", 0, plain, [[8]], 0.9)], tasks[1:])
    pooled = pool([one, two])
    ladder = ladder_of(pooled)
    assert (ladder.num_pooled, ladder.num_votes, ladder.num_scored_tasks) == (2, 1, 2)
    assert ladder.arc_prize[1] == 1.0  # u: 8 and 9 have a vote each, 8 the higher halt value
    other = make_predictions([("t", 0, plain, [[7]], 0.5)], [make_task("t", [[1]])])
    with pytest.raises(ValueError, match="task t: the files to pool have different tasks"):
        pool([one, other])


def test_outputs_that_become_known_later_are_scored(make_predictions, make_task, plain):
    hidden = make_predictions([("t", 0, plain, [[7]], 0.5)])
    assert ladder_of(hidden).all_tests[1] is None
    assert ladder_of(replace_tasks(hidden, [make_task("t", [[7]])])).all_tests[1] == 1.0
    with pytest.raises(ValueError, match="task t: predicted, but not an evaluated task"):
        replace_tasks(hidden, [make_task("u", [[7]])])
    with pytest.raises(ValueError, match="other test inputs"):
        replace_tasks(hidden, [make_task("t", [[7]], [[8]])])
