"""Defines the observers of a running program, which report findings, and calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import FrameType, ModuleType
from typing import Any, Concatenate, ParamSpec, TypeAlias

from gradscope.collect.calls import Call, Guarded
from gradscope.collect.inspection import Inspection
from gradscope.collect.marks import Packed
from gradscope.collect.notes import Notes, raised_by_program
from gradscope.model import Finding
from gradscope.program.sites import Place
from gradscope.program.undisturbed import unprofiled
from gradscope.torch_private import DisableTorchFunction

P = ParamSpec("P")

# Guarded calls that may wait to be reported together: to report them costs some 0.2 ms, which so
# many share. Higher: the numbers of more nodes are kept until then.
MOST_UNTOLD = 256

Announced: TypeAlias = Iterable[Finding] | None
"""What an observer has found at some point of the program."""


class Observer:
    """Does nothing at every point; an observer overrides those that it needs.

    It may read live objects while it is called and must keep none: no node, tensor or frame.
    """

    def switch_off(self) -> None:
        """Undo what continues by itself: this observer has failed and is not called any more."""

    # points at which findings are announced

    def before_call(self, call: Call, look: Inspection, frame: FrameType | None) -> Announced:
        """A backward call is about to run on the nodes of ``look``; ``frame`` makes the call."""

    def guarded(self, calls: Sequence[Guarded], frame: FrameType | None) -> Announced:
        """Guarded calls have ended; ``frame`` has made the last of them, if it has ended just
        now.
        """

    def patience(self, place: Place | None) -> int:
        """Return how many guarded calls at a place may end from now on before it is told of
        them.
        """
        return MOST_UNTOLD

    def after_call(self, call: Call, frame: FrameType | None) -> Announced:
        """A backward call has ended that was looked at, or that has failed."""

    def after_step(self, optimizer: Any, place: Place | None, frame: FrameType | None) -> Announced:
        """An optimizer has stepped."""

    def after_program(self, main: ModuleType) -> Announced:
        """The code of a program that gradscope runs has ended; its variables are still there."""

    def at_line(self, frame: FrameType) -> Announced:
        """A line of the user's code is about to run; called only where an observer waits for it."""

    def recomputed(self, difference: Any) -> Announced:
        """A checkpoint runs again and saves something else: torch is about to say so."""

    def at_end(self) -> Announced:
        """The watch ends."""

    def begin_anew(self) -> None:
        """A watch begins within another: what was announced before is announced to it as well."""

    # events in the midst of the program, at which observers only take note

    def saved(self, packed: Packed) -> None:
        """A tensor was saved, while graphs are looked at in detail."""

    def grown(self, frame: FrameType) -> None:
        """The number of saved tensors exceeded the ledger's threshold."""

    def dropped(self, packed: Packed, nbytes: int) -> None:
        """A saved tensor was destroyed with its graph, outside of any backward call."""

    def outgrown(self) -> None:
        """More nodes are alive after a guarded call than after earlier ones of its kind."""

    def changed(self, packs: list[Packed], place: Place, hidden: bool) -> None:
        """The code at ``place`` has changed these saved tensors in place; ``hidden``: through
        ``.data``, which moves no version counter.
        """


_BETWEEN = (Observer.after_step, Observer.after_program, Observer.at_line, Observer.at_end)
_UNPROFILED = frozenset((*_BETWEEN, Observer.grown, Observer.recomputed))
"""Points at which nothing of ours around the call has suspended the program's profiler."""


Report: TypeAlias = Callable[[Finding], None]
Listeners: TypeAlias = list[tuple[Observer, Callable[..., Any], Report]]


class Observers:
    """Notifies every observer in turn of what happens, and reports what they find.

    An observer that fails is switched off and noted once; the others and the program continue.
    """

    def __init__(self, report: Report, notes: Notes) -> None:
        self._report = report
        self._notes = notes
        self._observers: dict[Observer, Report] = {}
        self._listening: dict[object, Listeners] = {}
        """By point, with the method to call: most come often and few observers listen there."""

    def add(self, *observers: Observer, report: Report | None = None) -> None:
        """Call these observers from now on; only the one who asks for a ``report`` gets theirs."""
        self._observers |= dict.fromkeys(observers, report or self._report)
        self._listening = {
            point: [
                (observer, getattr(observer, name), theirs)
                for observer, theirs in self._observers.items()
                if getattr(type(observer), name) is not point
            ]
            for name, point in vars(Observer).items()
            if callable(point)
        }

    def tell(
        self, point: Callable[Concatenate[Any, P], Announced], *event: P.args, **_: P.kwargs
    ) -> None:
        """Call the observers that listen at a point, a method of ``Observer``, with an event.

        The events come from inside the program's forward pass, its backward calls and destructors
        of its tensors, so no exception of ours gets out.
        """
        listening = self._listening.get(point)
        if listening:
            call = unprofiled(self._call) if point in _UNPROFILED else self._call
            call(listening, event)

    def patience(self, place: Place | None) -> int:
        """Return how many guarded calls at a place may end from now on before they are told of."""
        asked = self._listening.get(Observer.patience, ())
        return min((patience(place) for _, patience, _ in asked), default=MOST_UNTOLD)

    def end(self, *observers: Observer) -> None:
        """Tell these observers alone that their watch ends, and call them no more."""
        listening = self._listening[Observer.at_end]
        unprofiled(self._call)([each for each in listening if each[0] in observers], ())
        for observer in observers:
            self._observers.pop(observer, None)  # as it may have failed
        self.add()

    def _call(self, listeners: Listeners, event: tuple[Any, ...]) -> None:
        findings: list[tuple[Report, Finding]] = []
        try:
            with DisableTorchFunction():  # nor may a subclass of the program's see what we do
                for observer, listen, report in listeners:
                    try:
                        found = listen(*event)
                        if found:
                            findings += [(report, finding) for finding in tuple(found)]
                    except RecursionError:  # the program is about to meet it
                        continue
                    except Exception as failure:  # what looks on must never break what it looks at
                        if raised_by_program(failure):
                            raise
                        self._switch_off(observer, failure)
        finally:  # an interruption takes nothing that was found
            for report, finding in findings:
                report(finding)

    def _switch_off(self, observer: Observer, failure: Exception) -> None:
        name = type(observer).__name__
        self._notes.failed(f"{name} failed and was switched off", failure)
        self._observers.pop(observer, None)
        self.add()
        self._notes.attempt(f"switching {name} off failed", observer.switch_off, None)
