"""A profiler that is written in C sees a call of gradscope as one, and the program's calls after it where they are."""

from __future__ import annotations

import cProfile
import pstats
import sys
from collections.abc import Callable
from contextlib import suppress

import pytest

from gradscope.program.undisturbed import unprofiled


def helper() -> None:
    """Stand for the analysis."""


def ours(fails: bool) -> None:
    helper()
    if fails:
        raise ValueError


def nested(fails: bool) -> None:
    unprofiled(ours)(fails)
    helper()


def theirs() -> None:
    """Stand for the program's code."""


def program(work: Callable[[bool], None]) -> None:
    for fails in (False, True, False):
        with suppress(ValueError):
            unprofiled(work)(fails)
        theirs()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="cProfile is no profile function there")
@pytest.mark.parametrize("function", [ours, nested])
def test_a_profiler_sees_the_call_and_nothing_in_it(function: Callable[[bool], None]) -> None:
    profiler = cProfile.Profile()
    profiler.runcall(program, function)
    stats = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    seen = {
        key[2]: (value[1], [caller[2] for caller in value[4]])
        for key, value in stats.items()
        if key[0] in (__file__, unprofiled.__code__.co_filename)
    }
    assert seen == {
        "program": (1, []),
        "unseen": (3, ["program"]),
        "unprofiled": (3, ["program"]),
        "theirs": (3, ["program"]),
    }


def test_a_profile_function_in_python_goes_on() -> None:
    names = []
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name))
    try:
        unprofiled(ours)(False)
    finally:
        sys.setprofile(None)
    assert "helper" in names
