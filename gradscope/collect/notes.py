"""Collects the report's notes on the watch itself, and handles the program's errors in our code.

The report names limits that the watch met, and parts that failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from traceback import walk_tb
from typing import Any, TypeVar

from gradscope.collect.marks import GraphMark, LeafMark, NodeMark, Packed
from gradscope.program.sites import OWN, USER, owner_of
from gradscope.torch_private import hidden_from_compiler

T = TypeVar("T")


class Notes:
    """Sentences for the report, each kept once."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._texts))

    def add(self, text: str) -> None:
        """Keep a sentence."""
        self._texts[text] = None

    def failed(self, what: str, failure: BaseException) -> None:
        """Keep that a part of gradscope failed; the program goes on without it.

        A full stack is left out: the program is about to meet that itself.
        """
        if isinstance(failure, RecursionError):
            return
        self.add(f"{what} ({type(failure).__name__}: {failure}); please report this")

    def attempt(self, what: str, work: Callable[[], T], otherwise: T) -> T:
        """Do some work of ours inside the program; where it fails, keep a note and go on."""
        try:
            return work()
        except Exception as failure:
            if raised_by_program(failure):
                raise
            self.failed(what, failure)
            return otherwise


def raised_by_program(error: BaseException) -> bool:
    """Return whether an exception that passes through our code is the program's own.

    That can only be one that a signal's handler raised while our code ran: it must go on its way.
    """
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return any(owner_of(frame.f_code) == USER for frame in frames)


def came_by_signal(error: BaseException) -> bool:
    """Return whether an exception from what we have called, which may be the program's own code, is
    none of its own: it is that of a signal's handler.
    """
    codes = (frame.f_code for frame, _ in walk_tb(error.__traceback__))
    called = next((code for code in codes if not code.co_filename.startswith(OWN)), None)
    return called is not None and owner_of(called) != USER and raised_by_program(error)


postponed: list[BaseException] = []
"""What a signal's handler raised in a destructor of ours, until it can be raised.

A destructor written in Python is a place more at which the interpreter runs the handlers of
signals, and what they raise there is lost: Ctrl-C would do nothing. The next backward call that
ends, or the next saved tensor, raises it.
"""

_DESTRUCTORS = tuple(each.__del__ for each in (Packed, NodeMark, LeafMark, GraphMark))


@hidden_from_compiler
def take(unraisable: Any) -> bool:
    """Keep what was raised in a destructor of ours, or by a handler that ran in other code of ours
    where nothing can be raised; return whether that is so.

    A generator that is dropped before its end is such a place: Python runs it once more.
    """
    error = unraisable.exc_value
    if error is None or (unraisable.object not in _DESTRUCTORS and not _came_in_ours(error)):
        return False
    postponed.append(error)
    return True


def _came_in_ours(error: BaseException) -> bool:
    """Return whether the program's code that raised this was called in our code."""
    codes = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    ours = [each.co_filename.startswith(OWN) for each in codes]
    while len(ours) > 1 and owner_of(codes[len(ours) - 1]) == USER:
        ours.pop()
    return bool(ours) and ours[-1] and (len(ours) < len(codes) or not isinstance(error, Exception))


@hidden_from_compiler
def raise_postponed() -> None:
    """Raise what is kept, in the main thread: only there do handlers run."""
    if postponed and threading.get_ident() == threading.main_thread().ident:
        raise postponed.pop()
