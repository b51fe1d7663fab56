"""Tells calls that a library makes in its own loop from those that the user asks for."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from inspect import (
    CO_ASYNC_GENERATOR,
    CO_COROUTINE,
    CO_GENERATOR,
    CO_OPTIMIZED,
    CO_VARARGS,
    CO_VARKEYWORDS,
)
from itertools import takewhile
from types import FrameType
from typing import Any

from gradscope.code.liveness import call_at, calls_after, iterators_at
from gradscope.code.liveness.flow import Loop, flow_of
from gradscope.program.iterators import coming, on_stack
from gradscope.program.sites import LIBRARY, USER, frames_from, owner_of
from gradscope.program.variables import local_variables

_PASSES_ON = frozenset({"func", "fn", "self", "super().__call__", "forward_call"})
_RESUMED = CO_COROUTINE | CO_GENERATOR | CO_ASYNC_GENERATOR
_SCHEDULERS = frozenset(
    {
        *("asyncio", "concurrent", "multiprocessing", "sched", "socketserver", "threading"),
        *("tkinter", "tornado", "trio", "anyio"),
        *("IPython", "ipykernel", "code", "bdb", "pdb", "debugpy"),
        *("_pytest", "pluggy", "unittest"),
    }
)
"""Packages that run one thing after the other: what they call next is not this function again."""


def is_driven(user: FrameType | None, given: Sequence[Any] = ()) -> bool:
    """Return whether the library that the line of ``user`` called is in its own loop.

    A library that was handed one of ``given`` (the loss) works on the user's behalf, loop or not.
    """
    between = _libraries_below(user)
    if not any(map(_loops_at, between)):
        return False
    return {id(value) for value in _arguments(between[-1])}.isdisjoint(map(id, given))


def runs_on(user: FrameType) -> bool:
    """Return whether a loop of the library that the line of ``user`` called may have an iteration
    to come.
    """
    for frame in _libraries_below(user):
        depths = {
            header: depth for depth, header in iterators_at(frame.f_code, frame.f_lasti).items()
        }
        for loop in _loops_at(frame):
            depth = depths.get(loop.header)
            ahead = None if depth is None else coming(on_stack(frame, depth))
            if ahead is None or ahead.items or not ahead.all_known:
                return True
    return False


def _libraries_below(user: FrameType | None) -> list[FrameType]:
    """Return the frames of libraries between the user's and this one, innermost first."""
    found: list[FrameType] = []
    for frame in frames_from(sys._getframe(2)):
        if frame is user:
            return found
        if owner_of(frame.f_code) == LIBRARY:
            found.append(frame)
    return []


def _arguments(frame: FrameType) -> Iterator[Any]:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    rest = bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    names, packed = code.co_varnames[:count], code.co_varnames[count : count + rest]
    for name, value in local_variables(frame):
        if name in names:
            yield value
        elif name in packed and type(value) is dict:
            yield from value.values()
        elif name in packed and type(value) is tuple:
            yield from value


def _loops_at(frame: FrameType) -> tuple[Loop, ...]:
    flow = flow_of(frame.f_code)
    return flow.loops_around(flow.index(frame.f_lasti))


def is_run_again(frame: FrameType) -> bool:
    """Return whether a library will call the function again, as an optimizer its closure.

    Not so the code of a module or of a notebook's cell, nor a coroutine, which is only resumed.
    """
    flags = frame.f_code.co_flags
    if not flags & CO_OPTIMIZED or flags & _RESUMED:
        return False
    for above in takewhile(lambda f: owner_of(f.f_code) != USER, frames_from(frame.f_back)):
        if _package(above) in _SCHEDULERS:
            return False
        here = call_at(above.f_code, above.f_lasti)
        if (
            here is not None
            and here.target
            and any(c.target == here.target for c in calls_after(above.f_code, above.f_lasti))
        ):
            return here.target not in _PASSES_ON
    return False


def _package(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__")
    return name.partition(".")[0] if type(name) is str else ""
