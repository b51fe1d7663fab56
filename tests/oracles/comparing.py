"""Compares what a script printed plain and watched, apart from what differs between plain runs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.oracles.forks import Ran

SAME, CHANGED, NOT_REPEATABLE, TIMED_OUT = "same", "changed", "not repeatable", "timed out"
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
    """Return a diff of ``one`` and ``watched``, apart from words in which ``one`` and ``other`` differ."""
    if one == watched:
        return ""
    words = [_PARTS.findall(text) for text in (one, other, watched)]
    if len(words[0]) != len(words[1]):
        return None
    if len(words[0]) == len(words[2]) and all(
        a != b or a == c for a, b, c in zip(*words, strict=True)
    ):
        return ""
    lines = difflib.unified_diff(one.splitlines(), watched.splitlines(), "plain", "watched", n=0)
    return "\n".join(list(lines)[:20])
