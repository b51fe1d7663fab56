"""Finds what repeats itself: the calls of a loop, the nodes of alike layers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

_LONGEST = 4096
_CANDIDATES = 12


@dataclass(frozen=True, slots=True)
class Repeat:
    """From ``start`` on, the same ``period`` tokens follow each other ``times`` times."""

    start: int
    period: int
    times: int

    @property
    def stop(self) -> int:
        """The place after the repeat."""
        return self.start + self.period * self.times


def find_repeats(tokens: Sequence[Hashable], least: int = 3, saving: int = 8) -> list[Repeat]:
    """Return the longest repeats, left to right, of ``least`` times that save ``saving`` tokens.

    A period can only be the distance to another occurrence of the first token, so only the
    next few of those are tried; whole blocks are compared at a time, which keeps 200,000 tokens
    within a fraction of a second.
    """
    numbers: dict[Hashable, int] = {}
    values = [numbers.setdefault(token, len(numbers)) for token in tokens]
    following = [0] * len(values)
    last: dict[int, int] = {}
    for place in range(len(values) - 1, -1, -1):
        following[place] = last.get(values[place], 0)
        last[values[place]] = place
    repeats = []
    place = 0
    while place < len(values):
        found = [
            repeat
            for repeat in _repeats_at(values, following, place)
            if repeat.times >= least and (repeat.times - 1) * repeat.period >= saving
        ]
        best = max(found, key=lambda repeat: repeat.stop, default=Repeat(place, 1, 1))
        if found:
            repeats.append(best)
        place = best.stop
    return repeats


def _repeats_at(values: list[int], following: list[int], start: int) -> Iterator[Repeat]:
    """Yield the repeat of each period that the next occurrences of the first token allow."""
    other = start
    for _ in range(_CANDIDATES):
        other = following[other]
        period = other - start
        if not 0 < period <= _LONGEST:
            return
        block = values[start:other]
        times = 1
        while values[start + times * period : start + (times + 1) * period] == block:
            times += 1
        yield Repeat(start, period, times)
        if start + period * times == len(values):
            return
