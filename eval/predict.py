"""Predict every test pair of the evaluated tasks under their first A augmentations."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from arc_data.canvas import FIRST_COLOR, canvas_side, decode_sizes, encode_grid
from arc_data.puzzles import PuzzleSet
from eval.predictions import Predictions
from hrm_deeploop.model import HRM
from hrm_deeploop.puzzle_embedding import PuzzleEmbedding

Row = tuple[int, int, int]  # task index, test index, puzzle id


# Maps inputs (batch, seq) and puzzle ids (batch,) to tokens (batch, seq) and halt values (batch,).
Answer = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def answer_with(network: HRM, puzzle_embedding: PuzzleEmbedding) -> Answer:
    """Run all ``halt_max_steps`` segments; answer with the last one's tokens and halt value."""

    @torch.inference_mode()
    def answer(inputs: Tensor, puzzle_ids: Tensor) -> tuple[Tensor, Tensor]:
        vectors = puzzle_embedding.lookup(puzzle_ids)
        out = network(network.initial_state(len(inputs)), inputs, vectors)
        for _ in range(network.config.halt_max_steps - 1):
            out = network(out.state, inputs, vectors)
        return out.logits.argmax(-1), torch.sigmoid(out.q_halt)

    return answer


def rows_to_predict(puzzles: PuzzleSet, evaluated: Sequence[int], votes: int) -> Iterator[Row]:
    """What is predicted: every test pair of the tasks under their first ``votes`` puzzles."""
    for task_index in evaluated:
        for test_index in range(len(puzzles.tasks[task_index].test)):
            for puzzle_id in puzzles.puzzle_ids(task_index)[:votes]:
                yield task_index, test_index, puzzle_id


def predict(
    answer: Answer,
    puzzles: PuzzleSet,
    evaluated: Sequence[int],
    *,
    canvas: int,
    votes: int,
    num_segments: int,
    batch_size: int,
    device: torch.device,
    title: str = "predict",
    leave_bar: bool = True,
) -> Predictions:
    """Predictions for the tasks with indices ``evaluated``, inputs at offset (0, 0)."""
    rows = np.array(list(rows_to_predict(puzzles, evaluated, votes)), dtype=np.int64)
    heights, widths, cells, halts = [], [], [], []
    with tqdm(total=len(rows), desc=title, unit="grid", dynamic_ncols=True, leave=leave_bar) as bar:
        for start in range(0, len(rows), batch_size):
            chunk = rows[start : start + batch_size]
            inputs = np.stack([_encode(puzzles, row, canvas) for row in chunk])
            tokens, halt = answer(
                torch.from_numpy(inputs).to(device, torch.int64),
                torch.from_numpy(chunk[:, 2]).to(device),
            )
            boards = tokens.cpu().numpy()
            sizes = decode_sizes(boards)
            cells += [_crop(board, size) for board, size in zip(boards, sizes, strict=True)]
            heights.append(sizes[:, 0])
            widths.append(sizes[:, 1])
            halts.append(halt.cpu().numpy())
            bar.update(len(chunk))
    position = {task_index: i for i, task_index in enumerate(evaluated)}
    return Predictions(
        task_ids=tuple(puzzles.tasks[t].id for t in evaluated),
        task=np.array([position[int(t)] for t in rows[:, 0]], dtype=np.int32),
        test_index=rows[:, 1].astype(np.int16),
        vote=(rows[:, 2] - puzzles.offsets[rows[:, 0]]).astype(np.int32),
        dihedral=puzzles.dihedral[rows[:, 2]],
        colors=puzzles.colors[rows[:, 2]],
        height=np.concatenate(heights).astype(np.uint8),
        width=np.concatenate(widths).astype(np.uint8),
        cells=np.concatenate(cells),
        halt=np.concatenate(halts).astype(np.float32),
        segments=np.full(len(rows), num_segments, dtype=np.uint8),
    )


def _encode(puzzles: PuzzleSet, row: np.ndarray, canvas: int) -> np.ndarray:
    task_index, test_index, puzzle_id = (int(x) for x in row)
    grid = puzzles.tasks[task_index].test[test_index].input
    return encode_grid(puzzles.augmentation(puzzle_id).apply(grid), canvas)


def _crop(board: np.ndarray, size: np.ndarray) -> np.ndarray:
    side = canvas_side(len(board))
    grid = board.reshape(side, side)[: size[0], : size[1]]
    return (grid - FIRST_COLOR).astype(np.uint8).reshape(-1)
