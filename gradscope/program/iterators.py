"""Finds the iterators of the loops that a frame is in, and what they will still give.

A loop keeps its iterator on the frame's stack, where Python shows it to nobody. It is read where it
lies, in a frame that stands still: one that waits for a call.
"""

from __future__ import annotations

import collections
import ctypes
import gc
import itertools
import sys
from ctypes import c_size_t, py_object
from types import FrameType, GeneratorType
from typing import Any, NamedTuple

from gradscope.code.liveness import MISSING, is_exactly
from gradscope.program.layouts import derives
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

_MOST_ITEMS = 4_096
_MOST_DEEP = 8


def on_stack(frame: FrameType, depth: int) -> Any:
    """Return the value at a depth of the stack of a frame that waits for a call; MISSING where that
    cannot be read.
    """
    code = frame.f_code
    if not _IS_KNOWN or not 0 <= depth < code.co_stacksize:
        return MISSING
    variables = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    data = c_size_t.from_address(id(frame) + DATA).value
    word = c_size_t.from_address(data + _SLOTS + (len(variables) + depth) * WORD).value
    how = word & _HOW_IT_IS_HELD
    if word == how or how == _HOW_IT_IS_HELD:
        return MISSING
    return ctypes.cast(word - how, py_object).value


class Coming(NamedTuple):
    """What an iterator will still give: objects, each with the part of the element that it is.

    ``all_known``: it will give nothing else.
    """

    items: list[tuple[str, Any]]
    all_known: bool = True


_UNKNOWN = Coming([], all_known=False)


def coming(iterator: Any, deep: int = 0) -> Coming:
    """Return what an iterator of Python's own will still give, without taking anything from it."""
    if deep > _MOST_DEEP:
        return _UNKNOWN
    kind = type(iterator)
    if id(kind) in _REDUCED or (kind is _ORDERED and _is_plain(iterator)):
        return _of_reduced(iterator)
    if kind is enumerate or kind is zip:
        parts = iterator.__reduce__()[1]
        inner = [coming(part, deep + 1) for part in (parts[:1] if kind is enumerate else parts)]
        if any(one.all_known and not one.items for one in inner):
            return Coming([])
        all_known = all(one.all_known for one in inner)
        if kind is enumerate:
            numbers = range(parts[1], parts[1] + len(inner[0].items) * all_known)
            inner.insert(0, Coming([("", number) for number in numbers]))
        found = [(f"[{i}]{at}", each) for i, one in enumerate(inner) for at, each in one.items]
        return Coming(found, all_known)
    if kind is itertools.chain:
        return _of_chain(iterator, deep)
    if kind is GeneratorType or id(kind) in _WRAPPERS:
        inside = gc.get_referents(iterator)
        found = [each for part in inside for _, each in coming(part, deep + 1).items]
        if kind is itertools.cycle:
            saved = (part for part in gc.get_referents(iterator) if type(part) is list)
            found += [each for part in saved for each in part[:_MOST_ITEMS]]
        return Coming([("", each) for each in found], all_known=False)
    return _UNKNOWN


def _of_reduced(iterator: Any) -> Coming:
    """Of an iterator over a sequence or dict: what it would be pickled as says where it stands."""
    made = iterator.__reduce__()
    sequence, place = made[1][0], made[2] if len(made) > 2 else None
    if id(type(iterator)) in _DEQUES:
        sequence, place = made[1]
    base: Any = next((b for b in _SEQUENCES if derives(type(sequence), b)), None)
    if base is None:
        return _UNKNOWN
    items: Any
    if base is collections.deque:
        is_forward = id(type(iterator)) == _DEQUES[0]
        source = base.__iter__(sequence) if is_forward else base.__reversed__(sequence)
        items = itertools.islice(source, place, None)
    elif place is None:
        items = base.__iter__(sequence)
    elif id(type(iterator)) in _BACKWARD:
        items = base.__getitem__(sequence, slice(place, None, -1)) if place >= 0 else ()
    else:
        items = base.__getitem__(sequence, slice(place, None))
    found = list(itertools.islice(items, _MOST_ITEMS + 1))
    return Coming([("", each) for each in found[:_MOST_ITEMS]], len(found) <= _MOST_ITEMS)


def _is_plain(iterator: Any) -> bool:
    """Return whether an iterator is one over an ``OrderedDict`` that no class has changed."""
    return any(type(part) is collections.OrderedDict for part in gc.get_referents(iterator))


def _of_chain(iterator: Any, deep: int) -> Coming:
    found: list[tuple[str, Any]] = []
    # From Python 3.12 on the class is among them.
    inside = [part for part in gc.get_referents(iterator) if part is not itertools.chain]
    if not inside:
        return Coming([])
    for part in inside:
        at_hand = coming(part, deep + 1).items
        if type(part) is type(iter(())) and part is inside[0]:
            at_hand = [
                each
                for _, later in at_hand
                if is_exactly(later, list, tuple, collections.deque, range)
                for each in coming(iter(later), deep + 1).items
            ]
        found += at_hand
    return Coming(found, all_known=False)


_SEQUENCES: tuple[type, ...] = (list, tuple, range, collections.deque)
_EMPTY: tuple[Any, ...] = ([], (), range(0), {}, {}.values(), {}.items(), set())
_REVERSIBLE: tuple[Any, ...] = ([], {}, {}.values(), {}.items())
_ORDERED: Any = type(iter(collections.OrderedDict()))


def _ids(*classes: Any) -> tuple[int, ...]:
    """Return identities: to hash a class may run its metaclass's code."""
    return tuple(map(id, classes))


_DEQUES = _ids(type(iter(collections.deque())), type(reversed(collections.deque())))
_BACKWARD = _ids(type(reversed([])), reversed)
_REDUCED = frozenset(
    (*_ids(*map(type, map(iter, _EMPTY)), *map(type, map(reversed, _REVERSIBLE))), *_BACKWARD)
).union(_DEQUES)
_WRAPPERS = frozenset(
    _ids(map, filter, itertools.islice, itertools.cycle, itertools.starmap, itertools.takewhile)
)
