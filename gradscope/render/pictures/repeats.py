"""Finds stretches of a sequence that repeat themselves: loops and equal layers, with no help from modules."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

_LONGEST = 4096
_CANDIDATES = 12


@dataclass(frozen=True, slots=True)
class Run:
    """From ``start`` on, the same ``period`` tokens follow each other ``times`` times."""

    start: int
    period: int
    times: int

    @property
    def stop(self) -> int:
        """The place after the run."""
        return self.start + self.period * self.times


def find_runs(tokens: Sequence[Hashable], least: int = 3, saving: int = 8) -> list[Run]:
    """The longest runs from left to right of at least ``least`` repeats that leave out at least ``saving`` tokens.

    A period can only be the distance to another occurrence of the run's first token, so only the next few of those
    are tried; whole blocks are compared at a time, which keeps 200,000 tokens within a fraction of a second.
    """
    numbers: dict[Hashable, int] = {}
    values = [numbers.setdefault(token, len(numbers)) for token in tokens]
    following = [0] * len(values)
    last: dict[int, int] = {}
    for place in range(len(values) - 1, -1, -1):
        following[place] = last.get(values[place], 0)
        last[values[place]] = place
    runs = []
    place = 0
    while place < len(values):
        best = _best_run(values, following, place, least, saving)
        if best is None:
            place += 1
        else:
            runs.append(best)
            place = best.stop
    return runs


def _best_run(
    values: list[int], following: list[int], start: int, least: int, saving: int
) -> Run | None:
    best: Run | None = None
    other = start
    for _ in range(_CANDIDATES):
        other = following[other]
        period = other - start
        if period <= 0 or period > _LONGEST:
            break
        block = values[start:other]
        times = 1
        while values[start + times * period : start + (times + 1) * period] == block:
            times += 1
        if (
            times >= least
            and (times - 1) * period >= saving
            and (best is None or times * period > best.stop - best.start)
        ):
            best = Run(start, period, times)
            if best.stop == len(values):
                break
    return best
