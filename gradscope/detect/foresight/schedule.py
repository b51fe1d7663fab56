"""Says at which calls a close look is due: looks take a small share of the run's time, and more of
them come where a condition on a number that moves steadily will turn.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass
from math import ceil, inf

from gradscope.program.ahead.ways import Compared, Conditions
from gradscope.program.sites import Place

_FIRST = 3  # looks of each kind: what is carried over shows in the second or third iteration
_FREE_LOOKS = 24  # whatever they take, as no clock is to change what is found
_FREE_STEPS = 120_000  # of reading, in all these looks: some read as much as many others together
_FREE_LOOKS_FOR_NEW = 80  # a kind that was never looked at is worth more: a run has few of them
_SHARE = 0.01  # of the run's time
_MOST_KINDS = 10_000  # of calls, and of conditions


class Schedule:
    """Counts calls by kind (the place and the shape of what is there), and close looks and the time
    that they take: the thread's own. A look turns Python's collector off, or the program's garbage
    would take that time.
    """

    def __init__(self) -> None:
        self._met: dict[Hashable, int] = {}
        self._started = time.perf_counter()
        self._entered = 0.0
        self._spent = 0.0
        self._looks = self._read = 0

    def is_due(self, kind: Hashable) -> bool:
        """Count this call; True for the first few of a kind and then for every 2^k-th."""
        met = self._met.get(kind, 0) + 1
        if met == 1 and len(self._met) >= _MOST_KINDS:
            return False
        self._met[kind] = met
        comes = met <= _FIRST or not met & (met - 1)
        return comes and self.has_time(_FREE_LOOKS_FOR_NEW if met == 1 else _FREE_LOOKS)

    def has_time(self, free: int = _FREE_LOOKS) -> bool:
        """Return whether a look is free, as not many have read not much yet, or looks have taken
        less than their share.
        """
        share = _SHARE * (time.perf_counter() - self._started)
        is_free = self._looks < free and self._read < _FREE_STEPS
        return is_free or self._spent < share

    def read(self, steps: int) -> None:
        """Count so many steps that a look has read ahead."""
        self._read += steps

    def __enter__(self) -> None:
        self._entered = time.thread_time()

    def __exit__(self, *exception: object) -> None:
        self._spent += time.thread_time() - self._entered
        self._looks += 1


_AHEAD = 3  # moves of the number: the graphs of the one before are then built under hooks
_FARTHEST = 10_000_000  # calls
_ENOUGH = 6  # turns of a condition, there and back: the next ones lead to nothing else
_SETTLED = 64  # calls: a number that has not moved by then stays what it is


@dataclass(slots=True)
class _Moving:
    """A number that is compared: the call and what it was at first, at last, and its least move."""

    since: int
    first: float
    last: float
    held: bool
    least: float = inf
    turned: int = 0

    def turns_at(self, call: int, now: Compared) -> range | None:
        """Return the numbers of the calls about which the condition will turn, if the number moves
        on at this pace.
        """
        step, has_turned = now.number - self.last, now.holds != self.held
        if step * (self.last - self.first) < 0:  # it begins anew
            self.since, self.first = call, now.number
        self.least = min(self.least, abs(step) or inf)
        self.last, self.held = now.number, now.holds
        self.turned += has_turned
        moved = abs(now.number - self.first)
        if self.turned >= _ENOUGH or moved == inf:
            return None
        if not moved:
            return range(2 * call, 3 * call) if call < _SETTLED else None
        pace = (call - self.since) / moved
        away = (now.rise if now.number > self.first else now.fall) * pace
        between = pace * self.least  # two moves
        if not between < _FARTHEST:  # the program may compare any numbers
            return None
        around = ceil(_AHEAD * max(between, 1))
        if has_turned:  # what it leads to may come a little later
            return range(call + 1, call + 1 + around)
        if not away < _FARTHEST:
            return None
        # The calls between two moves are told apart only by how many moves were seen.
        soonest = call + int(away * (moved / (moved + self.least))) - around
        return range(max(soonest, call + 1), call + ceil(away) + around + 1)


class Turning:
    """Follows the numbers that were compared ahead, from one reading of a call to the next."""

    def __init__(self) -> None:
        self._moving: dict[tuple[Place | None, tuple[int, int]], _Moving] = {}

    def next_turn(self, place: Place | None, call: int, conditions: Conditions) -> range:
        """Return the numbers of the calls about which the first of these conditions will turn."""
        turns = []
        for key, now in conditions.items():
            if (place, key) in self._moving or len(self._moving) < _MOST_KINDS:
                new = _Moving(call, now.number, now.number, now.holds)
                turns.append(self._moving.setdefault((place, key), new).turns_at(call, now))
        return min(filter(None, turns), key=lambda turn: turn.start, default=range(0))
