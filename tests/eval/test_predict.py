"""A perfect model scores 100 % through the whole chain, and a real one is asked as configured."""

import json

import numpy as np
import pytest
import torch

from arc_data import sources
from arc_data.canvas import encode_grid
from arc_data.puzzles import build_puzzles
from eval.predict import answer_with, predict
from eval.predictions import load_predictions
from eval.results import format_ladders, write_results
from hrm_deeploop.puzzle_embedding import PuzzleEmbedding

CANVAS, VOTES = 6, 8
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def puzzles(data_config):
    collection = sources.load(data_config(canvas=CANVAS))
    return build_puzzles(collection.tasks, num_aug=VOTES - 1, seed=0)


def oracle(puzzles, *, wrong_share=0.0):
    """Answers with the augmented truth; a share of the answers is random instead."""
    truth = {}
    for t, task in enumerate(puzzles.tasks):
        for puzzle_id in puzzles.puzzle_ids(t):
            augmentation = puzzles.augmentation(puzzle_id)
            for pair in task.test:
                key = encode_grid(augmentation.apply(pair.input), CANVAS).tobytes()
                truth[puzzle_id, key] = encode_grid(augmentation.apply(pair.output), CANVAS)
    rng = np.random.default_rng(0)

    def answer(inputs, puzzle_ids):
        boards = [
            truth[puzzle_id, row.astype(np.uint8).tobytes()]
            for puzzle_id, row in zip(puzzle_ids.tolist(), inputs.numpy(), strict=True)
        ]
        tokens = np.stack(boards).astype(np.int64)
        wrong = rng.random(len(tokens)) < wrong_share
        tokens[wrong] = rng.integers(0, 12, (wrong.sum(), tokens.shape[1]))
        return torch.from_numpy(tokens), torch.full((len(tokens),), 0.5)

    return answer


def run(answer, puzzles, indices=None, votes=VOTES):
    return predict(
        answer,
        puzzles,
        list(range(len(puzzles.tasks))) if indices is None else indices,
        canvas=CANVAS,
        votes=votes,
        num_segments=4,
        batch_size=100,
        device=CPU,
    )


def test_a_perfect_model_scores_100_percent(puzzles, tmp_path):
    predictions = run(oracle(puzzles), puzzles)
    assert len(predictions) == 69 * VOTES
    predictions.save(tmp_path / "predictions.npz")
    ladder = write_results(
        tmp_path, load_predictions(tmp_path / "predictions.npz"), puzzles.tasks, attempts=(1, 2)
    )
    assert ladder["all_tests"] == ladder["arc_prize"] == {"1": 1.0, "2": 1.0}
    assert ladder["votes_at_2"]["all_tests"] == {"1": 1.0, "4": 1.0, "8": 1.0}
    assert json.loads((tmp_path / "ladder.json").read_text()) == ladder
    submission = json.loads((tmp_path / "submission.json").read_text())
    for task in puzzles.tasks:
        answers = [entry["attempt_1"] for entry in submission[task.id]]
        assert answers == [pair.output.tolist() for pair in task.test]
    assert "100.00" in format_ladders({"oracle": ladder})


def test_voting_repairs_a_model_that_is_often_wrong(puzzles, tmp_path):
    predictions = run(oracle(puzzles, wrong_share=0.4), puzzles)
    ladder = write_results(tmp_path, predictions, puzzles.tasks, attempts=(1, 2))
    assert ladder["votes_at_2"]["arc_prize"]["1"] < 0.8
    assert ladder["arc_prize"]["2"] > 0.95


def test_chosen_tasks_and_votes_are_what_is_predicted(puzzles):
    predictions = run(oracle(puzzles), puzzles, indices=[7, 3], votes=2)
    assert predictions.task_ids == (puzzles.tasks[7].id, puzzles.tasks[3].id)
    assert sorted(set(predictions.vote.tolist())) == [0, 1]
    assert len(predictions) == 2 * (len(puzzles.tasks[7].test) + len(puzzles.tasks[3].test))


def test_a_network_answers_after_all_its_segments(make_network, make_batch):
    network = make_network(halt_max_steps=3).eval()
    inputs, _, puzzle_ids = make_batch()
    table = PuzzleEmbedding(5, 16)
    table.weight.normal_(generator=torch.Generator().manual_seed(0))
    tokens, halt = answer_with(network, table)(inputs, puzzle_ids)
    with torch.no_grad():
        state = network.initial_state(4)
        for _ in range(3):
            out = network(state, inputs, table.weight[puzzle_ids])
            state = out.state
    assert torch.equal(tokens, out.logits.argmax(-1))
    assert torch.equal(halt, out.q_halt.sigmoid())
