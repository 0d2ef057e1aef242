"""Held-out demonstrations: what may be looked at to choose a checkpoint or a learning rate.

``data.validation`` takes the last demonstration of a share of the tasks out of training. It is
predicted as a test pair is, and its loss is measured; test pairs are never chosen on.
"""

from dataclasses import replace

import numpy as np

from eval.comparison import ValidationScores
from eval.ladder import build_ladder
from eval.predictions import join
from eval.questions import Questions, list_questions
from eval.vote import count_ballots
from hrm_deeploop.device import Ranks
from hrm_deeploop.fit import Asked
from hrm_deeploop.runs.data import Data
from hrm_deeploop.runs.predict import Predictor, held_out_losses, predict
from hrm_deeploop.runs.seen import untrained_validation

PREFIX = "eval/"


def validation_questions(data: Data, votes: int) -> Questions:
    """The held-out demonstrations under their first ``votes`` puzzles.

    Those that the run trained on before it took other tasks are left out.

    Raises:
        ValueError: if all were.
    """
    chosen = data.collection.validation_tasks
    if data.seen is not None and data.tasks.config.leaks != "keep":
        chosen = untrained_validation(data.seen, data.collection)
    if not chosen:
        raise ValueError("data.validation: the run has trained on every held-out demonstration")
    held_out = {task.id: task for task in chosen}
    tasks = tuple(held_out.get(task.id, task) for task in data.puzzles.tasks)
    puzzles = replace(data.puzzles, tasks=tasks)
    return list_questions(puzzles, [i for i, t in enumerate(tasks) if t.id in held_out], votes)


def validate_network(
    predictor: Predictor,
    data: Data,
    votes: int,
    ranks: Ranks,
    is_stopped: Asked = lambda: False,
) -> ValidationScores | None:
    """Measure mean token loss and voted scores at K = 2; every rank takes its share.

    The loss is the mean over held-out demonstrations and their first ``votes`` augmentations.
    ``is_stopped`` is asked after every batch; None once it said so on any rank.
    """
    questions = validation_questions(data, votes)
    mine = questions.take(np.arange(ranks.rank, len(questions), ranks.world_size))
    losses = held_out_losses(predictor, mine, is_stopped)
    answers = [answer.predictions for answer in predict(predictor, mine, should_stop=is_stopped)]
    if ranks.any(is_stopped()):
        return None
    gathered = ranks.gather_objects((losses, answers))
    predictions = join([part for _, parts in gathered for part in parts])
    at_2 = build_ladder(count_ballots(predictions)).at()
    assert at_2 is not None  # demonstrations have outputs
    return ValidationScores(
        loss=float(np.concatenate([losses for losses, _ in gathered]).mean()),
        all_tests_at_2=at_2.all_tests,
        arc_prize_at_2=at_2.arc_prize,
    )


def log_validation(scores: ValidationScores) -> dict[str, float]:
    """Name the scores as metrics.jsonl has them."""
    return {f"{PREFIX}{name}": value for name, value in dict(scores).items()}
