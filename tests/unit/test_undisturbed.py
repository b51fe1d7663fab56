"""What is turned off while something of ours runs comes back, unless it ended meanwhile."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from gradscope.program.undisturbed import Allowance, Uncollected, Untraced


class Tracing:
    """Stands in for the line watch."""

    is_on = True

    def start(self, frame: FrameType, event: str, argument: Any) -> None:
        """Follow no frame."""


Tracing.start.__module__ = "gradscope.stand_in"


@pytest.mark.parametrize("ends", [False, True])
def test_a_trace_of_ours_comes_back_if_it_has_not_ended(ends: bool) -> None:
    watch = Tracing()
    start = watch.start
    sys.settrace(start)
    try:
        with Untraced():
            within = sys.gettrace()
            watch.is_on = not ends
        after = sys.gettrace()
    finally:
        sys.settrace(None)
    assert within is None
    assert after is (None if ends else start)


def test_a_trace_of_another_tool_stays() -> None:
    def theirs(frame: FrameType, event: str, argument: Any) -> None:
        return None

    sys.settrace(theirs)
    try:
        with Untraced():
            within = sys.gettrace()
    finally:
        sys.settrace(None)
    assert within is theirs


def test_the_collector_comes_back_after_an_error() -> None:
    with suppress(ValueError), Uncollected():
        assert not gc.isenabled()
        raise ValueError
    assert gc.isenabled()
    gc.disable()
    try:
        with Uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.fixture
def thresholds() -> Iterator[tuple[int, ...]]:
    before = gc.get_threshold()
    gc.set_threshold(500, 7, 9)
    yield gc.get_threshold()
    gc.set_threshold(*before)


def test_the_collector_comes_later_for_objects_of_ours(thresholds: tuple[int, ...]) -> None:
    first, *others = thresholds
    allowance = Allowance(1_000)
    assert gc.get_threshold() == (first + 1_000, *others)
    allowance.end()
    assert gc.get_threshold() == thresholds
    gc.set_threshold(40)
    allowance.end()  # a second time changes nothing
    assert gc.get_threshold()[0] == 40


def test_the_program_may_set_its_thresholds_meanwhile(thresholds: tuple[int, ...]) -> None:
    allowance = Allowance(1_000)
    gc.set_threshold(40, 3, 2)
    allowance.end()
    assert gc.get_threshold() == (40, 3, 2)


@pytest.mark.usefixtures("thresholds")
def test_a_collector_that_never_comes_is_left_alone() -> None:
    gc.set_threshold(0)
    allowance = Allowance(1_000)
    assert gc.get_threshold()[0] == 0
    allowance.end()
    assert gc.get_threshold()[0] == 0
