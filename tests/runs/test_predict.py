"""A perfect model scores 100 % through the whole chain; a real one answers as if it were alone."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from arc_data import sources
from arc_data.canvas import decode_grid, encode_grid
from arc_data.puzzles import build_puzzles
from eval.artifacts import write_artifacts
from eval.ladder import Ladder, format_ladders
from eval.predictions import About, join, load_predictions
from eval.questions import list_questions, window_groups
from eval.shards import Shards
from hrm_deeploop.losses import token_loss
from hrm_deeploop.model import Embedded, Reasoner, SegmentOutput
from hrm_deeploop.puzzle_embedding import PuzzleEmbedding
from hrm_deeploop.runs.predict import Predictor, change_puzzle_ids, held_out_losses, predict

CANVAS, VOTES = 6, 8
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def puzzles(data_config):
    collection = sources.load(data_config(canvas=CANVAS))
    return build_puzzles(collection.tasks, num_aug=VOTES - 1, seed=0)


class Oracle(Reasoner):
    """Stands in for the network: answers with the augmented truth, or at random for a share.

    A row wants to halt after 1 to ``max_steps`` segments, which its puzzle id decides.
    """

    def __init__(self, puzzles, *, max_steps=4, wrong_share=0.0):
        torch.nn.Module.__init__(self)  # no network, only its interface
        self.config = SimpleNamespace(halt_max_steps=max_steps)
        self.truth = {}
        for t, task in enumerate(puzzles.tasks):
            for puzzle_id in puzzles.puzzle_ids(t):
                augmentation = puzzles.augmentation(puzzle_id)
                for pair in task.test:
                    key = encode_grid(augmentation.apply(pair.input), CANVAS).tobytes()
                    tokens = encode_grid(augmentation.apply(pair.output), CANVAS)
                    self.truth[puzzle_id, key] = tokens
        self.rng = np.random.default_rng(0)
        self.wrong_share = wrong_share
        self.num_segments = self.num_tokens = 0  # over all rows

    def initial_state(self, batch_size, seq_len):
        return {"z": torch.zeros(batch_size, 1, 1)}

    def embed(self, inputs, puzzle_vectors, positions=None):
        if positions is None:
            positions = torch.arange(CANVAS**2).expand(len(inputs), -1)
        parts = (puzzle_vectors.double(), inputs.double(), positions.double())
        return Embedded(torch.cat(parts, dim=1)[..., None], None)

    def segment(self, state, embedded):
        rows = embedded.tokens[..., 0].to(torch.int64).numpy()
        self.num_segments += len(rows)
        self.num_tokens += rows[:, 1:].size // 2
        answers = []
        for row in rows:
            tokens, positions = np.split(row[1:], 2)
            board = np.zeros(CANVAS**2, dtype=np.uint8)
            board[positions] = tokens
            answer = self.truth[row[0], board.tobytes()]
            is_wrong = self.rng.random() < self.wrong_share
            answers.append(
                (self.rng.integers(0, 12, answer.shape) if is_wrong else answer)[positions]
            )
        logits = torch.nn.functional.one_hot(torch.from_numpy(np.stack(answers)).long(), 12)
        steps = state["z"][:, 0, 0] + 1
        wanted = embedded.tokens[:, 0, 0] % self.config.halt_max_steps + 1
        return SegmentOutput(
            state={"z": state["z"] + 1},
            logits=logits.float(),
            q_halt=torch.where(steps >= wanted, 2.0, -2.0),
            q_continue=None,
        )


def lookup(puzzle_ids):
    return puzzle_ids[:, None].float()


def predictor_of(network, lookup=lookup, canvas=CANVAS, batch_size=100, window="full"):
    return Predictor(
        network=network,
        lookup=lookup,
        canvas=canvas,
        batch_size=batch_size,
        device=CPU,
        window=window,
    )


def run(oracle, puzzles, indices=None, votes=VOTES, window="full", **options):
    indices = range(len(puzzles.tasks)) if indices is None else indices
    questions = list_questions(puzzles, list(indices), votes)
    answers = list(predict(predictor_of(oracle, window=window), questions, **options))
    numbers = np.concatenate([answer.number for answer in answers])
    return join([answer.predictions for answer in answers]).take(np.argsort(numbers, kind="stable"))


def test_a_perfect_model_scores_100_percent(puzzles, tmp_path):
    predictions = run(Oracle(puzzles), puzzles)
    assert len(predictions) == 69 * VOTES
    predictions.save(tmp_path / "predictions.npz")
    ladder = write_artifacts(
        tmp_path, load_predictions(tmp_path / "predictions.npz"), attempts=(1, 2), name="oracle"
    )
    assert ladder.all_tests == ladder.arc_prize == {1: 1.0, 2: 1.0}
    assert ladder.votes_at_2.all_tests == {1: 1.0, 4: 1.0, 8: 1.0}
    assert Ladder.load(tmp_path / "ladder.json") == ladder
    submission = json.loads((tmp_path / "submission.json").read_text())
    for task in puzzles.tasks:
        answers = [entry["attempt_1"] for entry in submission[task.id]]
        assert answers == [pair.output.tolist() for pair in task.test]
    assert "100.00" in format_ladders({"oracle": ladder})
    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")


def test_voting_repairs_a_model_that_is_often_wrong(puzzles, tmp_path):
    predictions = run(Oracle(puzzles, wrong_share=0.4), puzzles)
    ladder = write_artifacts(tmp_path, predictions, attempts=(1, 2), name="oracle")
    assert ladder.votes_at_2.arc_prize[1] < 0.8
    assert ladder.arc_prize[2] > 0.95


def test_chosen_tasks_and_votes_are_what_is_predicted(puzzles):
    predictions = run(Oracle(puzzles), puzzles, indices=[7, 3], votes=2)
    assert [task.id for task in predictions.tasks] == [puzzles.tasks[7].id, puzzles.tasks[3].id]
    assert sorted(set(predictions.vote.tolist())) == [0, 1]
    assert len(predictions) == 2 * (len(puzzles.tasks[7].test) + len(puzzles.tasks[3].test))


def test_a_row_that_halts_leaves_the_batch_and_costs_no_more(puzzles):
    fixed, act = Oracle(puzzles), Oracle(puzzles)
    everything = run(fixed, puzzles)
    halted = run(act, puzzles, halting="act")
    assert set(everything.segments.tolist()) == {4}
    puzzle_ids = list_questions(puzzles, range(len(puzzles.tasks)), VOTES).rows[:, 2]
    np.testing.assert_array_equal(halted.segments, puzzle_ids % 4 + 1)
    assert act.num_segments == halted.segments.sum()
    assert fixed.num_segments == 4 * len(everything)
    np.testing.assert_array_equal(halted.cells, everything.cells)


@pytest.mark.parametrize("halting", ["fixed", "act"])
def test_answers_on_the_way_are_recorded_when_asked_for(puzzles, halting):
    predictions = run(Oracle(puzzles), puzzles, votes=4, halting=halting, limits=(1, 2))
    num_rows = predictions.final.sum()
    assert num_rows == 69 * 4
    for limit in (1, 2):
        still_running = predictions.segments[predictions.final] > limit
        recorded = predictions.segments[~predictions.final] == limit
        assert recorded.sum() == still_running.sum()


@pytest.mark.parametrize("halting", ["fixed", "act"])
@pytest.mark.parametrize("q_target", ["halt_only", "bootstrap"])
def test_a_row_answers_in_any_batch_as_it_would_alone(make_network, data_config, halting, q_target):
    collection = sources.load(data_config(canvas=3, source="arc1"))
    puzzles = build_puzzles(collection.tasks, num_aug=3, seed=0)
    network = make_network(halt_max_steps=5, q_target=q_target).eval()
    generator = torch.Generator().manual_seed(0)
    network.q_head.weight.data.normal_(generator=generator)  # rows halt at different times
    network.q_head.bias.data.zero_()
    table = PuzzleEmbedding(len(puzzles), 16)
    table.weight.normal_(generator=generator)
    questions = list_questions(puzzles, range(len(puzzles.tasks)), 4)
    assert len(questions) >= 12
    predictor = predictor_of(network, table.lookup, canvas=3, batch_size=5)
    answers = list(predict(predictor, questions, halting=halting))
    segments = set()
    for answer in answers:
        grids = [
            p.reshape(-1)
            for p in np.split(answer.predictions.cells, np.cumsum(answer.predictions.num_cells))[
                :-1
            ]
        ]
        for i, number in enumerate(answer.number):
            tokens, halt, num_segments = alone(network, table, questions, int(number), halting)
            segments.add(num_segments)
            assert grids[i].tolist() == decode_grid(tokens).reshape(-1).tolist()
            assert answer.predictions.halt[i] == pytest.approx(halt, abs=1e-5)
            assert answer.predictions.segments[i] == num_segments
    assert len(segments) > 1 if halting == "act" else segments == {5}
    assert sum(len(answer.number) for answer in answers) == len(questions)


@torch.no_grad()
def alone(network, table, questions, number, halting):
    inputs = torch.from_numpy(questions.encode(number, 3)).long()[None]
    vectors = table.weight[torch.from_numpy(questions.rows[number, 2:3])]
    state = network.initial_state(1)
    num_segments, halted = 0, False
    while not halted:
        out = network(state, inputs, vectors)
        state, num_segments = out.state, num_segments + 1
        threshold = 0.0 if out.q_continue is None else out.q_continue.item()
        halted = num_segments == 5 or (halting == "act" and out.q_halt.item() > threshold)
    return out.logits.argmax(-1)[0].numpy(), out.q_halt.sigmoid().item(), num_segments


@pytest.mark.parametrize("halting", ["fixed", "act"])
def test_windows_give_the_same_answers_for_fewer_tokens(puzzles, halting):
    """The oracle's grids end within most windows; the others are run again on the whole canvas."""
    whole, windowed = Oracle(puzzles), Oracle(puzzles)
    expected = run(whole, puzzles, halting=halting, limits=(2,))
    found = run(windowed, puzzles, halting=halting, limits=(2,), window="task")
    order = [
        np.lexsort((p.final, p.segments, p.vote, p.test_index, p.task)) for p in (expected, found)
    ]
    expected, found = expected.take(order[0]), found.take(order[1])
    for name in ("task", "test_index", "vote", "height", "width", "cells", "segments", "final"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    assert windowed.num_tokens < 0.9 * whole.num_tokens


def test_an_answer_that_touches_its_windows_edge_is_run_again(data_config, make_task):
    # The demonstrations promise outputs as large as the inputs, and the truth is larger.
    task = make_task("t", np.full((5, 5), 3).tolist())
    puzzles = build_puzzles([task], num_aug=3, seed=0)
    oracle = Oracle(puzzles, max_steps=2)
    (group,) = window_groups(list_questions(puzzles, [0], 4), CANVAS)
    assert group.boxes.tolist() == [[2, 2]] * 4  # the 1 x 1 input and its EOS
    predictions = run(oracle, puzzles, window="task")
    assert set(predictions.height) == set(predictions.width) == {5}
    assert oracle.num_segments == 2 * 2 * 4  # every row twice


@pytest.mark.parametrize("window", ["full", "task"])
def test_a_held_out_loss_is_that_of_the_row_alone(make_network, data_config, window):
    collection = sources.load(data_config(canvas=3, source="arc1"))
    puzzles = build_puzzles(collection.tasks, num_aug=3, seed=0)
    network = make_network(halt_max_steps=2).eval()
    table = PuzzleEmbedding(len(puzzles), 16)
    table.weight.normal_(generator=torch.Generator().manual_seed(0))
    questions = list_questions(puzzles, range(len(puzzles.tasks)), 4)
    predictor = predictor_of(network, table.lookup, canvas=3, batch_size=5, window=window)
    losses = held_out_losses(predictor, questions)
    for group in predictor.groups(questions, known=True):
        for member, number in enumerate(group.rows):
            inputs, labels = (
                torch.from_numpy(questions.encode(int(number), 3, part)).long()[None]
                for part in ("input", "output")
            )
            positions = None
            if group.boxes is not None:
                height, width = (int(side) for side in group.boxes[member])
                inside = [r * 3 + c for r in range(height) for c in range(width)]
                rest = [cell for cell in range(9) if cell not in inside]
                positions = torch.tensor([(inside + rest)[: group.length]])
                inputs, labels = inputs.gather(1, positions), labels.gather(1, positions)
            vectors = table.weight[torch.from_numpy(questions.rows[number : number + 1, 2])]
            with torch.no_grad():
                state = network.initial_state(*inputs.shape)
                for _ in range(2):
                    out = network(state, inputs, vectors, positions)
                    state = out.state
            assert losses[number] == pytest.approx(token_loss(out.logits, labels).item(), rel=1e-4)


def test_puzzle_ids_can_be_blanked_or_given_to_another_task(puzzles):
    questions = list_questions(puzzles, range(0, len(puzzles.tasks), 2), VOTES)
    ids = torch.from_numpy(questions.rows[:, 2])
    owner = np.repeat(np.arange(len(puzzles.tasks)), np.diff(puzzles.offsets))
    assert torch.equal(change_puzzle_ids(lookup, questions, "correct", seed=0)(ids), lookup(ids))
    assert not change_puzzle_ids(lookup, questions, "blank", seed=0)(ids + 1).any()
    shuffled = change_puzzle_ids(lookup, questions, "shuffled", seed=0)(ids)[:, 0].long().numpy()
    assert (owner[shuffled] != owner[ids]).all()
    assert (owner[shuffled] % 2 == 0).all()  # among the evaluated tasks
    by_task = {(owner[a], owner[b]) for a, b in zip(ids.tolist(), shuffled, strict=True)}
    assert len(by_task) == len(questions.evaluated) == len({theirs for _, theirs in by_task})
    with pytest.raises(ValueError, match="at least two evaluated tasks"):
        change_puzzle_ids(lookup, list_questions(puzzles, [0], 1), "shuffled", seed=0)


def test_parts_are_continued_by_any_number_of_ranks(puzzles, tmp_path):
    oracle = Oracle(puzzles)
    questions = list_questions(puzzles, range(10), VOTES)
    path, key = tmp_path / "predictions.npz", {"weights": "w"}
    tasks = tuple(puzzles.tasks[t] for t in range(10))

    def share(rank, world_size, stop_after):
        parts = Shards(path, key, rank=rank)
        todo = np.flatnonzero(~parts.answered(len(questions)))[rank::world_size]
        predictor = predictor_of(oracle, batch_size=7)
        answers = predict(predictor, questions.take(todo), halting="act", limits=(1, 2))
        for i, answer in enumerate(answers):
            parts.add(answer._replace(number=todo[answer.number]))
            if i == stop_after:
                break
        parts.write()

    assert not Shards(path, key).open()
    share(0, 1, stop_after=3)
    before = Shards(path, key).answered(len(questions))
    assert 0 < before.sum() < len(questions)
    with pytest.raises(ValueError, match=r"of \d+ answers are not there"):
        Shards(path, key).finish(tasks, About(key=key), len(questions))
    before_segments = oracle.num_segments
    share(1, 2, stop_after=2)
    share(0, 1, stop_after=None)
    assert Shards(path, key).answered(len(questions)).all()
    assert oracle.num_segments > before_segments
    joined = Shards(path, key).finish(tasks, About(key=key), len(questions))
    whole = run(Oracle(puzzles), puzzles, range(10), halting="act", limits=(1, 2))
    order = np.lexsort((whole.segments, whole.final, whole.vote, whole.test_index, whole.task))
    whole = whole.take(order)
    for name in ("task", "test_index", "vote", "cells", "halt", "segments", "final"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))
    joined.save(path)
    assert len(load_predictions(path)) == len(joined)


def test_parts_of_other_weights_are_not_continued(puzzles, tmp_path):
    path = tmp_path / "predictions.npz"
    parts = Shards(path, {"weights": "one"})
    parts.open()
    for answer in predict(predictor_of(Oracle(puzzles)), list_questions(puzzles, [0], 2)):
        parts.add(answer)
    parts.write()
    assert Shards(path, {"weights": "one"}).answered(2).all()
    other = Shards(path, {"weights": "two"})
    assert other.open()
    assert not other.answered(2).any()
