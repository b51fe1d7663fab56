"""Says at which calls a close look is due, so that looks take a small share of the run's time."""

from __future__ import annotations

import time
from collections.abc import Hashable

_FIRST = 3  # looks of each kind: what is carried over shows in the second or third iteration
_FREE_SECONDS = 0.25
_FREE_SECONDS_FOR_NEW = 1.0  # a kind that was never looked at is worth more: a run has few of them
_SHARE = 0.01  # of the run's time
_MOST_KINDS = 10_000


class Schedule:
    """Counts calls by kind (the place and the shape of what is there), and the time that close
    looks take: the thread's own, so that a busy machine does not change what is found. A look
    turns Python's collector off, or the program's garbage would take that time.
    """

    def __init__(self) -> None:
        self._met: dict[Hashable, int] = {}
        self._started = time.perf_counter()
        self._entered = 0.0
        self._spent = 0.0

    def is_due(self, kind: Hashable) -> bool:
        """Count this call; True for the first few of a kind and then for every 2^k-th."""
        met = self._met.get(kind, 0) + 1
        if met == 1 and len(self._met) >= _MOST_KINDS:
            return False
        self._met[kind] = met
        if met > _FIRST and met & (met - 1):
            return False
        return self.has_time(_FREE_SECONDS_FOR_NEW if met == 1 else _FREE_SECONDS)

    def has_time(self, free: float = _FREE_SECONDS) -> bool:
        """Return whether looks have taken no more than their share, beside what is free."""
        return self._spent < free + _SHARE * (time.perf_counter() - self._started)

    def __enter__(self) -> None:
        self._entered = time.thread_time()

    def __exit__(self, *exception: object) -> None:
        self._spent += time.thread_time() - self._entered
