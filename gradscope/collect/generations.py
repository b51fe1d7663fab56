"""When backward calls ended, in sequence numbers: that tells for every node between which calls it
was built.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

from gradscope.collect.thread_numbers import this_thread
from gradscope.program.sites import Place
from gradscope.torch_private import next_sequence_nr

_MOST = 100_000  # calls; of the older half of more every second one is forgotten

Boundary = tuple[int, Place | None]
"""The sequence number at which a backward call ended, and the call's place."""


class Generations:
    """The backward calls of the thread that began the watch; torch numbers the nodes of each thread
    apart.
    """

    def __init__(self) -> None:
        self.thread = this_thread.number
        self.newest = next_sequence_nr()
        """The sequence number at which the last call ended, or the watch began: every node with a
        smaller one was built before that.
        """
        self.latest = 0
        """The number of that call."""
        self._stepped: tuple[int, int] | None = None
        self._steps = 0
        self._ended_at = array("Q")
        self._calls = array("Q")
        self._places: list[Place | None] = []

    @property
    def is_own(self) -> bool:
        """Whether this is the thread that began the watch."""
        return this_thread.number == self.thread

    def end(self, number: int, place: Place | None) -> None:
        """A backward call has ended."""
        if not self.is_own:
            return
        self.newest = max(next_sequence_nr(), self.newest)
        self.latest = number
        self._ended_at.append(self.newest)
        self._calls.append(number)
        self._places.append(place)
        if len(self._calls) > _MOST:
            self._thin()

    def _thin(self) -> None:
        half = _MOST // 2
        for numbers in (self._ended_at, self._calls):
            numbers[:half] = numbers[:half:2]
        self._places[:half] = self._places[:half:2]

    @property
    def has_built(self) -> bool:
        """Whether this thread has built nodes since the last call, or is another one."""
        return next_sequence_nr() != self.newest

    def stepped(self) -> None:
        """An optimizer has stepped."""
        if this_thread.number == self.thread:
            now = next_sequence_nr()
            self._steps += 1
            self._stepped = (now if self._stepped is None else self._stepped[1], now)

    def oldest_of(self, ended: int) -> int:
        """Return how old a graph may be that is no older than those before it; the last call like
        this one ended at number ``ended``.

        It is not as old as that call, or belongs to this optimizer's step or the one before.
        """
        if self._stepped is None or self._steps < 2:
            return ended
        return min(ended, self._stepped[0])

    def of(self, sequence_nr: int) -> int:
        """Return the last backward call that had ended when the node with this number was built; of
        those long ago, the last that is remembered.
        """
        ended = bisect_right(self._ended_at, sequence_nr)
        return self._calls[ended - 1] if ended else 0

    def around(self, sequence_nr: int) -> tuple[Boundary | None, Boundary | None]:
        """Return the last backward call before a node was built, and the first after it."""
        i = bisect_right(self._ended_at, sequence_nr)
        boundaries = list(
            zip(
                self._ended_at[max(i - 1, 0) : i + 1],
                self._places[max(i - 1, 0) : i + 1],
                strict=True,
            )
        )
        earlier = boundaries.pop(0) if i else None
        return earlier, boundaries[0] if boundaries else None
