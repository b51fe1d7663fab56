"""What an edit must be: it can be written, and every file still parses with it."""

from __future__ import annotations

import difflib
import functools
import re
import symtable
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec

from gradscope.code import source
from gradscope.fixing.patch import Source, apply
from gradscope.model import Edit

P = ParamSpec("P")
_WORD = re.compile(r"\w+|\s|[^\w\s]")
_Hunk = tuple[int, int, tuple[str, ...]]
"""Words from and up to a place, and those that replace them."""


class CannotBeWrittenError(Exception):
    """The edit cannot be written down, or would be wrong."""


def checked(*edits: Edit) -> tuple[Edit, ...]:
    """Return the edits if each file can be parsed with all of them; none otherwise."""
    for file in {edit.file for edit in edits}:
        own = [edit for edit in edits if edit.file == file]
        lines = [line for edit in own for line in edit.lines]
        before = Source(file, tuple(source.parsed(file).lines))
        if len(set(lines)) < len(lines) or max(lines) > len(before.lines):
            return ()
        after = apply(before, own).after
        try:
            with source.quietly():
                symtable.symtable("".join(after.lines), file, "exec")
        except (SyntaxError, ValueError):
            return ()
    return edits


_UNWRITABLE = (
    *(CannotBeWrittenError, SyntaxError, ValueError, LookupError, TypeError, AttributeError),
    *(AssertionError, RecursionError, NotImplementedError, StopIteration, OSError),
)


def written(write: Callable[P, tuple[Edit, ...]]) -> Callable[P, tuple[Edit, ...]]:
    """Return the function with nothing for what cannot be written.

    It runs in the user's program, and a finding without an edit is one all the same.
    """

    @functools.wraps(write)
    def edits(*args: P.args, **kwargs: P.kwargs) -> tuple[Edit, ...]:
        try:
            return write(*args, **kwargs)
        except _UNWRITABLE:
            return ()
        except Exception as error:
            # Not what a signal's handler of the program may have raised meanwhile.
            if not type(error).__module__.startswith("libcst"):
                raise
            return ()

    return edits


@written
def joined(*parts: tuple[Edit, ...]) -> tuple[Edit, ...]:
    """Return all edits as one change; none if a part is empty or two contradict each other."""
    return checked(*merged(edit for part in parts for edit in part)) if all(parts) else ()


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
