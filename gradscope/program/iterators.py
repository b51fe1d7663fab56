"""Reads the variables and the stack of a frame where they lie, which Python shows to nobody.

The frame has to stand still: one that waits for a call.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import c_size_t, py_object
from types import FrameType
from typing import Any

from gradscope.code.bytecode import MISSING
from gradscope.program.variables import DATA, WORD

# CPython 3.11 to 3.14, Include/internal/pycore_frame.h: after its head, a frame object's second
# word points to a `_PyInterpreterFrame`, in which the variables of a function begin with the tenth
# word (3.14: the eleventh), and its stack follows them. From 3.14 on the two lowest bits of a word
# say how it is held; both are set where it is no object (pycore_stackref.h).
_SLOTS = (10 if sys.version_info >= (3, 14) else 9) * WORD
_HOW_IT_IS_HELD = 3
_IS_KNOWN = (
    sys.implementation.name == "cpython"
    and (3, 11) <= sys.version_info[:2] <= (3, 14)
    and getattr(sys, "_is_gil_enabled", lambda: True)()
)


def slot(frame: FrameType, index: int) -> Any:
    """Return what is in a place of a frame: its variables come first, then its stack; MISSING where
    nothing is, or that cannot be read.
    """
    if not _IS_KNOWN or index < 0:
        return MISSING
    data = c_size_t.from_address(id(frame) + DATA).value
    word = c_size_t.from_address(data + _SLOTS + index * WORD).value
    how = word & _HOW_IT_IS_HELD
    if word == how or how == _HOW_IT_IS_HELD:
        return MISSING
    return ctypes.cast(word - how, py_object).value


def on_stack(frame: FrameType, depth: int) -> Any:
    """Return the value at a depth of the stack of a frame that waits for a call; MISSING where that
    cannot be read.
    """
    code = frame.f_code
    if not 0 <= depth < code.co_stacksize:
        return MISSING
    variables = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    return slot(frame, len(variables) + depth)
