"""Reads the variables of frames; the program cannot tell that they were read.

Up to Python 3.12, ``frame.f_locals`` of a function is one dict, the same that ``locals()`` gives
the program. Asking fills it again, keeps it with the frame, and makes every later trace event
fill it again. So the variables are read without it:

* Python 3.13 and later (PEP 667): ``f_locals`` is a view of the variables themselves.
* Python 3.12: ``PyFrame_GetVar`` of the C API returns one variable.
* Python 3.11 has no such function. Read the variables where they lie, if the frame stands still
  meanwhile. Read a frame that another thread may end at any moment through ``f_locals``, and empty
  that again if only its frame holds it.
"""

from __future__ import annotations

import ctypes
import dis
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ctypes import c_size_t, c_void_p, py_object
from functools import lru_cache
from types import CellType, CodeType, FrameType
from typing import Any

from gradscope.code.bytecode import MISSING
from gradscope.program.undisturbed import GCPaused

Variables = tuple[tuple[str, object], ...]

# How a local variable can be read without copying all of them into ``f_locals``, which keeps them
# alive: from 3.13 on that is a view (PEP 667), in 3.12 there is PyFrame_GetVar, and before only
# memory is left.
_HAS_VIEW = sys.version_info >= (3, 13)
_HAS_GET_VAR = sys.version_info >= (3, 12)
_OPTIMIZED = 0x1  # inspect.CO_OPTIMIZED: a function's frame, whose variables are not kept in a dict
LOCALS_PROXY = type((lambda: sys._getframe().f_locals)())

# CPython 3.11 to 3.14, Include/internal/pycore_frame.h: after its head, a frame object's second
# word points to a `_PyInterpreterFrame`, in which the fourth word points to the mapping of a module
# or class, and the variables of a function begin with the tenth (3.14: the eleventh). Its stack
# follows them. From 3.14 on the two lowest bits of a word say how it is held; both are set where it
# is no object (pycore_stackref.h).
_WORD = ctypes.sizeof(c_size_t)
_DATA = object.__basicsize__ + _WORD
_LOCALS, _SLOTS = 3 * _WORD, (10 if sys.version_info >= (3, 14) else 9) * _WORD
_HOW_IT_IS_HELD = 3  # the two lowest bits
_IS_KNOWN = (
    sys.implementation.name == "cpython"
    and (3, 11) <= sys.version_info[:2] <= (3, 14)
    and getattr(sys, "_is_gil_enabled", lambda: True)()
)
_HAS_SLOTS = (
    _IS_KNOWN
    and not _HAS_GET_VAR
    and FrameType.__basicsize__ == _DATA + 3 * _WORD + _SLOTS  # one structure after the other
)

_interpreter = ctypes.PYFUNCTYPE(c_void_p)(("PyInterpreterState_Get", ctypes.pythonapi))
_first_thread = ctypes.PYFUNCTYPE(c_void_p, c_void_p)(
    ("PyInterpreterState_ThreadHead", ctypes.pythonapi)
)
_next_thread = ctypes.PYFUNCTYPE(c_void_p, c_void_p)(("PyThreadState_Next", ctypes.pythonapi))

if _HAS_GET_VAR and not _HAS_VIEW:
    _get_var = ctypes.pythonapi.PyFrame_GetVar
    _get_var.argtypes, _get_var.restype = (py_object, py_object), py_object

_SHARE_SNAPSHOT = frozenset({"locals", "vars", "exec", "eval"})


AS_ARGUMENT = next(sys.getrefcount(local) - 2 for local in [object()])
"""What ``sys.getrefcount`` counts for its own argument, where that is a local variable: 1, and none
from Python 3.14 on, which borrows it.
"""
_ALONE = 3  # references to a dict: its frame's, our variable, the argument of getrefcount


_off = False


def turn_off() -> None:
    """Read no variables of functions any more: this Python keeps them in a way not known here."""
    global _off
    _off = True


def is_module_level(frame: FrameType) -> bool:
    """True where the frame's variables are its module's globals."""
    return not frame.f_code.co_flags & _OPTIMIZED and _namespace(frame) is frame.f_globals


def variables(frame: FrameType) -> list[tuple[str, Any]]:
    """Return the frame's own variables, then the globals of its module."""
    own = () if is_module_level(frame) else local_variables(frame)
    return [*own, *frame.f_globals.items()]


def namespace_of(frame: FrameType) -> object:
    """Return the mapping in which a class body or an exec() keeps its variables; else None."""
    return None if frame.f_code.co_flags & _OPTIMIZED else _namespace(frame)


def local_variables(frame: FrameType) -> Variables:
    """Return names and values of the frame's own variables, cells included.

    Return none where reading them could be noticed.
    """
    code = frame.f_code
    if _off:
        return ()
    if not code.co_flags & _OPTIMIZED:
        return _of_module_or_class(frame)
    found: Iterable[tuple[str, object]]
    if _HAS_VIEW:
        found = frame.f_locals.items()
    elif _HAS_GET_VAR:
        found = _by_get_var(frame, code)
    elif _HAS_SLOTS and _stands_still(frame):
        found = _in_slots(frame, code)
    else:
        found = _from_snapshot(frame)
    # ".0" is what a comprehension's frame calls the iterator it was given.
    return tuple(pair for pair in found if not pair[0].startswith("."))


class Variable:
    """A variable of one function, to be read from frames of it that run in this thread."""

    __slots__ = ("_may_be_in_cell", "_name", "_offset")

    def __init__(self, code: CodeType, name: str) -> None:
        self._name = name
        self._offset, self._may_be_in_cell = _slots(code)[name]

    def of(self, frame: FrameType) -> Any:
        """Return its value; None where it is not bound."""
        if _off:
            return None
        try:
            if _HAS_SLOTS:  # first, as this runs at every operation of the program's
                data = c_size_t.from_address(id(frame) + _DATA).value
                value: Any = py_object.from_address(data + self._offset).value
                if self._may_be_in_cell and type(value) is CellType:
                    return value.cell_contents
                return value
            if _HAS_VIEW:
                return frame.f_locals[self._name]
            if _HAS_GET_VAR:
                return _get_var(frame, self._name)
            return dict(_from_snapshot(frame)).get(self._name)
        except (KeyError, NameError, ValueError):
            return None


def _namespace(frame: FrameType) -> Any:
    """The mapping in which a module, a class body or an exec() keeps its variables."""
    if _HAS_GET_VAR and not _HAS_VIEW and frame.f_code.co_nlocals:
        # Python 3.12 runs comprehensions in this frame. Asked for ``f_locals`` inside of one, it
        # warns "assigning None to unbound local" as soon as a trace function runs. These are the
        # variables of the comprehension that runs, or there are none.
        return dict(_by_get_var(frame, frame.f_code)) or frame.f_globals
    if _HAS_SLOTS and _stands_still(frame):
        place = c_size_t.from_address(id(frame) + _DATA).value + _LOCALS
        return py_object.from_address(place).value if c_size_t.from_address(place).value else None
    if frame.f_code.co_cellvars and not _HAS_VIEW:
        return None  # a class body: asking for f_locals would delete its own `__class__`
    return frame.f_locals


def _of_module_or_class(frame: FrameType) -> Variables:
    namespace = _namespace(frame)
    if type(namespace) is not dict and type(namespace) is not LOCALS_PROXY:
        return ()  # an exec() with a mapping of the user's
    # In a comprehension of a module, Python 3.12 shows a copy of the globals with its variables.
    shared = frame.f_globals
    pairs = namespace.items()
    return tuple(pair for pair in pairs if shared.get(pair[0], MISSING) is not pair[1])


@lru_cache(maxsize=1_000)
def _slots(code: CodeType) -> dict[str, tuple[int, bool]]:
    """How far into a frame's data each variable lies, and whether it may be in a cell."""
    cells = code.co_cellvars + code.co_freevars
    names = dict.fromkeys(code.co_varnames + cells)
    return {name: (_SLOTS + i * _WORD, name in cells) for i, name in enumerate(names)}


def frames_of_threads() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by the thread's number.

    In Python 3.11 a collection that starts while ``sys._current_frames`` makes its frame objects
    can wait forever for a lock that it holds: one that frees a ``threading.local`` does.
    """
    with GCPaused():
        return sys._current_frames()


def _stands_still(frame: FrameType) -> bool:
    """Whether no other thread can end the frame: there is none, or this thread is running it."""
    if _next_thread(_first_thread(_interpreter())) is None:
        return True
    own: FrameType | None = sys._getframe(1)
    while own is not None and own is not frame:
        own = own.f_back
    return own is frame


def _in_slots(frame: FrameType, code: CodeType) -> Iterator[tuple[str, object]]:
    for i, (name, (_, may_be_in_cell)) in enumerate(_slots(code).items()):
        value = slot(frame, i)
        if may_be_in_cell and type(value) is CellType:
            with suppress(ValueError):  # not bound
                yield name, value.cell_contents
        elif value is not MISSING:
            yield name, value


def slot(frame: FrameType, index: int) -> Any:
    """Return what is in a place of a frame that stands still, as it waits for a call: its variables
    come first, then its stack; MISSING where nothing is, or that cannot be read.
    """
    if not _IS_KNOWN or index < 0:
        return MISSING
    data = c_size_t.from_address(id(frame) + _DATA).value
    word = c_size_t.from_address(data + _SLOTS + index * _WORD).value
    how = word & _HOW_IT_IS_HELD
    if word == how or how == _HOW_IT_IS_HELD:
        return MISSING
    return py_object.from_buffer(c_size_t(word - how)).value  # a cast may raise in deep recursion


def on_stack(frame: FrameType, depth: int) -> Any:
    """Return the value at a depth of the stack of such a frame; MISSING where that cannot be
    read.
    """
    is_there = 0 <= depth < frame.f_code.co_stacksize
    return slot(frame, len(_slots(frame.f_code)) + depth) if is_there else MISSING


def _by_get_var(frame: FrameType, code: CodeType) -> Iterator[tuple[str, object]]:
    for name in _slots(code):
        with suppress(NameError):  # not bound
            yield name, _get_var(frame, name)


def _from_snapshot(frame: FrameType) -> Variables:
    """The variables by way of ``f_locals``; none of a function that may hold that very dict."""
    code = frame.f_code
    if _shares_snapshot(code):
        return ()
    snapshot = frame.f_locals
    found = tuple(snapshot.items())
    # A debugger writes the snapshot back into the frame: emptied, it would delete the variables.
    if sys.gettrace() is None and sys.getrefcount(snapshot) <= _ALONE:
        for name in _slots(code):
            snapshot.pop(name, None)
        # Else the next trace event would fill the snapshot again, and it would stay with the frame.
        ctypes.pythonapi.PyFrame_LocalsToFast(py_object(frame), ctypes.c_int(0))
    return found


@lru_cache(maxsize=1_000)
def _shares_snapshot(code: CodeType) -> bool:
    # model.eval() has the name too, but loads it as an attribute.
    return not _SHARE_SNAPSHOT.isdisjoint(code.co_names) and any(
        step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in _SHARE_SNAPSHOT
        for step in dis.get_instructions(code)
    )
