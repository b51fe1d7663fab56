"""Handles the backward calls of a steady loop at the lowest cost: only counts most of them, and
records guarded calls in groups.

A backward call is handled in one of three ways, from the most to the least expensive:

- A *watched* call is inspected in full while the saved-tensor hooks are in force.
- A *guarded* call runs while the hooks are suspended. A fast walk reads what each node saved, and
  finds whether all of it is there and unmodified (``hook_suspension.Recognizer.look``).
- A *counted* call is a guarded call whose walk reads only the kind and the number of each node.

``CallCounter`` decides which guarded calls are only counted, and handles them. ``GuardedQueue``
holds the guarded calls that have ended until they are recorded together: in a loop most are like
the one before, and share a row of the recording.
"""

from __future__ import annotations

import _thread
import sys
import time
from array import array
from bisect import bisect_left
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from gradscope.collect.calls import (
    INPUTS,
    PLAIN_BACKWARD,
    Call,
    CallSite,
    Counted,
    EngineCall,
    Guarded,
)
from gradscope.collect.generations import this_thread
from gradscope.collect.observers import MOST_UNTOLD, Observer
from gradscope.collect.state import TIMED_EACH, State
from gradscope.collect.walk import numbers_of, torch_number
from gradscope.program.sites import ENGINE, Place, frames_from, owner_of, user_frame
from gradscope.program.undisturbed import Allowance
from gradscope.record.writer import WRITE_EVERY
from gradscope.torch_private import DisableTorchFunction, next_sequence_nr

if TYPE_CHECKING:
    from gradscope.collect.backward import CallRecorder

# Guarded calls at one line whose saved tensors are read before later calls are only counted: most
# programs fail in the first iterations of a loop.
_READ_FIRST = 32
# Of the calls after those, one in this many is read, and one each ``WRITE_EVERY`` seconds. Higher:
# a tensor that is modified in place under ``no_grad()``, which node numbers cannot show, is more
# often left to the engine's own error. Lower: of a step of 0.1 ms, one in 64 took 3 % more.
READ_EACH = 256
# Lines whose calls are counted. When there are more, all are forgotten and begin anew with
# ``_READ_FIRST``. A program has a few; code that is made by exec() in a loop has new ones without
# end.
_MOST_SITES = 64
# For graphs of at least this many nodes, the garbage collector does not count, while the call runs,
# the two Python objects that a walk makes of each node and torch keeps. It sets in after 700 new
# objects (in Python 3.11), and took up to a tenth of the time of loops whose graphs have hundreds
# of nodes.
MANY_NODES = 100

_BACKWARD = torch.Tensor.backward.__code__
_POSITIONAL = 5  # arguments of the engine that ``backward`` gives by position; ``grad`` gives 6


class CallCounter:
    """Handles counted calls: those for which the numbers of their nodes tell that the graph is
    whole.

    Only an earlier backward call can free a node. So nothing in a graph was freed if each of its
    nodes was built after the last call had ended, or is in the graph of no call since that has not
    kept its graph.

    A call is read instead, as every guarded call is, if it asks something else of the engine, or if
    its graph has a node of a new kind, or one from before the last steps. So is one whose graph was
    built in part before an optimizer's step, unless that was so in the last call that was read,
    after as many steps, as with the generator of a GAN. One call in ``READ_EACH`` is read in any
    case: node numbers do not show that a tensor was modified in place. A modification in between is
    left to the engine's own check.
    """

    def __init__(self, state: State) -> None:
        self.is_allowed = True
        """Whether no watch has to see each call."""
        self.until = 0.0
        """The time from which on calls are read, so that those that wait are recorded in time."""
        self.sites = state.suspension.sites
        self._state = state
        # Those fields of ``Counted``, in order, that are known before the call has ended.
        self._open: tuple[Any, ...] | None = None
        # Nodes that the call that runs frees, and those of them that count as destroyed with it.
        self._freed = self._destroyed = 0
        self._promoted: Call | None = None
        self.allowances: list[Allowance] = []
        """Of the calls that run now, each within the one before."""

    def allow(self, call: Call, most: int) -> None:
        """Let up to ``most`` of the next calls be counted at the line of a guarded call."""
        state, place, suspension = self._state, call.place, self._state.suspension
        is_sure = suspension.on and not (suspension.theirs_entered or state.generations.others)
        if place is None or not is_sure or suspension.blocked:
            suspension.read_next()
            return
        key = id(place.code), place.offset
        site = self.sites.get(key)
        if site is None:
            if len(self.sites) >= _MOST_SITES:
                self.sites.clear()
            site = self.sites[key] = CallSite(place, call.pattern)
        site.reads += 1
        site.pattern, site.nodes = call.pattern, len(call.numbers)
        site.asked = call.shape.signature.asked
        site.shape = None if call.of_new_shape else call.shape
        last_step = state.generations.last_step
        straddles = any(0 < number < last_step for number in call.numbers)
        site.steps = call.steps - site.stepped if straddles else None
        site.stepped = call.steps
        may = call.plain and not (call.parent or call.within or call.woken or state.budget)
        may = may and self.is_allowed and site.reads >= _READ_FIRST
        site.left = min(most, READ_EACH - 1) if may else 0
        alarms = state.alarms.get(place, range(0))
        site.alarm = next((number for number in alarms if number > state.calls), sys.maxsize)

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Begin to count a call for ``Backward.run``; return False if the call must be read.

        ``args`` and ``kwargs`` are the arguments of the engine. Each test here is one of "is this
        call like those that were read?": the cheapest come first.
        """
        frame: Any = sys._getframe(3)
        if frame.f_code is _BACKWARD:
            frame = frame.f_back
        site = None if frame is None else self.sites.get((id(frame.f_code), frame.f_lasti))
        if site is None and (frame := user_frame(frame)) is not None:  # a library has called
            site = self.sites.get((id(frame.f_code), frame.f_lasti))
        if site is None or site.left <= 0 or len(args) < _POSITIONAL:
            return False
        outputs, _, keeps, creates, inputs = args[:_POSITIONAL]
        asked, kind = None, PLAIN_BACKWARD
        if keeps or creates or inputs or len(args) > _POSITIONAL:
            asked = EngineCall.of(*args, **kwargs)
            kind = asked.kind
        state, generations, pattern = self._state, self._state.generations, site.pattern
        number = state.calls + 1
        if (
            (kind != site.asked or number >= site.alarm)
            or (state.running or self._open is not None or this_thread.number != generations.own)
            or ((since := time.perf_counter()) > self.until or sys.getprofile() is not None)
        ):
            return False
        with DisableTorchFunction():  # a mode of the program's may not see us read an attribute
            roots = []
            for output in outputs:
                if type(output) is not torch.Tensor or (node := output.grad_fn) is None:
                    return False
                roots.append(node)
        newest, oldest = generations.newest, min(pattern.ended, generations.step_before)
        if site.steps is None:
            oldest = max(oldest, generations.last_step)
        elif state.steps - site.stepped != site.steps:
            return False
        if site.nodes >= MANY_NODES:
            self.allowances.append(Allowance(2 * site.nodes))
        shape, of_new_shape = site.shape, False
        walked = None if shape is None else numbers_of(roots, shape.signature.kinds, oldest)
        if shape is None or walked is None:
            site.shape = None  # it differs from call to call, as with sequences of any length
            counted = state.recognizer.count(roots, pattern, oldest)
            if counted is None:
                return False
            shape, of_new_shape, walked = counted
        numbers, nodes = walked
        if inputs and asked is not None:
            with DisableTorchFunction():
                if asked.constant or asked.unused(nodes):
                    return False
        ordered = sorted(numbers) if oldest < newest else []
        older = ordered[bisect_left(ordered, 1) : bisect_left(ordered, newest)]
        began, graph = next_sequence_nr(), len(numbers) - numbers.count(0)
        fresh = graph - len(older)
        extra = began - newest - fresh
        if extra > pattern.extra:
            return False
        if older and state.history.may_have_freed(older, number - 1, oldest):
            return False
        site.left -= 1
        site.stepped = state.steps
        state.calls = number
        state.guarded += 1
        at = tuple(map(torch_number, roots))
        like = site.place, pattern, shape, of_new_shape, bool(keeps), at, array("Q", numbers)
        self._open = number, state.steps, *like, fresh, extra, began
        self._freed, self._destroyed = 0 if keeps else graph, 0
        if keeps or pattern.pace:  # it outlives the call
            kept = pattern.size_of(len(numbers)) if keeps else (0, 0)
            state.suspension.begin(roots[0], numbers, kept)
        else:
            self._destroyed = state.history.count_new(numbers) if older else graph
        if not number % TIMED_EACH:
            state.cost.add(number, since)
        return True

    def end(self) -> Call | None:
        """End the call that the engine has run; return it if it must be recorded by itself."""
        opened, promoted = self._open, self._promoted
        self._open = self._promoted = None
        if promoted is not None or opened is None:
            return promoted
        state, now = self._state, time.perf_counter()
        suspension, pattern = state.suspension, opened[3]
        fresh, extra, began = opened[-3:]
        state.generations.newest = pattern.ended = ended = next_sequence_nr()
        suspension.pending += extra + fresh + ended - began - self._freed
        if self._freed and opened[4].signature.asked & INPUTS:  # a part of its graph
            suspension.leaves = True
        state.census.destroyed += self._destroyed
        if pattern.pace:
            pattern.go_on()
        # The class's own ``__new__`` is one more function in Python.
        state.history.counted.append(tuple.__new__(Counted, (*opened, ended, now - state.started)))
        return None

    def cancel(self) -> Call | None:
        """End the call that the engine failed to run as if it had never begun, because it is
        inspected now, after the error. Return it if it must be recorded by itself.
        """
        is_open, promoted = self._open is not None, self._close()
        if is_open and promoted is None:
            self._state.calls -= 1
            self._state.guarded -= 1
        return promoted

    def promote(self) -> None:
        """Turn the counted call that runs into a full ``Call``: another call has begun within it,
        and needs a parent.
        """
        if self._open is None or self._promoted is not None:
            return
        state, outer = self._state, None
        if state.generations.is_own:
            entrances = (f for f in frames_from(sys._getframe()) if owner_of(f.f_code) == ENGINE)
            outer = next(islice(entrances, 1, None), None)
            # A signal handler that raises between the engine's return and ``end`` leaves the
            # counted call open. The call does not run any more if no second frame of ours is on the
            # stack.
            if outer is None:
                self._close()
                return
        self._promoted = call = Counted._make((*self._open, 0, state.elapsed())).call()
        call.open, call.completed = True, False
        state.running[call] = None
        if outer is not None:
            call.begin(None, outer)

    def _close(self) -> Call | None:
        promoted = self._promoted
        self._open = self._promoted = None
        return promoted


class GuardedQueue:
    """The guarded calls that have ended and are not recorded yet.

    They are recorded (``settle``) when an observer must see one of them, before the next call that
    is inspected in full, and before anybody reads the totals. None waits longer than
    ``WRITE_EVERY`` seconds while calls come.
    """

    def __init__(self, state: State, recorder: CallRecorder) -> None:
        self._state = state
        self._recorder = recorder
        self._calls: list[Guarded] = []
        self._left: dict[Place | None, int] = {}  # how many more calls may wait, by line
        self._recording = _thread.allocate_lock()
        self.counter = CallCounter(state)

    def end(self, call: Call) -> None:
        """Take a guarded call that the engine has run without an error."""
        state, suspension = self._state, self._state.suspension
        state.end(call, completed=True)
        if suspension.after_guarded(call):
            self.settle()
            state.observers.tell(Observer.outgrown)
        state.go_on(call)
        self._recorder.count_from_here()
        call.ended = state.elapsed()
        self._calls.append(call)
        left = self._patience(call.place)
        self._left[call.place] = left - 1
        may_wait = self._recorder.may_wait(call)
        waits = may_wait and left > 0 and len(self._calls) < MOST_UNTOLD
        is_alone = call.parent is None and not call.within
        is_early = state.started + call.ended < self.counter.until
        if not (waits and is_alone and suspension.on and is_early):
            self.settle(at_end=True)
        most = min(self._patience(call.place), MOST_UNTOLD - 1 - len(self._calls))
        self.counter.allow(call, most if may_wait else 0)

    def _patience(self, place: Place | None) -> int:
        """Return how many more calls at a line the observers allow to wait."""
        if place not in self._left:
            self._left[place] = self._state.observers.patience(place)
        return self._left[place]

    def gather(self) -> None:
        """Queue the calls that were counted since the last time."""
        state = self._state
        if calls := state.history.take():
            for place, count in Counter(call.place for call in calls).items():
                self._left[place] = self._patience(place) - count
            self._calls += calls
            self._recorder.count_from_here()

    def settle(self, *, at_end: bool = False) -> None:
        """Record what waits, if this is the watch's own thread; ``at_end``: the last call has ended
        just now, so the frame of the program is that of the call.
        """
        state, books_now = self._state, self._recording
        self.gather()
        self._left.clear()
        if not (self._calls and state.generations.is_own and books_now.acquire(blocking=False)):
            return
        try:
            calls = self._calls[:]
            del self._calls[: len(calls)]
            self.counter.until = state.started + calls[-1].ended + WRITE_EVERY
            self._recorder.guarded(calls)
            frame = user_frame(sys._getframe()) if at_end else None
            state.observers.tell(Observer.guarded, calls, frame)
        finally:
            books_now.release()
