"""Tells calls that a library makes in its own loop from those that the user asks for."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import FrameType
from typing import Any

from gradscope.code.bytecode import Loop, flow_of
from gradscope.program.sites import LIBRARY, frames_from, owner_of
from gradscope.program.variables import local_variables


def is_driven(user: FrameType | None, given: Sequence[Any] = ()) -> bool:
    """Return whether the library that the line of ``user`` called is in its own loop.

    A library that was handed one of ``given`` (the loss) works on the user's behalf, loop or not.
    """
    between = _libraries_below(user)
    if not any(map(_loops_at, between)):
        return False
    return {id(value) for value in _arguments(between[-1])}.isdisjoint(map(id, given))


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
    """Yield what a function was given, and the elements of lists and dicts of arguments."""
    code = frame.f_code
    packed = bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + packed]
    for name, value in local_variables(frame):
        if name in names:
            yield value
            yield from (value if type(value) is tuple else ())
            yield from (value.values() if type(value) is dict else ())


def _loops_at(frame: FrameType) -> tuple[Loop, ...]:
    flow = flow_of(frame.f_code)
    return flow.loops_around(flow.index(frame.f_lasti))
