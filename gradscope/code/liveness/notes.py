"""Keeps a note for each read of a tracked name, with the most dangerous use of what was read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from types import CodeType
from typing import NamedTuple

from gradscope.code.liveness.values import Mark


class Phase(NamedTuple):
    """What has been crossed on the way to an instruction; phases are followed in order, the
    plainest first.

    ``level`` is 0 in the current iteration (and after its loops), else the number of the outermost
    loop around the starting point whose next iteration has begun, counted from the innermost.
    """

    on_exception: bool = False
    level: int = 0

    def plainer(self) -> Iterator[Phase]:
        """Yield this phase and those it includes, whose states need not be followed again."""
        for on_exception in {False, self.on_exception}:
            for level in range(self.level + 1):
                yield Phase(on_exception, level)


_START = Phase()


class Effect(IntEnum):
    """What follows from a read, most dangerous first.

    BACKWARD: a backward call starts from it, in the same expression. FEEDS: something is computed
    from it and kept. AUGMENTED: it is added to a running total. STORES: it gets another name, goes
    into a container or to a caller. HARMLESS: only its value or metadata is looked at.
    """

    BACKWARD = 4
    FEEDS = 3
    AUGMENTED = 2
    STORES = 1
    HARMLESS = 0


@dataclass(slots=True)
class Note:
    """One read of a tracked name; ``backward`` is the backward call that it can come to.

    ``before``: the read was complete at the start, its value still on the stack. ``maybe``: another
    element of the container may be taken.
    """

    name: str
    via: str
    code: CodeType
    index: int
    phase: Phase = _START
    distance: int = 0
    before: bool = False
    effect: Effect = Effect.HARMLESS
    backward: tuple[CodeType, int] | None = None
    maybe: bool = False


class Notes:
    """All reads noted for one question."""

    def __init__(self) -> None:
        self.all: list[Note] = []
        self._known: dict[tuple[str, str, int, int, bool], int] = {}

    def add(self, note: Note) -> int:
        """Return the number of this read, which keeps the phase and distance of its first time."""
        key = (note.name, note.via, id(note.code), note.index, note.before)
        number = self._known.setdefault(key, len(self.all))
        if number == len(self.all):
            self.all.append(note)
        return number

    def doubt(self, marks: Iterable[Mark]) -> None:
        """Note that another element than these may be taken."""
        for mark in marks:
            if mark.read >= 0:
                self.all[mark.read].maybe = True

    def use(self, mark: Mark, effect: Effect, backward: tuple[CodeType, int] | None = None) -> None:
        """Note what follows from what was read; the most dangerous effect counts."""
        if mark.read < 0:
            return
        note = self.all[mark.read]
        note.effect = max(note.effect, effect)
        note.backward = note.backward or backward
