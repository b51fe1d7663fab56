"""Observers of a running program, which announce findings, and the one place that calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FrameType, ModuleType
from typing import Any

from gradscope.collect.calls import Call
from gradscope.collect.listener import Listener
from gradscope.collect.look import Look
from gradscope.collect.marks import Packed
from gradscope.collect.notes import Notes, raised_by_program
from gradscope.collect.shapes import Repeat
from gradscope.collect.state import State
from gradscope.model import BackwardCall, Finding
from gradscope.program.sites import Place
from gradscope.program.undisturbed import unprofiled
from gradscope.torch_private import DisableTorchFunction


class Observer:
    """Does nothing at every point; an observer overrides those that it needs.

    It may read live objects while it is called and must keep none: no node, tensor or frame.
    """

    def __init__(self, watch: State) -> None:
        self.watch = watch

    def switch_off(self) -> None:
        """Undo what continues by itself: this observer has failed and is not called any more."""

    # points at which findings are announced

    def before_call(
        self, call: Call, look: Look, record: BackwardCall, frame: FrameType | None
    ) -> Iterable[Finding]:
        """A backward call is about to run on the nodes of ``look``; ``frame`` makes the call."""
        return ()

    def before_repeat(self, call: Call, repeat: Repeat) -> Iterable[Finding]:
        """A backward call is about to run on a recognized graph, while the hooks are lifted."""
        return ()

    def after_repeat(self, call: Call, repeat: Repeat) -> Iterable[Finding]:
        """A backward call on a recognized graph has ended without an error."""
        return ()

    def after_call(
        self, call: Call, record: BackwardCall, frame: FrameType | None
    ) -> Iterable[Finding]:
        """A backward call has ended."""
        return ()

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

    # events in the midst of the program, at which observers only take note

    def saved(self, packed: Packed) -> None:
        """A tensor was saved, while graphs are looked at in detail."""

    def grown(self, frame: FrameType) -> None:
        """The ledger counts as many saved tensors as it was asked to look out for."""

    def dropped(self, packed: Packed, nbytes: int) -> None:
        """A saved tensor was destroyed with its graph, outside of any backward call."""

    def outgrown(self) -> None:
        """More nodes are alive after a recognized call than after an earlier one of its shape."""

    def changed(self, packs: list[Packed], place: Place) -> None:
        """The code at ``place`` has changed these saved tensors in place."""

    def changed_unseen(self, packs: list[Packed], place: Place) -> None:
        """The same through ``.data``, which moves no version counter."""


_POINTS = tuple(
    name for name in vars(Observer) if not name.startswith("_") and name != "switch_off"
)


class Observers(Listener):
    """Calls every observer in turn and announces what they find.

    An observer that fails is switched off and noted once; the others and the program continue.
    """

    def __init__(self, report: Callable[[Finding], None], notes: Notes) -> None:
        self._report = report
        self._notes = notes
        self._observers: list[Observer] = []
        self._listening: dict[str, tuple[tuple[Observer, Any], ...]] = dict.fromkeys(_POINTS, ())
        """By point, with the method to call: most come often and few observers listen there."""

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

    def before_call(
        self, call: Call, look: Look, record: BackwardCall, frame: FrameType | None
    ) -> None:
        """Call every observer before a backward call."""
        self._call("before_call", call, look, record, frame)

    def before_repeat(self, call: Call, repeat: Repeat) -> None:
        """Call every observer before a backward call on a recognized graph."""
        self._call("before_repeat", call, repeat)

    def after_repeat(self, call: Call, repeat: Repeat) -> None:
        """Call every observer after a backward call on a recognized graph."""
        self._call("after_repeat", call, repeat)

    def after_call(self, call: Call, record: BackwardCall, frame: FrameType | None) -> None:
        """Call every observer after a backward call."""
        self._call("after_call", call, record, frame)

    def after_step(self, optimizer: Any, place: Place | None, frame: FrameType | None) -> None:
        """Call every observer after an optimizer's step."""
        unprofiled(self._call)("after_step", optimizer, place, frame)

    def after_program(self, main: ModuleType) -> None:
        """Call every observer when the program's code has ended."""
        unprofiled(self._call)("after_program", main)

    def at_line(self, frame: FrameType) -> None:
        """Call every observer before a line of the user's code runs."""
        unprofiled(self._call)("at_line", frame)

    def at_end(self) -> None:
        """Call every observer when the watch ends."""
        unprofiled(self._call)("at_end")

    def saved(self, packed: Packed) -> None:
        """Call those who take note of saved tensors."""
        self._call("saved", packed)

    def grown(self, frame: FrameType) -> None:
        """Call every observer when the ledger has grown."""
        unprofiled(self._call)("grown", frame)

    def dropped(self, packed: Packed, nbytes: int) -> None:
        """Call every observer when a saved tensor was dropped."""
        self._call("dropped", packed, nbytes)

    def outgrown(self) -> None:
        """Call every observer when more nodes stay alive than before."""
        self._call("outgrown")

    def changed(self, packs: list[Packed], place: Place) -> None:
        """Call every observer when saved tensors were changed in place."""
        self._call("changed", packs, place)

    def changed_unseen(self, packs: list[Packed], place: Place) -> None:
        """Call every observer when saved tensors were changed through ``.data``."""
        self._call("changed_unseen", packs, place)
