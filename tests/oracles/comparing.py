"""Compares what a script printed plain and watched, apart from what differs between plain runs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.oracles.forks import Ran

SAME, CHANGED, NOT_REPEATABLE, TIMED_OUT = "same", "changed", "not repeatable", "timed out"
_NUMBER = re.compile(r"[+-]?(?:\d[\w.+-]*|nan|inf)$")
_PARTS = re.compile(r"\s+|[\w.+-]+|.")


@dataclass(frozen=True)
class Verdict:
    """Whether a watched run did the same; ``how`` shows what differs, if anything does."""

    kind: str
    how: str = ""


def compare(plain: Ran, watched: Ran, again: Callable[[bool], Ran]) -> Verdict:
    """Compare two runs; ``again`` runs the script once more, watched or not, if they differ."""
    if plain.status is None or watched.status is None:
        return Verdict(TIMED_OUT, "plain" if plain.status is None else "watched only")
    if _shown(plain) == _shown(watched):
        return Verdict(SAME)
    other = again(False)
    how = _difference(plain, other, watched)
    if how is None:
        return Verdict(NOT_REPEATABLE)
    if not how:
        return Verdict(SAME)
    if not _difference(plain, other, again(True)):
        return Verdict(NOT_REPEATABLE, "one of two watched runs differs")
    return Verdict(CHANGED, how)


def _shown(ran: Ran) -> tuple[str, str, str]:
    return f"{ran.status}\n", ran.stdout, ran.stderr


def _difference(plain: Ran, other: Ran, watched: Ran) -> str | None:
    """Say what differs where the plain runs agree; None if these differ in more than words."""
    hows = []
    for name, one, two, three in zip(
        ("exit status", "stdout", "stderr"),
        _shown(plain),
        _shown(other),
        _shown(watched),
        strict=True,
    ):
        how = differing(one, two, three)
        if how is None and name != "stderr":
            return None
        if how:
            hows.append(f"{name}:\n{how}")
    return "\n".join(hows)


def differing(one: str, other: str, watched: str) -> str | None:
    """Return a diff of ``one`` and ``watched``, apart from what differs between ``one`` and ``other``.

    A word that differs in a line is masked in all lines of its kind: two random numbers may agree.
    """
    if one == watched:
        return ""
    lines = [text.splitlines() for text in (one, other, watched)]
    if [_kind(line) for line in lines[0]] != [_kind(line) for line in lines[1]]:
        return None
    masked = {
        (_kind(a), place)
        for a, b in zip(lines[0], lines[1], strict=True)
        for place, (x, y) in enumerate(zip(_PARTS.findall(a), _PARTS.findall(b), strict=True))
        if x != y
    }
    plain, seen = ([_without(line, masked) for line in each] for each in (lines[0], lines[2]))
    return "\n".join([*difflib.unified_diff(plain, seen, "plain", "watched", "", "", 0, "")][:20])


def _kind(line: str) -> tuple[str, ...]:
    """Return a line with every number replaced."""
    return tuple(_NUMBER.sub("#", part) for part in _PARTS.findall(line))


def _without(line: str, masked: set[tuple[tuple[str, ...], int]]) -> str:
    kind = _kind(line)
    parts = enumerate(_PARTS.findall(line))
    return "".join("*" if (kind, place) in masked else part for place, part in parts)
