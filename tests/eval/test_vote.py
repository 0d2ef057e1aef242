"""The vote: parity with two recorded voters, independence of order, and odd ballots."""

import json

import numpy as np
import pytest

from arc_data import sources
from arc_data.augment import Augmentation, from_dihedral
from arc_data.canvas import decode_grid
from arc_data.hrm_names import HRM_MOVES
from eval.ladder import build_ladder
from eval.predictions import Predictions, load_predictions
from eval.score import score, truth_ranks
from eval.submission import NO_ANSWER, build_submission
from eval.vote import rank_candidates

ATTEMPTS = (1, 2, 4, 5, 8, 10, 16, 100, 1000)


def make_predictions(rows) -> Predictions:
    """From (task id, test index, augmentation, augmented grid, halt probability)."""
    task_ids = tuple(dict.fromkeys(row[0] for row in rows))
    grids = [np.asarray(row[3], dtype=np.uint8).reshape(np.shape(row[3])) for row in rows]
    sizes = [grid.shape if grid.size else (0, 0) for grid in grids]
    counts = {}
    votes = []
    for row in rows:
        votes.append(counts.get(row[:2], 0))
        counts[row[:2]] = votes[-1] + 1
    return Predictions(
        task_ids=task_ids,
        task=np.array([task_ids.index(row[0]) for row in rows], dtype=np.int32),
        test_index=np.array([row[1] for row in rows], dtype=np.int16),
        vote=np.array(votes, dtype=np.int32),
        dihedral=np.array([row[2].dihedral for row in rows], dtype=np.uint8),
        colors=np.array([row[2].colors for row in rows], dtype=np.uint8),
        height=np.array([h for h, _ in sizes], dtype=np.uint8),
        width=np.array([w for _, w in sizes], dtype=np.uint8),
        cells=np.concatenate([grid.reshape(-1) for grid in grids]),
        halt=np.array([row[4] for row in rows], dtype=np.float32),
        segments=np.ones(len(rows), dtype=np.uint8),
    )


PLAIN = Augmentation()


@pytest.fixture(scope="module")
def recorded(data_dir, data_config):
    expected = json.loads((data_dir / "vote_expected.json").read_text())
    with np.load(data_dir / "vote_predictions.npz") as file:
        columns = {name: file[name] for name in file.files}
    rows = [
        (
            str(columns["task_id"][i]),
            int(columns["test_index"][i]),
            from_dihedral(
                HRM_MOVES[int(columns["dihedral"][i])],
                tuple(int(c) for c in columns["color_map"][i]),
            ),
            decode_grid(columns["predicted_tokens"][i]),
            1 / (1 + np.exp(-float(columns["q_halt_logit"][i]))),
        )
        for i in range(len(columns["task_id"]))
    ]
    tasks = sources.load(data_config(source="arc1", tasks=tuple(expected["tasks"]))).tasks
    return make_predictions(rows), tasks, expected


def test_both_scores_equal_the_recorded_voters(recorded):
    predictions, tasks, expected = recorded
    assert len(predictions) == 912
    ranks = truth_ranks(tasks, rank_candidates(predictions))
    for k in ATTEMPTS:
        both = score(ranks, k)
        assert round(both.arc_prize, 4) == round(expected["pass_at_k_arc_prize"][str(k)], 4)
        assert round(both.all_tests, 4) == expected["pass_at_k_all_tests"][str(k)]


def test_the_submission_has_the_recorded_attempts(recorded):
    predictions, tasks, expected = recorded
    submission = build_submission(tasks, rank_candidates(predictions))
    assert submission == expected["submission"]


def test_the_order_of_the_predictions_makes_no_difference(recorded):
    predictions, tasks, _ = recorded
    original = rank_candidates(predictions)
    shuffled = rank_candidates(shuffle(predictions, seed=0))
    assert original.keys() == shuffled.keys()
    for pair, candidates in original.items():
        for ours, theirs in zip(candidates, shuffled[pair], strict=True):
            np.testing.assert_array_equal(ours.grid, theirs.grid)
            assert ours[1:] == theirs[1:]
    assert build_ladder(predictions, tasks) == build_ladder(shuffle(predictions, seed=1), tasks)


def shuffle(predictions, seed):
    order = np.random.default_rng(seed).permutation(len(predictions))
    sizes = predictions.height.astype(int) * predictions.width
    parts = np.split(predictions.cells, np.cumsum(sizes)[:-1])
    columns = {
        name: getattr(predictions, name)[order]
        for name in (
            *("task", "test_index", "vote", "dihedral", "colors"),
            *("height", "width", "halt", "segments"),
        )
    }
    cells = np.concatenate([parts[i] for i in order])
    return Predictions(task_ids=predictions.task_ids, cells=cells, **columns)


def test_votes_then_halt_then_shape_and_bytes_decide():
    rows = [
        ("t", 0, PLAIN, [[1]], 0.1),
        ("t", 0, PLAIN, [[1]], 0.1),  # two votes beat any halt value
        ("t", 0, PLAIN, [[2]], 0.9),
        ("t", 0, PLAIN, [[3]], 0.9),  # equal to the last but for its bytes
        ("t", 0, PLAIN, [[4, 4]], 0.95),
    ]
    ranked = rank_candidates(make_predictions(rows))["t", 0]
    assert [c.grid.tolist() for c in ranked] == [[[1]], [[4, 4]], [[2]], [[3]]]
    assert [c.votes for c in ranked] == [2, 1, 1, 1]


def test_grids_of_other_shape_with_equal_bytes_are_two_candidates():
    rows = [("t", 0, PLAIN, [[1, 2, 3, 4]], 0.5), ("t", 0, PLAIN, [[1, 2], [3, 4]], 0.5)]
    assert len(rank_candidates(make_predictions(rows))["t", 0]) == 2


def test_an_empty_prediction_is_no_vote_and_shifts_nothing():
    rows = [("t", 0, PLAIN, [], 0.9), ("t", 1, PLAIN, [[5]], 0.1)]
    predictions = make_predictions(rows)
    candidates = rank_candidates(predictions)
    assert candidates["t", 0] == []
    task = task_with_outputs("t", [[9]], [[5]])
    submission = build_submission([task], candidates)
    assert submission == {
        "t": [
            {"attempt_1": NO_ANSWER, "attempt_2": NO_ANSWER},
            {"attempt_1": [[5]], "attempt_2": [[5]]},
        ]
    }
    assert score(truth_ranks([task], candidates), 2) == (0.0, 0.5)


def task_with_outputs(task_id, *outputs):
    from arc_data.task import parse_task

    pair = {"input": [[1]], "output": [[1]]}
    test = [{"input": [[1]], "output": output} for output in outputs]
    return parse_task(task_id, {"train": [pair], "test": test}, task_id)


def test_the_augmentation_is_undone_before_counting():
    move = Augmentation(colors=(0, 2, 1, *range(3, 10)), transpose=True, quarter_turns=3)
    grid = np.array([[1, 0, 2]], dtype=np.uint8)
    rows = [("t", 0, PLAIN, grid, 0.5), ("t", 0, move, move.apply(grid), 0.5)]
    (only,) = rank_candidates(make_predictions(rows))["t", 0]
    assert only.votes == 2
    np.testing.assert_array_equal(only.grid, grid)


def test_one_of_two_test_pairs_right_is_0_and_one_half():
    task = task_with_outputs("t", [[7]], [[8]])
    rows = [("t", 0, PLAIN, [[7]], 0.5), ("t", 1, PLAIN, [[1]], 0.5)]
    assert score(truth_ranks([task], rank_candidates(make_predictions(rows))), 2) == (0.0, 0.5)


def test_a_task_without_known_output_is_not_scored():
    task = task_with_outputs("t", [[7]], None)
    rows = [("t", 0, PLAIN, [[7]], 0.5), ("t", 1, PLAIN, [[1]], 0.5)]
    predictions = make_predictions(rows)
    assert truth_ranks([task], rank_candidates(predictions)) == {}
    assert score({}, 2) is None
    ladder = build_ladder(predictions, [task])
    assert ladder["all_tests"]["2"] is None
    assert ladder["num_scored_tasks"] == 0
    assert build_submission([task], rank_candidates(predictions))["t"][0]["attempt_1"] == [[7]]


def test_the_votes_ladder_counts_the_first_votes_alone():
    task = task_with_outputs("t", [[7]])
    answers = [[[7]], [[1]], [[1]], [[2]], [[2]]]
    rows = [("t", 0, PLAIN, answer, 0.9 if answer == [[7]] else 0.5) for answer in answers]
    ladder = build_ladder(make_predictions(rows), [task])
    assert ladder["votes_at_2"]["all_tests"] == {"1": 1.0, "4": 1.0, "5": 0.0}
    assert ladder["all_tests"] == {"1": 0.0, "2": 0.0, "4": 1.0, "8": 1.0, "16": 1.0}
    assert ladder["oracle"]["all_tests"] == {"all": 1.0}


def test_predictions_survive_their_file(recorded, tmp_path):
    predictions, tasks, _ = recorded
    predictions.save(tmp_path / "predictions.npz")
    again = load_predictions(tmp_path / "predictions.npz")
    assert build_ladder(again, tasks) == build_ladder(predictions, tasks)
    assert again.task_ids == predictions.task_ids


@pytest.mark.parametrize("task_id", ["a b/../c", "ü\n", "x\0", ""])
def test_any_id_survives_the_file(task_id, tmp_path):
    make_predictions([(task_id, 0, PLAIN, [[1]], 0.5)]).save(tmp_path / "p.npz")
    assert load_predictions(tmp_path / "p.npz").task_ids == (task_id,)


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
