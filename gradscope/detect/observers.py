"""What looks on at backward calls and optimizer steps and says what it foresees; the list of all who do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from gradscope.collect.calls import Call
from gradscope.model import BackwardCall, Finding
from gradscope.program.sites import Place

if TYPE_CHECKING:
    from gradscope.collect.backward import Backward
    from gradscope.collect.look import Look
    from gradscope.collect.shapes import Repeat


class Observer:
    """Does nothing at every point; an observer overrides those that it needs.

    It may read live objects while it is called and must keep none: no node, tensor or frame.
    """

    def __init__(self, watch: Backward) -> None:
        self.watch = watch

    def before_call(
        self, call: Call, look: Look, record: BackwardCall, frame: FrameType | None
    ) -> Iterable[Finding]:
        """A backward call is about to run: ``look`` has its nodes, ``frame`` is the user's frame that makes the call."""
        return ()

    def before_repeat(self, call: Call, repeat: Repeat) -> Iterable[Finding]:
        """As before_call, for a graph that was recognized as the like of earlier ones while the hooks are lifted."""
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
        """The code of a program that gradscope runs has come to its end; its variables are still there."""
        return ()

    def at_line(self, frame: FrameType) -> Iterable[Finding]:
        """A line of the user's code is about to run; told only where that matters to somebody."""
        return ()

    def at_end(self) -> Iterable[Finding]:
        """The watch ends."""
        return ()


class Observers:
    """Asks every observer in turn, and sends what they find on; a failure of one is noted and ends that one only."""

    def __init__(
        self,
        observers: list[Observer],
        report: Callable[[Finding], None],
        note: Callable[[str], None],
    ) -> None:
        self._observers = observers
        self._report = report
        self._note = note

    def ask(self, point: str, *args: Any) -> None:
        """Call the method named ``point`` of every observer."""
        for observer in tuple(self._observers):
            try:
                findings = tuple(getattr(observer, point)(*args))
            except Exception as error:  # what foresees must never break what it looks at
                self._observers.remove(observer)
                self._note(
                    f"{type(observer).__name__} failed and was switched off ({type(error).__name__}: {error}); please report this"
                )
                continue
            for finding in findings:
                self._report(finding)
