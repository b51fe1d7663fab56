"""Formats numbers, paths and foreign text for people, and orders and groups what they read."""

from __future__ import annotations

import heapq
import linecache
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Any, TypeAlias, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_STEP = 1024  # of a binary unit
_STAND_INS = {"→": "->", **dict(zip("…•·—–×█●■○≠✗▲✂", "~*.--x#*+o!x!%", strict=True))}  # noqa: RUF001
"""Replacements for signs that an encoding lacks; all but the arrow are as wide."""


def escaped(text: str, encoding: str = "utf-8", keep: str = "") -> str:
    """Return text from outside as it can be shown: it moves no cursor, and hides and turns nothing.

    Every text that goes to a terminal passes here. ``keep`` are characters that are left alone.
    """
    if text.isprintable() and _can_encode(text, encoding):
        return text
    return "".join(char if char in keep else visible(char, encoding) for char in text)


def visible(char: str, encoding: str = "utf-8") -> str:
    """Return a character as it can be shown, those that do something instead as an escape.

    Those are control and format characters (as that which turns what follows it around, or has no
    width), line and paragraph separators, lone surrogates, and what Unicode leaves undefined.
    """
    is_shown = char.isprintable() or unicodedata.category(char) == "Zs"
    if is_shown and _can_encode(char, encoding):
        return char
    if is_shown and char in _STAND_INS:
        return _STAND_INS[char]
    return char.encode("unicode_escape").decode("ascii")


def _can_encode(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def nbytes(number: int) -> str:
    """Return bytes with a binary unit: ``12.5 KiB``, ``1,023 B``, ``3 GiB``."""
    size = float(number)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        # What would round up to a full next unit is shown in that unit: never "1024.0 KiB".
        if abs(round(size, 1)) < _STEP or unit == "TiB":
            break
        size /= _STEP
    return f"{size:,.1f}".removesuffix(".0") + f" {unit}"


_UNITS = (("s", 60), ("min", 60), ("h", 48), ("days", 1))
"""Of time, and how many of each are told before the next is."""


def duration(seconds: float) -> str:
    """Return how long something takes, in one unit: ``40 s``, ``5 h``, ``3 days``."""
    for unit, most in _UNITS:
        if round(seconds) < most or unit == "days":
            break
        seconds /= 24 if unit == "h" else 60
    return f"{max(1, round(seconds)):,} {unit}"


def rounded(number: float) -> str:
    """Return a number with two digits that count: ``2,100``."""
    return f"{int(float(f'{number:.1e}')):,}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun in the right number: ``1 node``, ``1,234 nodes``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def lines_told(numbers: Iterable[int]) -> str:
    """Return lines in a sentence: ``line 5``, ``lines 5, 7``."""
    apart = [str(number) for number in sorted(set(numbers))]
    return f"line{'s' * (len(apart) > 1)} {listed(apart, len(apart))}"


def listed(names: Iterable[str], most: int = 3) -> str:
    """Return names in a sentence, each once: ``TanhBackward0, AddmmBackward0 and 4 more``."""
    apart = list(dict.fromkeys(names))
    shown = ", ".join(apart[:most])
    return f"{shown} and {len(apart) - most:,} more" if len(apart) > most else shown


def lines_of(text: str) -> list[str]:
    """Return the lines of source as Python counts them: a form feed ends none."""
    return re.split(r"\r\n|\r|\n", text)


Sources: TypeAlias = Mapping[str, str] | None
"""The texts of the source files of a recording by their names, or None: as Python knows them."""


def source_lines(file: str, sources: Sources = None) -> list[str]:
    """Return the lines of a file as ``sources`` of a recording have them, which may come from
    elsewhere and name any file; without these, as Python knows it.
    """
    if sources is not None:
        return lines_of(sources.get(file, ""))
    try:
        return [line.rstrip("\r\n") for line in linecache.getlines(file)]
    except ValueError:  # no file can have such a name
        return []


def line_at(lines: Sequence[str], number: int) -> str:
    """Return a line by its number, from 1; empty where there is none."""
    return lines[number - 1] if 0 < number <= len(lines) else ""


def short_path(file: str) -> str:
    """Return a file's path, from the working directory on if it lies in it."""
    here = current_dir()
    return file.removeprefix(here + os.sep) if here else file


def current_dir() -> str:
    """Return the path of the working directory; nothing where it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def gathered(things: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group things by key, in order of first appearance."""
    found: dict[K, list[T]] = {}
    for thing in things:
        found.setdefault(key(thing), []).append(thing)
    return found


def firsts(things: Iterable[T], key: Callable[[T], K]) -> dict[K, T]:
    """Return the first thing of each key, in order of first appearance."""
    return {each: found[0] for each, found in gathered(things, key).items()}


@dataclass(slots=True)
class _Ready:
    """A node in a queue: of two with the same rank neither goes before the other."""

    i: int
    rank: Any

    def __lt__(self, other: _Ready) -> bool:
        return bool(self.rank < other.rank)


def followers_last(
    targets: Sequence[Iterable[int]],
    rank: Callable[[int], Any],
    runs: Callable[[int], bool] = lambda i: True,
) -> list[int]:
    """Return the numbers of the nodes that run, each after all whose edges lead to it; of those
    that may come next that of the lowest rank. Which of equal ones that is is up to the queue:
    ``heapq`` does step by step what ``std::priority_queue`` of libstdc++ does.
    """
    waiting = Counter(chain.from_iterable(targets))
    ready: list[_Ready] = []
    order: list[int] = []
    free = [i for i in range(len(targets)) if not waiting[i]]
    while free or ready:
        for i in filter(runs, free):
            heapq.heappush(ready, _Ready(i, rank(i)))
        free = []
        if ready:
            order.append(heapq.heappop(ready).i)
            for target in targets[order[-1]]:
                waiting[target] -= 1
                free += [target] if not waiting[target] else []
    return order


def reached(starts: Iterable[K], following: Callable[[K], Iterable[K]]) -> Iterator[K]:
    """Yield some things and all that they lead to, each once, the nearest first."""
    seen, waiting = set[K](), [*starts]
    for each in waiting:
        if each not in seen:
            seen.add(each)
            yield each
            waiting += following(each)


def common_length(paths: Iterable[Sequence[Hashable]]) -> int:
    """Return how many of their first entries all the paths have in common."""
    same = takewhile(lambda entries: len(set(entries)) == 1, zip(*paths, strict=False))
    return sum(1 for _ in same)


def common_module(names: Iterable[str]) -> str:
    """Return the module that all the named ones are, or are inside; empty where there is none."""
    paths = [name.split(".") for name in names]
    return ".".join(paths[0][: common_length(paths)])
