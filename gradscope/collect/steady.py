"""Books guarded calls together: in a loop most are like the one before."""

from __future__ import annotations

import _thread
import sys
from collections.abc import Sequence
from typing import Protocol

from gradscope.collect.calls import Call
from gradscope.collect.observers import MOST_UNTOLD, Observer
from gradscope.collect.state import State
from gradscope.program.sites import Place, user_frame
from gradscope.record.writer import WRITE_EVERY


class Booking(Protocol):
    """Writes guarded calls. ``gradscope.collect.backward.Books`` is one."""

    def mark(self) -> None:
        """Note what there is when a call ends: the next one counts from there."""

    def may_wait(self, call: Call) -> bool:
        """Return whether a guarded call may wait to be written: it has a row, of no short run."""

    def guarded(self, calls: Sequence[Call]) -> None:
        """Write guarded calls in the rows of those like them."""


class Steady:
    """The guarded calls that have ended and are not booked yet.

    They are booked as soon as an observer asks for one of them, before a call is looked at in full,
    and before anybody reads the totals.
    """

    def __init__(self, state: State, books: Booking) -> None:
        self._state = state
        self._books = books
        self._calls: list[Call] = []
        self._left: dict[Place | None, int] = {}  # how many more may wait, by their place
        self._booked = 0.0  # when the last one had ended
        self._books_now = _thread.allocate_lock()

    def end(self, call: Call) -> None:
        """Take a guarded call that the engine has run to its end."""
        state, lifting = self._state, self._state.lifting
        state.end(call, completed=True)
        if lifting.after_guarded(call):
            self.settle()
            state.observers.tell(Observer.outgrown)
        state.go_on(call)
        self._books.mark()
        call.ended = state.elapsed()
        self._calls.append(call)
        left = self._left.get(call.place)
        if left is None:
            left = state.observers.patience(call.place)
        self._left[call.place] = left - 1
        waits = self._books.may_wait(call) and left > 0 and len(self._calls) < MOST_UNTOLD
        is_alone = call.parent is None and not call.within
        if not (waits and is_alone and lifting.on and call.ended - self._booked < WRITE_EVERY):
            self.settle(at_end=True)

    def settle(self, *, at_end: bool = False) -> None:
        """Book what waits, in the watch's own thread; ``at_end``: the last has ended just now."""
        state, books_now = self._state, self._books_now
        self._left.clear()
        if not (self._calls and state.generations.is_own and books_now.acquire(blocking=False)):
            return
        try:
            calls = self._calls[:]
            del self._calls[: len(calls)]
            self._booked = calls[-1].ended
            self._books.guarded(calls)
            frame = user_frame(sys._getframe()) if at_end else None
            state.observers.tell(Observer.guarded, calls, frame)
        finally:
            books_now.release()
