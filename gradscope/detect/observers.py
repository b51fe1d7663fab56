"""Observers of a running program, which announce findings, and the one place that calls them."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from types import FrameType, ModuleType
from typing import Any

from gradscope.collect.listener import Listener
from gradscope.collect.marks import Packed
from gradscope.collect.notes import Notes, raised_by_program
from gradscope.collect.state import State
from gradscope.model import Finding
from gradscope.program.sites import Place
from gradscope.program.undisturbed import unprofiled
from gradscope.torch_private import DisableTorchFunction


class Observer(Listener):
    """Does nothing at every point; an observer overrides those that it needs.

    It may read live objects while it is called and must keep none: no node, tensor or frame.
    """

    def __init__(self, watch: State) -> None:
        self.watch = watch

    def switch_off(self) -> None:
        """Undo what continues by itself: this observer has failed and is not called any more."""

    def after_step(
        self, optimizer: Any, place: Place | None, frame: FrameType | None
    ) -> Iterable[Finding]:
        """An optimizer has stepped."""
        return ()

    def after_program(self, main: ModuleType) -> Iterable[Finding]:
        """The code of a program that gradscope runs has ended; its variables are still there."""
        return ()

    def at_line(self, frame: FrameType) -> Iterable[Finding]:
        """A line of the user's code is about to run; called only where an observer waits for it."""
        return ()

    def at_end(self) -> Iterable[Finding]:
        """The watch ends."""
        return ()

    def changed(self, packs: list[Packed], place: Place) -> None:
        """The code at ``place`` has changed these saved tensors in place."""

    def changed_unseen(self, packs: list[Packed], place: Place) -> None:
        """The same through ``.data``, which moves no version counter."""


_POINTS = tuple(
    name
    for name in (*vars(Listener), *vars(Observer))
    if not name.startswith("_") and name != "switch_off"
)


_UNPROFILED = ("after_step", "after_program", "at_line", "at_end", "grown")
"""Points at which nothing of ours around the call has suspended the program's profiler."""


class Observers(Listener):
    """Calls every observer in turn and announces what they find.

    An observer that fails is switched off and noted once; the others and the program continue.
    Each point is called as an observer's own method of that name.
    """

    after_step: Callable[[Any, Place | None, FrameType | None], None]
    after_program: Callable[[ModuleType], None]
    at_line: Callable[[FrameType], None]
    at_end: Callable[[], None]
    changed: Callable[[list[Packed], Place], None]
    changed_unseen: Callable[[list[Packed], Place], None]

    def __init__(self, report: Callable[[Finding], None], notes: Notes) -> None:
        self._report = report
        self._notes = notes
        self._observers: list[Observer] = []
        self._listening: dict[str, tuple[tuple[Observer, Any], ...]] = dict.fromkeys(_POINTS, ())
        """By point, with the method to call: most come often and few observers listen there."""
        for point in _POINTS:
            call = self._call_unprofiled if point in _UNPROFILED else self._call
            setattr(self, point, partial(call, point))

    def add(self, *observers: Observer) -> None:
        """Call these observers from now on."""
        self._observers += observers
        self._find_listening()

    def _find_listening(self) -> None:
        for point in _POINTS:
            nothing = getattr(Observer, point)
            self._listening[point] = tuple(
                (o, getattr(o, point))
                for o in self._observers
                if getattr(type(o), point) is not nothing
            )

    def _call_unprofiled(self, point: str, *event: Any) -> None:
        unprofiled(self._call)(point, *event)

    def _call(self, point: str, *event: Any) -> None:
        listening = self._listening[point]
        if not listening:
            return
        findings: list[Finding] = []
        try:
            with DisableTorchFunction():  # nor may a subclass of the program's see what we do
                for observer, listen in listening:
                    try:
                        found = listen(*event)
                        if found:
                            findings += tuple(found)
                    except RecursionError:  # the program is about to meet it
                        continue
                    except Exception as failure:  # what looks on must never break what it looks at
                        if raised_by_program(failure):
                            raise
                        self._switch_off(observer, failure)
        finally:  # an interruption takes nothing that was found
            for finding in findings:
                self._report(finding)

    def _switch_off(self, observer: Observer, failure: Exception) -> None:
        self._notes.failed(f"{type(observer).__name__} failed and was switched off", failure)
        if observer in self._observers:
            self._observers.remove(observer)
            self._find_listening()
        try:
            observer.switch_off()
        except Exception as again:
            self._notes.failed(f"switching {type(observer).__name__} off failed", again)


_FIRST = 3  # looks of each kind: what is carried over shows in the second or third iteration
_FREE_SECONDS = 0.25
_FREE_SECONDS_FOR_NEW = 1.0  # a kind that was never looked at is worth more: a run has few of them
_SHARE = 0.01  # of the run's time
_MOST_KINDS = 10_000


class Schedule:
    """Counts calls by kind (the place and the shape of what is there), and the time that close
    looks take: the thread's own, so that a busy machine does not change what is found. A look
    turns Python's collector off, or the program's garbage would take that time.
    """

    def __init__(self) -> None:
        self._met: dict[Hashable, int] = {}
        self._started = time.perf_counter()
        self._entered = 0.0
        self._spent = 0.0

    def is_due(self, kind: Hashable) -> bool:
        """Count this call; True for the first few of a kind and then for every 2^k-th."""
        met = self._met.get(kind, 0) + 1
        if met == 1 and len(self._met) >= _MOST_KINDS:
            return False
        self._met[kind] = met
        if met > _FIRST and met & (met - 1):
            return False
        free = _FREE_SECONDS_FOR_NEW if met == 1 else _FREE_SECONDS
        return self._spent < free + _SHARE * (time.perf_counter() - self._started)

    def __enter__(self) -> None:
        self._entered = time.thread_time()

    def __exit__(self, *exception: object) -> None:
        self._spent += time.thread_time() - self._entered
