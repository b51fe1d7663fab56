"""Counts the iterations of a training loop, and keeps what one scan after another saw in it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise

from gradscope.collect.calls import Call
from gradscope.detect.leaks.suspects import Suspect
from gradscope.model import BackwardCall
from gradscope.model.paths import Origin
from gradscope.torch_private import next_sequence_nr

SIGHTINGS = 3  # scans in which the same holder has to have grown
_SATURATED = 100  # iterations: a scan looks at no more entries of a container
_MOST_TICKS = 100_000

Key = tuple[Origin, str]
"""What tells the holders of different scans apart."""


class Sightings:
    """One holder in scan after scan: how many iterations had run, and what it held then.

    Only scans in which it had grown are kept: a holder may grow in bursts.
    """

    __slots__ = ("count", "grows", "newest", "seen")

    def __init__(self, count: int, suspect: Suspect) -> None:
        self.seen = [(count, suspect)]
        self.count, self.newest = count, suspect
        self.grows = True

    def add(self, count: int, suspect: Suspect) -> None:
        """Note what the holder holds after so many iterations."""
        last = self.newest.iterations
        self.grows &= suspect.iterations >= last
        if suspect.iterations > last or last >= _SATURATED:
            self.seen = [*self.seen[-(SIGHTINGS - 1) :], (count, suspect)]
        self.count, self.newest = count, suspect

    @property
    def is_enough(self) -> bool:
        """Whether it was seen often enough to have grown."""
        return self.grows and len(self.seen) == SIGHTINGS

    @property
    def holds_all(self) -> bool:
        """Whether nearly every iteration so far is still held."""
        return self.grows and self.newest.iterations >= self.count - 1

    @property
    def rates(self) -> tuple[float, float]:
        """Nodes and bytes more with every iteration."""
        first, last = self.seen[0][1], self.newest
        if last.iterations == first.iterations:
            return last.nodes / last.iterations, last.nbytes / last.iterations
        more = last.iterations - first.iterations
        return (last.nodes - first.nodes) / more, (last.nbytes - first.nbytes) / more


class Loop:
    """The backward calls made at one place.

    One call is one iteration; in a program whose optimizers step, all calls between two steps are
    one (accumulation). ``waits``: the calls are ``autograd.grad(create_graph=True)``, steps within
    something larger if a call comes that runs through their graphs. ``before`` ends an
    iteration that is not counted here: the one before it was known that an optimizer steps.
    """

    def __init__(self, steps: int, *, waits: bool, before: Sequence[int] = ()) -> None:
        self.call = self.count = 0
        self.before = len(before)
        self.waits = waits
        self.steps = steps
        self.first = next_sequence_nr()
        self.starts = self.due = False
        self.ticks = array("Q", before)
        self.holders: dict[Key, Sightings] = {}
        self.numbers: frozenset[int] = frozenset()
        self.alive: list[tuple[int, int]] = []
        """How many iterations had run at each scan, and how many nodes were alive."""
        self._last: BackwardCall | Call | None = None
        self.done = False

    def begin(self, call: int, steps: int) -> None:
        """Begin a call, after so many steps of optimizers."""
        self.call = call
        self.starts = not steps or steps != self.steps or not self.count
        self.count += self.starts
        self.steps = steps
        # The 4th, 6th, 8th, 12th, 16th, 24th … iteration is due for a scan.
        half = self.count // 3 * 2 if self.count % 3 == 0 else self.count
        self.due = self.starts and self.count >= 4 and half & (half - 1) == 0

    @property
    def record(self) -> BackwardCall | None:
        """The record of the last call."""
        return self._last.record if isinstance(self._last, Call) else self._last

    def end(self, ended: BackwardCall | Call, sequence_nr: int) -> None:
        """End the call; ``sequence_nr`` is that of the next node. Of a call on a recognized graph
        there may be no record yet.
        """
        self._last = ended
        if not self.starts:
            self.ticks.pop()
        self.ticks.append(sequence_nr)
        if len(self.ticks) > _MOST_TICKS:
            del self.ticks[: _MOST_TICKS // 2]

    def built(self, sequence_nr: int) -> bool:
        """Return whether an iteration that has ended built the node with this number."""
        return bool(self.ticks) and self.first <= sequence_nr < self.ticks[-1]

    def note_alive(self, nodes: int) -> None:
        """Note at a scan how many nodes are alive."""
        self.alive = [*self.alive[-(SIGHTINGS - 1) :], (self.count, nodes)]

    def grows(self, *, ended: bool) -> bool:
        """Return whether at least one node more was alive with each further call, at every scan."""
        return len(self.alive) >= (2 if ended else SIGHTINGS) and all(
            now - before >= last - first for (first, before), (last, now) in pairwise(self.alive)
        )
