"""A training state that is none, or has numbers out of range, is named and not taken over."""

import pytest
import torch

from hrm_deeploop.training_state import Bounds, check_training_state

BOUNDS = Bounds(num_rows=4, vocab_size=12, num_puzzles=7, seq_len=9, max_steps=3)


def carry(**changes):
    part = {
        "steps": torch.tensor([0, 1, 3, 2]),
        "halted": torch.zeros(4, dtype=torch.bool),
        "inputs": torch.zeros(4, 9, dtype=torch.int64),
        "labels": torch.full((4, 9), 11),
        "puzzle_ids": torch.tensor([0, 6, 1, 2]),
        "positions": torch.arange(9).expand(4, 9),
        "z_H": torch.zeros(4, 9, 2),
    }
    return [{name: t for name, t in {**part, **changes}.items() if t is not None}]


def state(**changes):
    whole = dict(step=3, log_sums={}, optimizer={}, scheduler={}, num_averaged=3, carry=carry())
    return {name: value for name, value in {**whole, **changes}.items() if value != "gone"}


def test_a_whole_state_is_taken():
    check_training_state(state(), BOUNDS)
    check_training_state(state(carry=None), BOUNDS)
    half = {name: tensor[:2] for name, tensor in carry()[0].items()}
    check_training_state(state(carry=(half, half)), BOUNDS)


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({"imported_from": "HRM"}, "missing: carry, log_sums, num_averaged, .*unknown: imported"),
        ([], "not a training state"),
        (None, "not a training state"),
        (state(optimizer="gone"), "missing: optimizer; unknown: none"),
        (state(other=1), "missing: none; unknown: other"),
        (state(step=-1), "step: expected a count, got -1"),
        (state(step=1.5), "step: expected a count, got 1.5"),
        (state(step=True), "step: expected a count, got True"),
        (
            state(num_averaged=torch.ones(2)),
            "num_averaged: expected a count, got a tensor",
        ),
        (state(log_sums=[]), "log_sums: expected names and values, got a list"),
        (state(carry={}), "carry: expected parts"),
        (state(carry=[3]), "carry: expected parts"),
        (state(carry=carry(inputs=None)), "carry 0: lacks inputs"),
        (state(carry=carry(halted=3)), "carry 0, halted: expected a tensor, got 3"),
        (state(carry=carry(steps=torch.tensor([1]))), "carry 0: has .* rows"),
        (state(carry=carry(puzzle_ids=torch.tensor([0, 7, 1, 2]))), "puzzle_ids: values 0 to 7"),
        (state(carry=carry(puzzle_ids=torch.tensor([0, -1, 1, 2]))), "puzzle_ids: values -1 to 2"),
        (state(carry=carry(inputs=torch.full((4, 9), 12))), "inputs: values 12 to 12, allowed"),
        (state(carry=carry(labels=torch.full((4, 9), 2**40))), "labels: values"),
        (
            state(carry=carry(labels=torch.zeros(4, 9))),
            "labels: expected integers, got torch.float",
        ),
        (state(carry=carry(positions=torch.full((4, 9), 9))), "positions: values 9 to 9"),
        (state(carry=carry(steps=torch.tensor([0, 0, 0, 4]))), "steps: values 0 to 4"),
        (
            state(carry=carry(z_H=torch.full((4, 2), float("nan")))),
            "z_H: holds values that are not",
        ),
        (state(carry=carry() + carry()), "carry: has 8 rows, optim.global_batch_size is 4"),
    ],
)
def test_what_is_no_training_state_is_named(saved, message):
    with pytest.raises(ValueError, match=message):
        check_training_state(saved, BOUNDS)
