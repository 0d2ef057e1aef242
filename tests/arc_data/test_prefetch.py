"""Prefetching changes when batches are computed, never which ones are delivered."""

import threading

import pytest

from arc_data.prefetch import Prefetch


def test_each_step_gets_its_own_value_and_is_computed_once():
    calls = []

    def draw(step):
        calls.append(step)
        return step * step

    with Prefetch(draw, depth=3, end=10) as prefetched:
        assert [prefetched(step) for step in range(10)] == [s * s for s in range(10)]
    assert calls == list(range(10))  # nothing beyond the end, nothing twice


def test_steps_may_be_asked_for_in_any_order():
    with Prefetch(lambda step: -step, depth=4, end=100) as prefetched:
        assert [prefetched(step) for step in (50, 3, 4, 99, 0, 120)] == [-50, -3, -4, -99, 0, -120]


def test_the_next_steps_are_computed_while_the_caller_works():
    reached = {step: threading.Event() for step in range(8)}

    def draw(step):
        reached[step].set()
        return step

    with Prefetch(draw, depth=2, end=8) as prefetched:
        prefetched(0)
        assert reached[2].wait(timeout=10)  # nobody has asked for steps 1 and 2 yet
        assert not reached[4].is_set()


def test_an_error_is_raised_by_the_call_for_its_step():
    def draw(step):
        if step == 2:
            raise ValueError("no batch 2")
        return step

    with Prefetch(draw, depth=4, end=5) as prefetched:
        assert (prefetched(0), prefetched(1)) == (0, 1)
        with pytest.raises(ValueError, match="no batch 2"):
            prefetched(2)
        assert prefetched(3) == 3
