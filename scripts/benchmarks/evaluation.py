"""The evaluator: voting from a file, and what halting early saves on a trained model."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arc_data import sources
from arc_data.augment import NUM_DIHEDRAL, is_turned, move_grid
from arc_data.config import DataConfig
from arc_data.task import Task
from eval.ladder import build_ladder
from eval.predictions import Predictions, join, load_predictions
from eval.questions import Window
from eval.submission import build_submission, write_submission
from eval.vote import count_ballots
from hrm_deeploop.device import Ranks, choose_device
from hrm_deeploop.runs.checking import validate
from hrm_deeploop.runs.choices import Choices
from hrm_deeploop.runs.compose import compose_config
from hrm_deeploop.runs.directory import find_checkpoint
from hrm_deeploop.runs.evaluation import Evaluation
from hrm_deeploop.runs.predict import Halting, predict
from hrm_deeploop.runs.training import train_run
from scripts.benchmarks.machine import describe_machine, run_config, time_in_turn

NUM_VOTES = 1000
RIGHT_SHARE, CELL_ERROR = 0.3, 0.02
SECONDS_PER_WAY = 15.0
# Models that have learnt enough to know when they are right: mini for longer, with more segments,
# on whole canvases, and on windows of a canvas larger than the grids.
LONGER = ("experiment=mini", "scaling=vanilla", "resume=auto", "checkpoint_every=500")
TRAINED = (
    *LONGER,
    *("total_steps=5000", "model.halt_max_steps=4", "run_dir=runs/bench-mini"),
)
TRAINED_ON_WINDOWS = (
    *LONGER,
    *("total_steps=4000", "model.halt_max_steps=16", "run_dir=runs/bench-windows"),
    *("data.canvas=10", "window=task"),
)
Way = tuple[Halting, Window]


def bench_evaluation() -> dict[str, Any]:
    """Both parts; see the module's text."""
    print(describe_machine())
    return {**bench_vote(), **bench_halting()}


def bench_vote() -> dict[str, Any]:
    """CPU seconds and peak memory of voting and scoring ARC-AGI-1 evaluation x 1000 from its file.

    The predictions are made up: a share is right, the others have wrong cells.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "predictions.npz"
        predictions = invent_predictions()
        predictions.save(path)
        print(f"{len(predictions):,} predictions, {path.stat().st_size / 1e6:.1f} MB as a file")
        # A process of its own, whose peak memory is that of the vote.
        command = [sys.executable, "-m", "scripts.benchmarks.evaluation", str(path)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        result = subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment
        )
    measured = json.loads(result.stdout)
    print(
        f"vote and score: {measured['vote_cpu_seconds']:.1f} CPU seconds, peak memory "
        f"{measured['vote_peak_mb']:.0f} MB"
    )
    return measured


def invent_predictions() -> Predictions:
    """419 test pairs under 1000 augmentations each."""
    values = compose_config("data_command", ["data=arc1"])
    config: DataConfig = validate(DataConfig, values["data"])
    tasks = sources.load(config).evaluated_tasks
    rng = np.random.default_rng(0)
    parts = [
        _invent_pair(tasks, t, i, rng)
        for t, task in enumerate(tasks)
        for i in range(len(task.test))
    ]
    return join(parts)


def _invent_pair(
    tasks: tuple[Task, ...], t: int, test_index: int, rng: np.random.Generator
) -> Predictions:
    truth = tasks[t].test[test_index].output
    assert truth is not None
    n = NUM_VOTES
    dihedral = rng.integers(0, 8, n, dtype=np.uint8)
    colors = rng.permuted(np.tile(np.arange(1, 10, dtype=np.uint8), (n, 1)), axis=1)
    colors = np.concatenate((np.zeros((n, 1), np.uint8), colors), axis=1)
    answers = np.repeat(truth.reshape(1, -1), n, axis=0)
    wrong = rng.random(answers.shape) < CELL_ERROR * (rng.random((n, 1)) > RIGHT_SHARE)
    answers = np.where(wrong, rng.integers(0, 10, answers.shape), answers).astype(np.intp)
    turned = is_turned(dihedral)
    height, width = (np.full(n, side, np.uint8) for side in truth.shape)
    return Predictions(
        tasks=tasks,
        task=np.full(n, t, np.int32),
        test_index=np.full(n, test_index, np.int16),
        vote=np.arange(n, dtype=np.int32),
        dihedral=dihedral,
        colors=colors,
        height=np.where(turned, width, height),
        width=np.where(turned, height, width),
        cells=_move(answers, truth.shape, dihedral, colors),
        halt=rng.random(n, dtype=np.float32),
        segments=np.full(n, 16, np.int16),
        final=np.ones(n, dtype=bool),
    )


def _move(
    answers: np.ndarray, shape: tuple[int, ...], dihedral: np.ndarray, colors: np.ndarray
) -> np.ndarray:
    """Recolored and moved answers, one after another."""
    recolored = np.take_along_axis(colors, answers, axis=1)
    moved = np.empty_like(recolored)
    index = np.arange(answers.shape[1]).reshape(shape)
    for move in range(NUM_DIHEDRAL):
        rows = dihedral == move
        moved[rows] = recolored[rows][:, move_grid(index, move).reshape(-1)]
    return moved.reshape(-1)


def time_vote(path: Path) -> dict[str, float]:
    """Vote and score a file in this process: CPU seconds from reading on, and peak memory."""
    start = time.process_time()
    predictions = load_predictions(path)
    ballots = count_ballots(predictions)
    ladder = build_ladder(ballots)
    submission = build_submission(predictions.tasks, ballots.candidates(ballots.rank()))
    write_submission(submission, predictions.tasks, path.with_name("submission.json"))
    seconds = time.process_time() - start
    assert ladder.num_scored_pairs == 419
    assert len(predictions) == 419 * NUM_VOTES
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return {"vote_cpu_seconds": round(seconds, 2), "vote_peak_mb": round(peak)}


def bench_halting() -> dict[str, Any]:
    """Predictions per second of ``act`` over ``fixed`` on a trained model, and what each scores."""
    ways: dict[str, Way] = {"fixed": ("fixed", "full"), "act": ("act", "full")}
    return {"halting": time_ways(TRAINED, ways, base="fixed", best="act")}


def bench_windowed_evaluation() -> dict[str, Any]:
    """Windows and halting against all segments of the whole canvas, on a model of windows."""
    ways: dict[str, Way] = {
        "fixed, whole canvas": ("fixed", "full"),
        "fixed, windows": ("fixed", "task"),
        "act, windows": ("act", "task"),
    }
    return time_ways(TRAINED_ON_WINDOWS, ways, base="fixed, whole canvas", best="act, windows")


def time_ways(
    overrides: Sequence[str], ways: dict[str, Way], *, base: str, best: str
) -> dict[str, Any]:
    """Train a model if it is not there, and predict its test pairs in several ways in turn.

    ``over`` is the rate of the way ``best`` over that of ``base``.
    """
    config = run_config(overrides)
    ranks = Ranks(device=choose_device(config.device))
    train_run(config, ranks)
    checkpoint = find_checkpoint(Path(config.run_dir), "last")
    evaluation = Evaluation(config, checkpoint, ranks, Choices())
    predictor = evaluation.load()
    answers: dict[str, Predictions] = {}

    def run(name: str, halting: Halting, window: Window) -> None:
        found = predict(replace(predictor, window=window), evaluation.questions, halting=halting)
        answers[name] = join([answer.predictions for answer in found])

    actions = {name: partial(run, name, *way) for name, way in ways.items()}
    taken = time_in_turn(actions, SECONDS_PER_WAY)
    rates = {name: len(answers[name]) / float(np.median(taken[name])) for name in ways}
    result: dict[str, Any] = {}
    for name, predictions in answers.items():
        ladder = build_ladder(count_ballots(predictions))
        at_2 = ladder.all_tests[2] or 0.0
        print(
            f"{name:20} {rates[name]:7.1f} predictions/s, {ladder.mean_segments:5.2f} segments, "
            f"all_tests at K=2 {100 * at_2:.2f} % of {ladder.num_scored_tasks} tasks"
        )
        result[name] = {"predictions_per_second": round(rates[name], 1), "at_2": round(at_2, 4)}
    return {**result, "over": round(rates[best] / rates[base], 2)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(time_vote(Path(sys.argv[1]))))
