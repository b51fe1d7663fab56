"""Keeps a note for each read of a tracked name, with the most dangerous use of what was read."""

from __future__ import annotations

from collections.abc import Iterator
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


class Use(IntEnum):
    """What was done with a value that was read, least dangerous first."""

    NOTHING = 0
    STORED = 1
    SUMMED = 2
    BUILT_ON = 3
    BACKWARD = 4


class Note:
    """One read of one tracked name; ``backward`` is the backward call that it, or what was built on
    it, comes to.

    ``before`` marks a read that was complete when the question was asked, its value still on the
    stack.
    """

    __slots__ = ("backward", "before", "code", "distance", "index", "name", "phase", "use", "via")

    def __init__(
        self, name: str, via: str, code: CodeType, index: int, phase: Phase, distance: int
    ) -> None:
        self.name = name
        self.via = via
        self.code = code
        self.index = index
        self.phase = phase
        self.distance = distance
        self.before = False
        self.use = Use.NOTHING
        self.backward: tuple[CodeType, int] | None = None


class Notes:
    """All reads noted for one question."""

    def __init__(self) -> None:
        self.all: list[Note] = []
        self._known: dict[tuple[str, str, int, int, bool], int] = {}

    def read(
        self, name: str, via: str, code: CodeType, index: int, phase: Phase, distance: int
    ) -> int:
        """Return the number of this read, with the phase and distance of its first time."""
        return self._number(Note(name, via, code, index, phase, distance))

    def read_before(self, name: str, via: str, code: CodeType, index: int) -> int:
        """Return the number of a read whose value is on the stack at the start."""
        note = Note(name, via, code, index, Phase(), 0)
        note.before = True
        return self._number(note)

    def _number(self, note: Note) -> int:
        key = (note.name, note.via, id(note.code), note.index, note.before)
        number = self._known.setdefault(key, len(self.all))
        if number == len(self.all):
            self.all.append(note)
        return number

    def use(self, mark: Mark, use: Use, backward: tuple[CodeType, int] | None = None) -> None:
        """Note what is done with what was read; the most dangerous use counts."""
        if mark.read < 0:
            return
        note = self.all[mark.read]
        note.use = max(note.use, use)
        note.backward = note.backward or backward
