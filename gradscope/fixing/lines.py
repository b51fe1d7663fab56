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
    units: dict[Line, frozenset[Line]] = {}
    for change in changes:
        mine = {line for line in before if line[0] == change.file}
        lines = [line for line in after if line[0] == change.file]
        kept = {line: _kept(line, mine, change) for line in lines}
        gone = mine - {old for old in kept.values() if old is not None}
        for line in lines:
            old = kept[line]
            units[line] = frozenset({old}) if old is not None else _made_of(line, gone, change)
    return units


def _kept(line: Line, before: Collection[Line], change: Change) -> Line | None:
    """Return the line of a call that has its text unchanged, wherever it stands now."""
    text = _text(change.after.lines, line[1])
    origin = change.file, change.old_line(line[1])
    same = [old for old in before if _text(change.before.lines, old[1]) == text]
    return origin if origin in same else min(same, default=None)


def _made_of(line: Line, gone: Collection[Line], change: Change) -> frozenset[Line]:
    """Return the calls that a new text replaces: that of its line, and those whose loss it has."""
    text = _text(change.after.lines, line[1])
    origin = change.file, change.old_line(line[1])
    found = {origin} & set(gone)
    for old in gone:
        root = _ROOT.search(_text(change.before.lines, old[1]))
        if root is not None and re.search(rf"(?<![\w.]){re.escape(root[1])}(?![\w])", text):
            found.add(old)
    return frozenset(found or {origin})


def _text(lines: Sequence[str], number: int) -> str:
    return bare(lines[number - 1]).strip() if 0 < number <= len(lines) else ""
