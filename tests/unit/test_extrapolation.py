"""A turn is told from any numbers that a program may compare, or none is."""

from __future__ import annotations

import itertools

import pytest

from gradscope.detect.lookahead import ConditionTracker
from gradscope.program.ahead.values import compared

NUMBERS = (0, 1, -3, 5e-324, 1e-300, 0.5, 1e300, 1.7e308, -1.7e308)


@pytest.mark.parametrize("limit", [1, 5e-324, 1.7e308])
def test_any_numbers_may_be_compared(limit: float) -> None:
    for steps in itertools.product(NUMBERS, repeat=3):
        turning = ConditionTracker()
        for call, number in enumerate(steps, 1):
            condition = compared(number, [limit], number < limit)
            assert condition is not None
            turn = turning.next_turn(None, call, {(1, 2): condition})
            assert not turn or turn.start > call


def test_a_counter_turns_where_it_reaches_its_limit() -> None:
    turning = ConditionTracker()
    for call in range(1, 20):
        condition = compared(call, [100], call < 100)
        assert condition is not None
        turn = turning.next_turn(None, call, {(1, 2): condition})
    assert 100 in turn
    assert len(turn) < 30
