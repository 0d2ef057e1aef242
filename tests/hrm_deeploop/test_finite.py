"""Values that are not finite stop a run: at once, or when the host comes to look."""

import pytest
import torch

from hrm_deeploop.finite import ACCELERATOR_LAG, FiniteCheck, NonFiniteError, finite_check

GOOD, BAD = torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("inf")])
NAMES = ("lm_loss", "grad_norm_H")


def test_without_lag_the_step_itself_is_refused():
    check = FiniteCheck(lag=0)
    check.add(1, NAMES, GOOD)
    with pytest.raises(NonFiniteError, match="step 2: grad_norm_H inf; nothing was updated"):
        check.add(2, NAMES, BAD)


def test_with_lag_later_steps_do_not_hide_the_first_bad_one():
    check = FiniteCheck(lag=2)
    check.add(1, NAMES, GOOD)
    check.add(2, NAMES, BAD)
    check.add(3, NAMES, GOOD)
    with pytest.raises(NonFiniteError, match="step 2: grad_norm_H inf; the steps since are lost"):
        check.add(4, NAMES, BAD)


def test_nothing_is_saved_before_everything_was_looked_at():
    check = FiniteCheck(lag=2)
    check.add(1, NAMES, BAD)
    with pytest.raises(NonFiniteError, match="step 1"):
        check.flush()
    check.flush()


def test_only_an_accelerator_lags():
    assert finite_check(torch.device("cpu")).lag == 0
    assert finite_check(torch.device("meta")).lag == ACCELERATOR_LAG
