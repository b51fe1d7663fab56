"""Watches the user's code line by line while its graphs are new: which line changes a saved
tensor?
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Container, Iterable, Sequence
from itertools import chain, islice
from types import CodeType, FrameType
from typing import Any

import torch

from gradscope.code.bytecode import MISSING
from gradscope.code.statements import data_lines
from gradscope.collect.backward import Backward
from gradscope.collect.calls import Call, Guarded
from gradscope.collect.generations import this_thread
from gradscope.collect.inspection import Inspection
from gradscope.collect.marks import Packed
from gradscope.collect.notes import raised_by_program
from gradscope.collect.observers import MOST_UNTOLD, Observer
from gradscope.collect.state import State
from gradscope.hooks import Handle, erase, hide_trace, trace_thread
from gradscope.program.ahead.questions import values_of
from gradscope.program.containers import is_exactly
from gradscope.program.sites import (
    USER,
    Place,
    is_override,
    known_codes,
    learn_code,
    owner_of,
    place_at,
    user_frames,
)
from gradscope.program.tensors import Memory, checksum, memory_of, storage_of, version_of
from gradscope.program.undisturbed import GCPaused
from gradscope.torch_private import DisableTorchFunction, hidden_from_compiler, is_compiler

# Saved tensors that are remembered, the newest. A line that names a tensor with ``.data`` is
# checked against all of them. A write to a tensor that was saved earlier goes unseen.
_MOST_KEPT = 4_096
# Saved tensors whose memory is read before and after such a line, and tensors that the line names.
# Each costs up to a millisecond (``checksum``), so a line costs at most a tenth of a second.
_MOST_READ = 64


class Versions:
    """The newest saved tensors of the live graphs, each until its version is seen to change."""

    def __init__(self) -> None:
        self._recent: list[weakref.ref[Packed]] = []

    def add(self, packed: Packed) -> None:
        """Remember one more saved tensor."""
        if len(self._recent) >= _MOST_KEPT:
            del self._recent[: _MOST_KEPT // 2]
        self._recent.append(weakref.ref(packed))

    def changed(self, most: int) -> list[Packed]:
        """Return which of the ``most`` newest, saved by this thread, were modified since the last
        call.
        """
        recent = self._recent
        newest = recent[-most:]
        with DisableTorchFunction():  # at every line, so each step here counts
            alive = [packed for reference in newest if (packed := reference()) is not None]
            found = [
                packed
                for packed in alive
                if (tensor := packed.tensor) is not None and tensor._version != packed.version
            ]
        dead = len(newest) - len(alive)
        del alive
        # Dead references are removed only when there are many: this runs at every line.
        if found or dead > most // 2 or dead == len(recent):
            known = {id(packed) for packed in found}
            recent[:] = [r for r in recent if (p := r()) is not None and id(p) not in known]
        thread = this_thread.number
        return [packed for packed in found if packed.thread == thread]

    def newest(self, most: int, storages: Container[int] | None = None) -> list[Packed]:
        """Return the ``most`` newest that this thread saved of tensors in these storages."""
        thread = this_thread.number
        alive = (packed for each in reversed(self._recent) if (packed := each()) is not None)
        own = (packed for packed in alive if packed.thread == thread)
        if storages is not None:
            own = (p for p in own if p.tensor is not None and storage_of(p.tensor) in storages)
        return [*islice(own, most)]


class MemoryBefore:
    """Checksums of saved tensors before a statement runs, without the tensors themselves."""

    def __init__(self, code: CodeType, packs: list[Packed]) -> None:
        self.code = code
        self._packs = [weakref.ref(packed) for packed in packs]
        self._before = checksums(packs)

    def changed(self) -> list[Packed]:
        """Return which of them have other values than at the last call, with the same version."""
        packs = [reference() for reference in self._packs]
        before, now = self._before, checksums(packs)
        self._before = now
        return [
            packed
            for packed, old, new in zip(packs, before, now, strict=True)
            if packed is not None and old is not None and new is not None and old != new
        ]


def memory_before(frame: FrameType, versions: Versions) -> MemoryBefore | None:
    """Return the saved tensors that share memory with those that the next line names with
    ``.data``; None if there are none.

    If the line writes to a tensor that is not known before it runs, return what was saved last:

        model.get_parameter(name).data.mul_(0.99)
    """
    lines = data_lines(frame.f_code.co_filename)
    line = lines.get(frame.f_lineno) if lines else None
    if line is None:
        return None
    found = values_of(line.names, frame)
    storages = None
    if not line.writes or all(value is not MISSING for value in found):
        values = [value if is_exactly(value, list, tuple) else (value,) for value in found]
        some = islice(chain.from_iterable(values), _MOST_READ)
        storages = {storage_of(each) for each in some if issubclass(type(each), torch.Tensor)} - {0}
    packs = versions.newest(_MOST_READ, storages) if storages != set() else []
    return MemoryBefore(frame.f_code, packs) if packs else None


def checksums(packs: Iterable[Packed | None]) -> list[int | None]:
    """Return a checksum of the elements of each saved tensor, or of samples of a very large one.

    No torch operation runs, because the program may have hooks or modes that would see it. A tensor
    gets None if it is not on the CPU, has gaps between its elements or a special layout, or was
    modified so that torch knows it.
    """
    known: dict[Memory | None, int | None] = {None: None}  # several nodes may save one tensor
    found = []
    for packed in packs:
        memory = _memory_of(packed) if packed is not None else None
        if memory is not None and memory not in known:
            known[memory] = checksum(memory)
        found.append(known[memory])
    return found


def _memory_of(packed: Packed) -> Memory | None:
    tensor = packed.tensor
    if tensor is None or version_of(tensor) != packed.version:
        return None
    return memory_of(tensor)


# Calls of library functions while lines are traced, each of which calls gradscope, and lines of the
# program that are inspected. These counts end the trace, and not a clock, so that what is found
# does not depend on how busy the machine is.
_MOST_EVENTS, _MOST_LOOKS = 200_000, 20_000
# Saved tensors whose version is compared at every line, the newest. A change of an older one is
# found at the backward call, without its line.
_COMPARED = 128
# Seconds in all lines. 20,000 lines take less, unless each of them is slow, as where each reads the
# code ahead.
_MOST_SECONDS = 2.0
# Consecutive calls on known graphs after which no line is traced until something new comes: all
# that an iteration does was seen by then.
_ENOUGH = 5
_BACKWARD = Backward.run.__code__


class _Traced(threading.local):
    """The trace of one thread, and the place in the user's code that runs now in it."""

    handle: Handle | None = None
    aside = False
    overrides = 0  # how many overrides of operations run: they have no place
    code: CodeType | None = None
    offset = -1
    contents: MemoryBefore | None = None
    """What saved tensors hold while a statement runs that may write to them through ``.data``."""

    def keep(self, handle: Handle) -> None:
        """Take charge of the trace that begins now."""
        self.handle = handle


class LineWatch(Observer):
    """Traces the user's code line by line, from the first saved tensor of an iteration to the
    backward call that frees it, to find the line that modifies a saved tensor.

    Torch counts modifications of a tensor but does not note where they happened. So at each line
    the versions of saved tensors are compared: if one has moved on, the line before modified it.

    The trace is on only while new graphs come, and within a budget of events and time. It stays off
    if another tool traces the thread, such as a debugger, or if a compiler is at work.
    """

    def __init__(self, watch: State) -> None:
        self.watch = watch
        self._versions = Versions()
        self._thread = _Traced()
        # One bound method each, to be recognised by identity.
        self._starts, self._inside = self._start, self._event
        self._events = self._looks = 0
        self._seconds = 0.0
        self._known = 0
        self._waiting: set[Observer] = set()

    def install(self) -> Handle:
        """Begin. The handle ends the trace of this thread; those of other threads end by
        themselves.
        """
        hidden = hide_trace(self._starts)
        return Handle(hidden.close, self._turn_off)

    def wait(self, observer: Observer, waits: bool) -> None:
        """Begin to call an observer at every line, even while no graph is alive; or stop it."""
        if waits:
            self._waiting.add(observer)
        else:
            self._waiting.discard(observer)

    # switching the trace on and off

    def saved(self, packed: Packed) -> None:
        """Compare one more saved tensor from now on, and begin to trace."""
        if self._is_spent() or (self._known >= _ENOUGH and not self._waiting):
            return
        self._versions.add(packed)
        if self._thread.handle is None:
            self.turn_on(sys._getframe(1))

    def _is_spent(self) -> bool:
        is_done = self._events > _MOST_EVENTS or self._looks > _MOST_LOOKS
        return is_done or self._seconds > _MOST_SECONDS

    @property
    def is_on(self) -> bool:
        """Whether this thread is traced."""
        return self._thread.handle is not None

    def turn_on(self, frame: FrameType | None) -> None:
        """Trace this thread, if nothing else traces it and no backward call runs."""
        thread = self._thread
        is_free = not thread.aside and thread.handle is None and not self._is_spent()
        looks = self.watch.active and self.watch.saving.detailed and not self.watch.call
        frames = user_frames(frame) if is_free and looks else []
        if frames:
            thread.code, thread.offset = frames[0].f_code, frames[0].f_lasti
            thread.overrides = 0
            trace_thread(self._starts, self._inside, frames, thread.keep)
            thread.aside = thread.handle is None

    def switch_off(self) -> None:
        """Trace nothing any more."""
        self._seconds = _MOST_SECONDS + 1
        self._turn_off()

    def _turn_off(self) -> None:
        self._thread.contents = None
        if self._thread.handle is not None:
            # Closed before it is forgotten: a signal handler may raise here, and then the next call
            # of this method must close it.
            self._thread.handle.close()
            self._thread.handle = None

    def before_call(self, call: Call, look: Inspection, frame: FrameType | None) -> None:
        """Turn the trace off while the engine runs."""
        self._turn_off()

    def after_call(self, call: Call, frame: FrameType | None) -> None:
        """Trace on if the call left graphs alive, or if an observer waits for a line."""
        is_new = call.exact or call.record.exception is not None
        self._go_on(call, frame, self._known + 1 if not is_new else 0)

    def guarded(self, calls: Sequence[Guarded], frame: FrameType | None) -> None:
        """Do the same after guarded calls."""
        last = calls[-1]
        call = last if isinstance(last, Call) else last.call()
        self._go_on(call, frame, self._known + len(calls))

    def _go_on(self, call: Call, frame: FrameType | None, known: int) -> None:
        self._known = 0 if call.woken else known
        self.watch.saving.detailed |= call.woken
        self._thread.aside = False
        if call.parent is None and self._looks_after:
            self.turn_on(frame)

    @property
    def _looks_after(self) -> bool:
        """Whether saved tensors are alive, or an observer waits for a line."""
        return bool(self.watch.ledger.live_tensors or self._waiting)

    def patience(self, place: Place | None) -> int:
        """Return 0 while lines are traced, so that each call is reported at once."""
        is_idle = self._is_spent() or not (self.watch.saving.detailed and self._looks_after)
        return MOST_UNTOLD if is_idle else 0

    def at_end(self) -> None:
        """The watch ends."""
        self._turn_off()

    # what Python calls at each event

    @hidden_from_compiler
    def _start(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Trace a function of the user that begins, or a generator that continues."""
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
        # torch.compile would trace our hooks into the user's code.
        compiles = is_compiler(code)
        if compiles or self._events > _MOST_EVENTS or not self.watch.active:
            self._thread.aside = True
            self._turn_off()
        return None

    @hidden_from_compiler
    def _event(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Inspect an event in the user's code; no failure of ours becomes the program's."""
        if event == "exception":
            return None
        try:
            with GCPaused():  # else the time to collect the program's garbage would be counted
                self._look(frame, event)
        except RecursionError:  # the program is about to meet it
            return None
        except BaseException as error:
            # A signal's handler may have raised it.
            if not isinstance(error, Exception) or raised_by_program(error):
                erase(error, _OURS)
                raise
            self.switch_off()
            self.watch.notes.failed("the line watch failed and was switched off", error)
        return None if self._thread.handle is None else self._inside

    def _look(self, frame: FrameType, event: str) -> None:
        thread, watch = self._thread, self.watch
        if thread.handle is None:  # a frame from before the trace ended, in another tool's trace
            return
        started = time.thread_time()
        self._events += 1
        self._looks += 1
        self._compare()
        self._move(frame, event)
        if event == "line":
            before = memory_before(frame, self._versions) if watch.ledger.live_tensors else None
            if before is not None or (
                thread.contents is not None and thread.contents.code is frame.f_code
            ):
                thread.contents = before  # else the statement is running still, in what it calls
            if self._waiting:
                self.watch.observers.tell(Observer.at_line, frame)
        self._seconds += time.thread_time() - started
        idle = not watch.ledger.live_tensors and not self._waiting
        if idle or not watch.active or self._is_spent():
            self._turn_off()

    def _move(self, frame: FrameType, event: str) -> None:
        """Note the user's line that runs; within an override of an operation, its caller's."""
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
        changed = self._versions.changed(_COMPARED)
        hidden = [] if thread.contents is None else thread.contents.changed()
        if thread.code is None or not (changed or hidden):
            return
        place = place_at(thread.code, thread.offset)
        for packs, is_hidden in ((changed, False), (hidden, True)):
            if packs:
                self.watch.observers.tell(Observer.changed, packs, place, is_hidden)


_OURS = frozenset(
    function.__code__
    for function in (
        *(LineWatch._start, LineWatch._event, LineWatch._look, LineWatch._move, LineWatch._compare),
        *(GCPaused.__enter__, GCPaused.__exit__, Versions.changed, memory_before),
        *(MemoryBefore.__init__, MemoryBefore.changed, checksums, checksum),
    )
)
