"""Predictions and tasks small enough to count by hand."""

import json

import numpy as np
import pytest

from arc_data import sources
from arc_data.augment import Augmentation, from_dihedral
from arc_data.canvas import decode_grid
from arc_data.hrm_names import HRM_MOVES
from arc_data.task import Task, parse_task
from eval.predictions import About, Predictions

PLAIN = Augmentation()


def task_with_outputs(task_id: str, *outputs) -> Task:
    """A task whose test pairs have these outputs; None is one that is not known."""
    pair = {"input": [[1]], "output": [[1]]}
    test = [{"input": [[1]], "output": output} for output in outputs]
    return parse_task(task_id, {"train": [pair], "test": test}, task_id)


def predictions_of(rows, tasks=None, *, segments=None, final=None, about=None) -> Predictions:
    """From (task id, test index, augmentation, augmented grid, halt probability), by vote."""
    if tasks is None:
        last = {}
        for row in rows:
            last[row[0]] = max(row[1], last.get(row[0], 0))
        tasks = [task_with_outputs(i, *[None] * (n + 1)) for i, n in last.items()]
    task_ids = [task.id for task in tasks]
    grids = [np.asarray(row[3], dtype=np.uint8).reshape(np.shape(row[3])) for row in rows]
    sizes = [grid.shape if grid.size else (0, 0) for grid in grids]
    final = np.ones(len(rows), dtype=bool) if final is None else np.array(final)
    counts, votes = {}, []
    for row, is_final in zip(rows, final, strict=True):
        votes.append(counts.get(row[:2], 0))
        counts[row[:2]] = votes[-1] + int(is_final)
    return Predictions(
        tasks=tuple(tasks),
        task=np.array([task_ids.index(row[0]) for row in rows], dtype=np.int32),
        test_index=np.array([row[1] for row in rows], dtype=np.int16),
        vote=np.array(votes, dtype=np.int32),
        dihedral=np.array([row[2].dihedral for row in rows], dtype=np.uint8),
        colors=np.array([row[2].colors for row in rows], dtype=np.uint8),
        height=np.array([h for h, _ in sizes], dtype=np.uint8),
        width=np.array([w for _, w in sizes], dtype=np.uint8),
        cells=np.concatenate([grid.reshape(-1) for grid in grids]),
        halt=np.array([row[4] for row in rows], dtype=np.float32),
        segments=np.array([1] * len(rows) if segments is None else segments, dtype=np.int16),
        final=final,
        about=About() if about is None else about,
    )


@pytest.fixture(scope="session")
def make_task():
    return task_with_outputs


@pytest.fixture(scope="session")
def make_predictions():
    return predictions_of


@pytest.fixture(scope="session")
def plain() -> Augmentation:
    return PLAIN


@pytest.fixture(scope="session")
def recorded(data_dir, data_config):
    """The recorded predictions, and what two other voters say of them."""
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
    return predictions_of(rows, tasks), expected
