"""Keeps what a signal's handler raised in a destructor of ours, until it can be raised.

A destructor written in Python is a place more at which the interpreter runs the handlers of
signals, and what they raise there is lost: Ctrl-C would do nothing. The next backward call that
ends, or the next saved tensor, raises it.
"""

from __future__ import annotations

import threading
from types import GeneratorType
from typing import Any

from gradscope.collect.census import Weight
from gradscope.collect.marks import LeafToken, Packed, Token
from gradscope.program.sites import OWN
from gradscope.torch_private import hidden_from_compiler

postponed: list[BaseException] = []

_DESTRUCTORS = tuple(each.__del__ for each in (Packed, Token, LeafToken, Weight))


@hidden_from_compiler
def take(unraisable: Any) -> bool:
    """Keep what was raised in a destructor of ours; return whether it was in one.

    A generator that is dropped before its end is one too: Python runs it once more.
    """
    where = unraisable.object
    if isinstance(where, GeneratorType):
        is_ours = where.gi_code.co_filename.startswith(OWN)
    else:
        is_ours = where in _DESTRUCTORS
    if not is_ours or unraisable.exc_value is None:
        return False
    postponed.append(unraisable.exc_value)
    return True


@hidden_from_compiler
def raise_postponed() -> None:
    """Raise what is kept, in the main thread: only there do handlers run."""
    if postponed and threading.get_ident() == threading.main_thread().ident:
        raise postponed.pop()
