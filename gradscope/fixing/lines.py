"""Finds for a line of a changed program the lines of the unchanged one that it stands for."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from gradscope.fixing.gradients import Line
from gradscope.fixing.patch import Change, bare

_ROOT = re.compile(r"([\w.\[\]'\"]+)\s*\.\s*backward\s*\(")


def units_of(
    after: Collection[Line], before: Collection[Line], changes: Sequence[Change]
) -> Mapping[Line, frozenset[Line]]:
    """Return for each line of a backward call in the changed program its lines in the unchanged
    one: that from which it comes, the same text where it was moved, all losses of a sum.
    """
    program = _Program(changes)
    kept = {line: program.kept(line, before) for line in after}
    gone = set(before) - {old for old in kept.values() if old is not None}
    return {
        line: frozenset({old}) if old is not None else program.made_of(line, gone)
        for line, old in kept.items()
    }


class _Program:
    """A program before and after its changes."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self._changes = {change.file: change for change in changes}

    def kept(self, line: Line, before: Collection[Line]) -> Line | None:
        """Return the line of a call whose text, and that of its callers, is the same."""
        texts = self._texts(line, new=True)
        same = [old for old in before if self._texts(old, new=False) == texts]
        origin = self._origin(line)
        return origin if origin in same else min(same, default=None)

    def made_of(self, line: Line, gone: Collection[Line]) -> frozenset[Line]:
        """Return the calls that a new text replaces: that of its line, and those whose loss it
        has.
        """
        origin = self._origin(line)
        found = {origin} & set(gone)
        text = self._text(line.file, line.number, new=True)
        for old in (old for old in gone if old.file == line.file):
            root = _ROOT.search(self._text(old.file, old.number, new=False))
            if root is not None and re.search(rf"(?<![\w.]){re.escape(root[1])}(?![\w])", text):
                found.add(old)
        return frozenset(found or {origin})

    def _origin(self, line: Line) -> Line:
        via = tuple((file, self._old(file, number)) for file, number in line.via)
        return Line(line.file, self._old(line.file, line.number), via)

    def _old(self, file: str, number: int) -> int:
        change = self._changes.get(file)
        return number if change is None else change.old_line(number)

    def _texts(self, line: Line, *, new: bool) -> list[tuple[str, str]]:
        places = ((line.file, line.number), *line.via)
        return [(file, self._text(file, number, new=new)) for file, number in places]

    def _text(self, file: str, number: int, *, new: bool) -> str:
        """Return the text of a line; its number where the file is not changed."""
        change = self._changes.get(file)
        if change is None:
            return str(number)
        lines = (change.after if new else change.before).lines
        return bare(lines[number - 1]).strip() if 0 < number <= len(lines) else ""
