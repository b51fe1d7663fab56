"""Runs the calls of a steady loop with little more than a look at the numbers of their nodes, and
books guarded calls together: in a loop most are like the one before.
"""

from __future__ import annotations

import _thread
import sys
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any, Protocol

import torch
from torch.autograd.graph import Node

from gradscope.collect.calls import PLAIN_BACKWARD, Call, CallSite, Counted, Guarded, Habit, Shape
from gradscope.collect.lifting import Recognizer
from gradscope.collect.observers import MOST_UNTOLD, Observer
from gradscope.collect.state import TIMED_EACH, State
from gradscope.program.sites import ENGINE, Place, frames_from, owner_of, user_frame
from gradscope.program.undisturbed import Allowance, Uncollected
from gradscope.record.writer import WRITE_EVERY
from gradscope.torch_private import DisableTorchFunction, next_sequence_nr

# Guarded calls at a place that are read before others are only counted: the first iterations of a
# loop are where most programs fail.
_READ_FIRST = 32
# Of the calls after that, one in so many is read.
READ_EACH = 64
# Places whose calls are counted. When there are more, all are forgotten.
_MOST_SITES = 64
# Nodes of a graph from which on Python's collector is kept from counting their Python objects, two
# a node: it sets in after 700 of all kinds (in Python 3.11), and took up to a tenth of the time of
# loops whose graphs have hundreds of nodes.
MANY = 100

_Opened = tuple[int, int, Place, Habit, Shape, bool, Sequence[int], int, int, int]
"""The fields of ``Counted`` that are known before a call has ended."""
_BACKWARD = torch.Tensor.backward.__code__
_POSITIONAL = 5  # arguments of the engine that ``backward`` gives by position, ``grad`` 6


class Counting:
    """Runs calls of which a few numbers tell enough: they are like those that were read before.

    Only an earlier call can free a node. So a graph of one's own thread is whole if its nodes were
    built after the last call had ended, or are in none of the graphs of the calls since. One with
    nodes of before the last call like it, of new kinds, or with an optimizer's step in its midst is
    read; and one in ``READ_EACH`` is, whatever it looks like: what is changed in place without a
    trace in the graph is found there, or by the engine.
    """

    def __init__(self, state: State) -> None:
        self.is_allowed = True
        """Whether no watch has to see each call."""
        self.until = 0.0
        """The time from which on calls are read, to be booked."""
        self.sites = state.lifting.sites
        self._state = state
        self._open: _Opened | None = None
        self._pending = 0  # nodes that the call which runs leaves, less those left that it runs
        self._promoted: Call | None = None
        self._allowance: Allowance | None = None

    def allow(self, call: Call, most: int) -> None:
        """Let as many as ``most`` of the next calls at the place of a guarded one be counted."""
        state, place, lifting = self._state, call.place, self._state.lifting
        is_mixed = lifting.theirs_entered or bool(state.generations.others)
        if place is None or is_mixed or not lifting.on or lifting.blocked:
            lifting.read_next()
            return
        key = id(place.code), place.offset
        site = self.sites.get(key)
        if site is None:
            if len(self.sites) >= _MOST_SITES:
                self.sites.clear()
            site = self.sites[key] = CallSite(place, call.habit)
        site.reads += 1
        site.habit, site.nodes = call.habit, len(call.numbers)
        site.shape = None if call.of_new_shape else call.shape
        is_plain = call.plain and call.shape.signature.asked == PLAIN_BACKWARD
        is_alone = call.parent is None and not call.within and len(call.roots) == 1
        may = is_plain and is_alone and not (call.woken or call.habit.pace or state.budget)
        may = may and self.is_allowed and Recognizer.is_countable(call.habit)
        site.left = min(most, READ_EACH - 1) if may and site.reads >= _READ_FIRST else 0
        alarms = state.alarms.get(place, range(0))
        site.alarm = next((number for number in alarms if number > state.calls), sys.maxsize)

    def begin(self, args: tuple[Any, ...]) -> bool:
        """Begin a call that is counted, as ``Backward.run`` was called for it; False if it is to be
        read.
        """
        frame = sys._getframe(2).f_back
        if frame is not None and frame.f_code is _BACKWARD:
            frame = frame.f_back
        site = None if frame is None else self.sites.get((id(frame.f_code), frame.f_lasti))
        if site is None or site.left <= 0 or len(args) != _POSITIONAL:
            return False
        state, outputs = self._state, args[0]
        generations, habit, number = state.generations, site.habit, state.calls + 1
        since = 0.0 if number % TIMED_EACH else time.perf_counter()
        if (
            (args[2] or args[3] or args[4] or len(outputs) != 1)
            or (type(outputs[0]) is not torch.Tensor or number >= site.alarm)
            or (state.running or self._open is not None or not generations.is_own)
            or (time.perf_counter() > self.until or sys.getprofile() is not None)
        ):
            return False
        with DisableTorchFunction():
            root = outputs[0].grad_fn
        if root is None:
            return False
        newest, oldest = generations.newest, max(habit.ended, generations.last_step)
        if site.nodes < MANY:
            walked = self._walk(root, site, oldest)
        else:
            with Uncollected():
                walked = self._walk(root, site, oldest)
        if walked is None:
            return False
        shape, of_new_shape, numbers = walked
        older: Sequence[int] = ()
        if oldest < newest:
            older = [number for number in numbers if 0 < number < newest]
            if older and state.past.ran(older, number - 1, oldest):
                return False
        began = next_sequence_nr()
        fresh = len(numbers) - numbers.count(0) - len(older)
        extra = began - newest - fresh
        if extra > habit.extra:
            return False
        if len(numbers) >= MANY:
            self._allowance = Allowance(2 * len(numbers))
        self._pending = extra - len(older)
        site.left -= 1
        state.calls = number
        state.guarded += 1
        of = state.steps, site.place, habit, shape, of_new_shape
        self._open = number, *of, array("Q", numbers), fresh, extra, began
        if since:
            state.cost.add(number, since)
        return True

    def _walk(
        self, root: Node, site: CallSite, oldest: int
    ) -> tuple[Shape, bool, list[int]] | None:
        """Return the shape of a graph, or that of one like it, whether it is none that is known,
        and the numbers of its nodes; None if it is to be read.
        """
        if site.shape is not None:
            numbers = self._state.recognizer.numbers_of(root, site.shape, oldest)
            if numbers is not None:
                return site.shape, False, numbers
            site.shape = None  # it is another one from call to call
        return self._state.recognizer.count(root, site.habit, oldest)

    def end(self) -> Call | None:
        """End the call that the engine has run; return it if it has to be booked by itself."""
        opened, promoted = self._open, self._close()
        if promoted is not None or opened is None:
            return promoted
        state, ended = self._state, next_sequence_nr()
        habit = opened[3]
        state.generations.newest = habit.ended = ended
        state.lifting.pending += self._pending
        state.past.counted.append(Counted._make((*opened, ended, state.elapsed())))
        return None

    def cancel(self) -> Call | None:
        """End the call that the engine has failed to run, as if it had not been met yet: it is to
        be looked at now. Return it if it has to be booked by itself.
        """
        is_open, promoted = self._open is not None, self._close()
        if is_open and promoted is None:
            self._state.calls -= 1
            self._state.guarded -= 1
        return promoted

    def promote(self) -> None:
        """Make the call that runs one like all others: another has begun meanwhile."""
        if self._open is None or self._promoted is not None:
            return
        state, outer = self._state, None
        if state.generations.is_own:
            entrances = (f for f in frames_from(sys._getframe()) if owner_of(f.f_code) == ENGINE)
            outer = next(islice(entrances, 1, None), None)
            if outer is None:  # it runs no more: a signal's handler has kept it from being ended
                self._close()
                return
        self._promoted = call = Counted(*self._open, ended=state.elapsed()).call()
        call.open, call.completed = True, False
        state.running[call] = None
        if outer is not None:
            call.begin(None, outer)

    def _close(self) -> Call | None:
        promoted = self._promoted
        self._open = self._promoted = None
        if self._allowance is not None:
            self._allowance.end()
            self._allowance = None
        return promoted


class Booking(Protocol):
    """Writes guarded calls. ``gradscope.collect.backward.Books`` is one."""

    def mark(self) -> None:
        """Note what there is when a call ends: the next one counts from there."""

    def ends(self, call: Call) -> bool:
        """Note what a guarded call has left; return whether it may wait to be written."""

    def guarded(self, calls: Sequence[Guarded]) -> None:
        """Write guarded calls in the rows of those like them."""


class Steady:
    """The guarded calls that have ended and are not booked yet.

    They are booked as soon as an observer asks for one of them, before a call is looked at in full,
    and before anybody reads the totals.
    """

    def __init__(self, state: State, books: Booking) -> None:
        self._state = state
        self._books = books
        self._calls: list[Guarded] = []
        self._left: dict[Place | None, int] = {}  # how many more may wait, by their place
        self._booked = 0.0  # when the last one had ended
        self._books_now = _thread.allocate_lock()
        self.counting = Counting(state)

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
        left = self._patience(call.place)
        self._left[call.place] = left - 1
        may_wait = self._books.ends(call)
        waits = may_wait and left > 0 and len(self._calls) < MOST_UNTOLD
        is_alone = call.parent is None and not call.within
        if not (waits and is_alone and lifting.on and call.ended - self._booked < WRITE_EVERY):
            self.settle(at_end=True)
        most = min(self._patience(call.place), MOST_UNTOLD - 1 - len(self._calls))
        self.counting.allow(call, most if may_wait else 0)

    def _patience(self, place: Place | None) -> int:
        """Return how many more calls at a place may wait."""
        if place not in self._left:
            self._left[place] = self._state.observers.patience(place)
        return self._left[place]

    def gather(self) -> None:
        """Let the calls that were counted wait with the others."""
        state = self._state
        if calls := state.past.take():
            state.lifting.after_counted(calls)
            for place, count in Counter(call.place for call in calls).items():
                self._left[place] = self._patience(place) - count
            self._calls += calls
            self._books.mark()

    def settle(self, *, at_end: bool = False) -> None:
        """Book what waits, in the watch's own thread; ``at_end``: the last has ended just now."""
        state, books_now = self._state, self._books_now
        self.gather()
        self._left.clear()
        if not (self._calls and state.generations.is_own and books_now.acquire(blocking=False)):
            return
        try:
            calls = self._calls[:]
            del self._calls[: len(calls)]
            self._booked = calls[-1].ended
            self.counting.until = state.started + self._booked + WRITE_EVERY
            self._books.guarded(calls)
            frame = user_frame(sys._getframe()) if at_end else None
            state.observers.tell(Observer.guarded, calls, frame)
        finally:
            books_now.release()
