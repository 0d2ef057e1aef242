"""Answers of single rows, and the columns that they become."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, Integer, UInt8

from arc_data.canvas import FIRST_COLOR, canvas_side, decode_sizes
from eval.predictions import Predictions
from eval.questions import Questions


class Answer(NamedTuple):
    """What one row answers after some segments."""

    number: int  # of the row among the questions
    board: UInt8[np.ndarray, " canvas_cells"]  # tokens; PAD outside a window
    halt: float
    segments: int
    final: bool


class Answers(NamedTuple):
    """Answers that have just been given: columns of the file, and which rows they are of."""

    number: Int64[np.ndarray, " n"]  # of the row among the questions
    predictions: Predictions


def touches_edge(answer: Answer, box: Integer[np.ndarray, " 2"], canvas: int) -> bool:
    """Whether the grid goes to an edge of its window that is none of the canvas: no EOS ends it."""
    (size,) = decode_sizes(answer.board[None])
    return bool(((size == box) & (box < canvas)).any())


def to_columns(questions: Questions, answers: Sequence[Answer]) -> Answers:
    """The answers with their grids cropped."""
    number = np.array([answer.number for answer in answers])
    asked = questions.take(number)
    puzzles, evaluated = asked.puzzles, np.array(asked.evaluated)
    position, test_index, puzzle_id = asked.rows.T
    tokens = np.stack([answer.board for answer in answers])
    sizes = decode_sizes(tokens)
    side = canvas_side(tokens.shape[1])
    boards = tokens.reshape(-1, side, side)
    row, column = np.arange(side)[None, :, None], np.arange(side)[None, None, :]
    inside = (row < sizes[:, 0, None, None]) & (column < sizes[:, 1, None, None])
    predictions = Predictions(
        tasks=tuple(puzzles.tasks[t] for t in asked.evaluated),
        task=position.astype(np.int32),
        test_index=test_index.astype(np.int16),
        vote=(puzzle_id - puzzles.offsets[evaluated[position]]).astype(np.int32),
        dihedral=puzzles.dihedral[puzzle_id],
        colors=puzzles.colors[puzzle_id],
        height=sizes[:, 0].astype(np.uint8),
        width=sizes[:, 1].astype(np.uint8),
        cells=boards[inside] - FIRST_COLOR,
        halt=np.array([answer.halt for answer in answers], dtype=np.float32),
        segments=np.array([answer.segments for answer in answers], dtype=np.int16),
        final=np.array([answer.final for answer in answers]),
    )
    return Answers(number, predictions)
