"""When a row halts, and what takes its place."""

import numpy as np
import torch

from hrm_deeploop.halting import (
    Batch,
    Carry,
    continue_target,
    decide_halt,
    empty_carry,
    min_segments,
    refill,
)


def batch_of(value, num_rows=3):
    full = torch.full((num_rows, 2), value)
    return Batch(inputs=full, labels=full, puzzle_ids=full[:, 0])


def state_of(value, num_rows=3):
    return {
        "z_H": torch.full((num_rows, 2, 1), float(value)),
        "z_L": torch.full((num_rows, 2, 1), -value * 1.0),
    }


def test_halted_slots_take_the_example_of_their_slot_and_the_initial_state():
    carry = Carry(
        state=state_of(7),
        steps=torch.tensor([2, 3, 1]),
        halted=torch.tensor([False, True, False]),
        batch=batch_of(5),
    )
    after = refill(carry, batch_of(9), state_of(1))
    assert after.batch.inputs[:, 0].tolist() == [5, 9, 5]
    assert after.batch.puzzle_ids.tolist() == [5, 9, 5]
    assert after.state["z_H"][:, 0, 0].tolist() == [7, 1, 7]
    assert after.state["z_L"][:, 1, 0].tolist() == [-7, -1, -7]
    assert after.steps.tolist() == [2, 0, 1]
    assert not after.halted.any()


def test_an_empty_carry_is_filled_whole():
    carry = refill(empty_carry(batch_of(0), state_of(0)), batch_of(4), state_of(1))
    assert carry.batch.labels.unique().tolist() == [4]
    assert carry.steps.tolist() == [0, 0, 0]


def test_halt_only_halts_on_a_positive_value_but_not_before_its_minimum():
    halted = decide_halt(
        torch.tensor([0.1, -0.1, 0.1, -5.0]),
        None,
        steps=torch.tensor([1, 1, 1, 4]),
        at_least=torch.tensor([1, 1, 2, 4]),
        max_steps=4,
    )
    assert halted.tolist() == [True, False, False, True]


def test_bootstrap_halts_when_halting_is_worth_more_than_going_on():
    halted = decide_halt(
        torch.tensor([-1.0, 1.0]),
        torch.tensor([-2.0, 2.0]),
        steps=torch.tensor([1, 1]),
        at_least=torch.tensor([1, 1]),
        max_steps=4,
    )
    assert halted.tolist() == [True, False]


def test_the_continue_target_is_the_better_choice_of_the_next_segment():
    target = continue_target(
        torch.tensor([0.0, 2.0, -3.0]),
        torch.tensor([1.0, 1.0, 9.0]),
        torch.tensor([False, False, True]),
    )
    torch.testing.assert_close(target, torch.sigmoid(torch.tensor([1.0, 2.0, -3.0])))


def test_exploration_draws_a_minimum_from_2_to_max_with_its_probability():
    drawn = min_segments(
        20_000, max_steps=4, exploration_prob=0.25, rng=np.random.default_rng(0)
    ).numpy()
    shares = [(drawn == n).mean() for n in (1, 2, 3, 4)]
    np.testing.assert_allclose(shares, [0.75, 0.25 / 3, 0.25 / 3, 0.25 / 3], atol=0.01)
    assert (
        min_segments(9, max_steps=1, exploration_prob=1.0, rng=np.random.default_rng(0)) == 1
    ).all()
