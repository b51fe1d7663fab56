"""Puts edits together that change the same lines, word by word."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from gradscope.code import source
from gradscope.fixing.edits import CannotBeWrittenError
from gradscope.model import Edit

_WORD = re.compile(r"\w+|\s|[^\w\s]")

_Hunk = tuple[int, int, tuple[str, ...]]
"""Words from and up to a place, and those that replace them."""


def merged(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """Return the edits, with one for all that change the same lines."""
    done: list[Edit] = []
    cluster: list[Edit] = []
    for edit in sorted(edits, key=lambda each: (each.file, each.line)):
        is_near = bool(cluster) and edit.line <= max(each.last for each in cluster)
        if is_near and cluster[0].file == edit.file:
            cluster.append(edit)
        else:
            done += _one(cluster)
            cluster = [edit]
    return (*done, *_one(cluster))


def _one(cluster: Sequence[Edit]) -> Sequence[Edit]:
    """Return one edit for several of the same lines."""
    if len(cluster) < 2:
        return cluster
    first, last = cluster[0].line, max(edit.last for edit in cluster)
    lines = [line.rstrip("\n") for line in source.parsed(cluster[0].file).lines]
    base = lines[first - 1 : last]
    words = _WORD.findall("\n".join(base))
    hunks: list[_Hunk] = []
    for edit in cluster:
        if not edit.replacement:
            raise CannotBeWrittenError  # what one takes out the other changes
        new = [*lines[first - 1 : edit.line - 1], edit.replacement, *lines[edit.last : last]]
        for hunk in _hunks(words, _WORD.findall("\n".join(new))):
            if hunk not in hunks:
                hunks.append(hunk)
    text = _applied(words, sorted(hunks, key=lambda each: each[:2]))
    return [Edit(cluster[0].file, first, text, last if last > first else 0)]


def _hunks(old: list[str], new: list[str]) -> Iterable[_Hunk]:
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for what, i, end, j, last in matcher.get_opcodes():
        if what != "equal":
            yield i, end, tuple(new[j:last])


def _applied(words: list[str], hunks: Sequence[_Hunk]) -> str:
    """Return the words with all hunks applied; two may insert whole lines at one place."""
    made: list[str] = []
    at = 0
    before: _Hunk | None = None
    for hunk in hunks:
        start, end, new = hunk
        if start < at or (before is not None and not _fits(before, hunk)):
            raise CannotBeWrittenError
        made += [*words[at:start], *new]
        at, before = end, hunk
    return "".join([*made, *words[at:]])


def _fits(before: _Hunk, hunk: _Hunk) -> bool:
    """Return whether a hunk may follow another: not at the same place, unless both are lines."""
    if hunk[0] != before[1] or before[0] != before[1] or hunk[0] != hunk[1]:
        return True
    return before[2][:1] == hunk[2][:1] == ("\n",)
