"""What is turned off while something of ours runs comes back, unless it ended meanwhile."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from gradscope.program.undisturbed import Untraced, uncollected


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
    with suppress(ValueError), uncollected():
        assert not gc.isenabled()
        raise ValueError
    assert gc.isenabled()
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
