"""Watches the user's code line by line while its graphs are new: which line changes a saved
tensor?
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any

from gradscope.collect.backward import Backward
from gradscope.collect.calls import Call
from gradscope.collect.look import Look
from gradscope.collect.marks import Packed
from gradscope.collect.notes import raised_by_program
from gradscope.collect.shapes import Repeat
from gradscope.collect.state import State
from gradscope.detect.foresight.versions import (
    MemoryBefore,
    Versions,
    checksum,
    checksums,
    memory_before,
)
from gradscope.detect.observers import Observer, Observers
from gradscope.hooks import Handle, erase, hide_trace, trace_thread
from gradscope.model import BackwardCall, Finding
from gradscope.program.sites import (
    USER,
    is_override,
    known_codes,
    learn_code,
    owner_of,
    place_at,
    user_frame,
    user_frames,
)
from gradscope.program.undisturbed import Uncollected
from gradscope.torch_private import hidden_from_compiler, is_compiler

_MOST_EVENTS = 200_000
_COMPARED = 256  # of the newest saved tensors, at every line
_SOON, _COMPARED_LATER = 2_000, 64  # after so many events, of which each costs
_MOST_SECONDS = 0.5
_ENOUGH = 5
"""Calls in a row on graphs that are known: what the next iteration does was seen by then."""
_BACKWARD = Backward.run.__code__


class _Thread(threading.local):
    """One thread's trace, and the place in the user's code that runs now."""

    handle: Handle | None = None
    aside = False
    overrides = 0  # how many overrides of operations run: they have no place
    code: CodeType | None = None
    offset = -1
    contents: MemoryBefore | None = None
    """What saved tensors hold while a statement runs that may write to them through ``.data``."""


class LineWatch(Observer):
    """Traces a thread from the first saved tensor of an iteration to the backward call that frees
    it.

    It is on only while new graphs come (and the ledger looks at them in detail), and within a
    budget of events and time. Where another tool traces the thread, or a compiler is at work, it
    stays off.
    """

    def __init__(self, watch: State, observers: Observers) -> None:
        super().__init__(watch)
        self._versions = Versions()
        self._thread = _Thread()
        # One bound method each, to be recognised by identity.
        self._starts, self._inside = self._start, self._event
        self._events = 0
        self._seconds = 0.0
        self._known = 0
        self._observers = observers
        self._waiting: set[Observer] = set()

    def install(self) -> Handle:
        """Begin; the handle ends it in this thread, the others end by themselves."""
        hidden = hide_trace(self._starts)

        def end() -> None:
            self._turn_off()
            hidden.remove()

        return Handle(end)

    def wait(self, observer: Observer, waits: bool) -> None:
        """Call an observer at every line from now on, even while no graph is alive; or stop."""
        if waits:
            self._waiting.add(observer)
        else:
            self._waiting.discard(observer)

    # on and off

    def saved(self, packed: Packed) -> None:
        """Compare one more saved tensor, and begin to trace."""
        if self._is_spent() or (self._known >= _ENOUGH and not self._waiting):
            return
        self._versions.add(packed)
        if self._thread.handle is None:
            self.turn_on(sys._getframe(1))

    def _is_spent(self) -> bool:
        return self._events > _MOST_EVENTS or self._seconds > _MOST_SECONDS

    @property
    def is_on(self) -> bool:
        """Whether this thread is traced."""
        return self._thread.handle is not None

    def turn_on(self, frame: FrameType | None) -> None:
        """Trace this thread, if that can be done unseen."""
        thread = self._thread
        if (
            thread.aside
            or thread.handle is not None
            or not (self.watch.active and self.watch.saving.detailed)
            or self._is_spent()
        ):
            return
        frames = [] if self.watch.is_running else user_frames(frame)
        if frames:
            thread.handle = trace_thread(self._starts, self._inside, frames)
            thread.aside = thread.handle is None
            thread.code, thread.offset = frames[0].f_code, frames[0].f_lasti
            thread.overrides = 0

    def switch_off(self) -> None:
        """Trace nothing any more."""
        self._seconds = _MOST_SECONDS + 1
        self._turn_off()

    def _turn_off(self) -> None:
        handle, self._thread.handle = self._thread.handle, None
        self._thread.contents = None
        if handle is not None:
            handle.remove()

    def before_call(
        self, call: Call, look: Look, record: BackwardCall, frame: FrameType | None
    ) -> Iterable[Finding]:
        """Turn the trace off: the engine runs without it."""
        self._turn_off()
        return ()

    def after_call(
        self, call: Call, record: BackwardCall, frame: FrameType | None
    ) -> Iterable[Finding]:
        """Go on if the call left something to look after."""
        self._known = 0 if call.exact or record.exception is not None else self._known + 1
        self._thread.aside = False
        if call.parent is None and (self.watch.ledger.live_tensors or self._waiting):
            self.turn_on(frame)
        return ()

    def after_repeat(self, call: Call, repeat: Repeat) -> Iterable[Finding]:
        """Do the same after a call on a recognized graph."""
        self._known += 1
        self._thread.aside = False
        if call.parent is None and (self.watch.ledger.live_tensors or self._waiting):
            self.turn_on(user_frame(sys._getframe()))
        return ()

    def at_end(self) -> Iterable[Finding]:
        """The watch ends."""
        self._turn_off()
        return ()

    # what Python tells

    @hidden_from_compiler
    def _start(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Follow the user's function that begins, or the generator that continues."""
        code = frame.f_code
        try:
            if (known_codes.get(id(code)) or learn_code(code)).owner == USER:
                return self._event(frame, event, argument)
        except RecursionError:  # the program is about to meet it
            return None
        if code is _BACKWARD:
            self._event(frame, event, argument)
            self._turn_off()
            return None
        self._events += 1
        compiles = is_compiler(code)
        if compiles or self._events > _MOST_EVENTS or not self.watch.active:
            self._thread.aside = True
            self._turn_off()
        return None

    @hidden_from_compiler
    def _event(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Look at an event in the user's code; no failure becomes the program's."""
        if event == "exception":
            return None
        try:
            with Uncollected():  # or the budget goes to the program's garbage
                self._look(frame, event)
        except RecursionError:  # the program is about to meet it
            return None
        except BaseException as error:
            if not isinstance(error, Exception) or raised_by_program(
                error
            ):  # a signal's handler raised it
                erase(error, _OURS)
                raise
            self.switch_off()
            self.watch.notes.failed("the line watch failed and was switched off", error)
        return None if self._thread.handle is None else self._inside

    def _look(self, frame: FrameType, event: str) -> None:
        thread, watch = self._thread, self.watch
        if thread.handle is None:  # a frame of before, found by another tool's trace
            return
        started = time.thread_time()  # a busy machine must not change what is found
        self._events += 1
        self._compare()
        self._move(frame, event)
        if event == "line":
            before = memory_before(frame, self._versions) if watch.ledger.live_tensors else None
            if before is not None or (
                thread.contents is not None and thread.contents.code is frame.f_code
            ):
                thread.contents = before  # else a function runs that the statement calls
            if self._waiting:
                self._observers.at_line(frame)
        self._seconds += time.thread_time() - started
        idle = not watch.ledger.live_tensors and not self._waiting
        if idle or not watch.active or self._is_spent():
            self._turn_off()

    def _move(self, frame: FrameType, event: str) -> None:
        """Note the place in the user's code; while an override runs, it is that of its caller."""
        thread = self._thread
        if is_override(frame.f_code):
            begun = {"call": 1, "return": -1}.get(event, 0)
            thread.overrides = max(0, thread.overrides + begun)
        elif not thread.overrides and event in ("line", "return"):
            here = frame if event == "line" else frame.f_back
            while here is not None and owner_of(here.f_code) != USER:
                here = here.f_back
            thread.code, thread.offset = (None, -1) if here is None else (here.f_code, here.f_lasti)

    def _compare(self) -> None:
        thread = self._thread
        most = _COMPARED if self._events < _SOON else _COMPARED_LATER
        changed = self._versions.changed(most)
        if changed and thread.code is not None:
            self._observers.changed(changed, place_at(thread.code, thread.offset))
        hidden = thread.contents.changed() if thread.contents is not None else ()
        if hidden and thread.code is not None:
            self._observers.changed_unseen(hidden, place_at(thread.code, thread.offset))


_OURS = frozenset(
    function.__code__
    for function in (
        *(LineWatch._start, LineWatch._event, LineWatch._look, LineWatch._move, LineWatch._compare),
        *(Uncollected.__enter__, Uncollected.__exit__, Versions.changed, memory_before),
        *(MemoryBefore.__init__, MemoryBefore.changed, checksums, checksum),
    )
)
