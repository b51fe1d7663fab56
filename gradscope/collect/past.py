"""What went by while the hooks were lifted: a few numbers of each call, by which its nodes are told
later.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from dataclasses import replace

from gradscope.collect.calls import Call
from gradscope.collect.generations import Generations
from gradscope.collect.marks import Token
from gradscope.collect.shapes import Repeat, Shape
from gradscope.collect.thread_numbers import OTHER

_MOST_KNOWN = 200
_MOST_REMEMBERED = 100_000  # calls
_MOST_NUMBERS = 250_000  # of nodes, of the newest calls
_MOST_ASKED = 256  # calls that may have run one node


class Past:
    """When the hooks were lifted, and the calls of recognized graphs, in the order of time."""

    def __init__(self, generations: Generations) -> None:
        self._generations = generations
        self._calls = array("Q")
        self._steps = array("Q")
        self._roots = array("Q")
        self._ends = array("Q")
        self._exact = array("B")
        self._keeps = array("B")
        self._lows = array("Q")
        self._shapes: list[Shape] = []
        self._numbers: deque[array[int]] = deque()
        """The nodes of the newest calls."""
        self._count = 0
        self._toggles = array("Q")  # sequence numbers at which the hooks went and came, in turn

    def toggle(self) -> None:
        """Note that the hooks are lifted now, or put back."""
        self._toggles.append(self._generations.own_next)

    def was_lifted(self, sequence_nr: int) -> bool:
        """Return whether the node with this number was built while the hooks were lifted."""
        if sequence_nr >= OTHER:  # what it saved tells that
            return False
        return bool(self._toggles) and bisect_right(self._toggles, sequence_nr) % 2 == 1

    def add(self, call: Call, repeat: Repeat) -> None:
        """Remember a call that has just ended."""
        shape, root = repeat.shape, call.roots[0]
        if not shape.offsets and repeat.estimate is None:
            shape.offsets = {
                root - number: index for index, number in enumerate(repeat.numbers) if number
            }
        self._calls.append(call.number)
        self._steps.append(call.steps)
        self._roots.append(root)
        self._ends.append(self._generations.own_next)
        self._exact.append(repeat.estimate is None)
        self._keeps.append(call.keep)
        self._lows.append(repeat.lowest)
        self._shapes.append(shape)
        self._numbers.append(repeat.numbers)
        self._count += len(repeat.numbers)
        while self._count > _MOST_NUMBERS and len(self._numbers) > 1:
            self._count -= len(self._numbers.popleft())
        if len(self._shapes) > _MOST_REMEMBERED:
            del self._shapes[: _MOST_REMEMBERED // 2]
            for column in self._columns:
                del column[: _MOST_REMEMBERED // 2]
            while len(self._numbers) > len(self._shapes):
                self._count -= len(self._numbers.popleft())

    def recall(self, token: Token) -> None:
        """Fill in which call ran a node that was built without hooks, and where it was made."""
        at = self._find(token.sequence_nr)
        if at is None:
            return
        shape = self._shapes[at]
        call = token.call = Call(self._calls[at], shape.signature[0], keep=bool(self._keeps[at]))
        call.open, call.completed = False, True
        call.steps, call.sequence_nr = self._steps[at], self._ends[at]
        call.roots = (self._roots[at],)
        if shape.record is not None:
            call.record = replace(shape.record, number=call.number)
        index = shape.offsets.get(self._roots[at] - token.sequence_nr)
        known = len(self._shapes) - len(self._numbers)
        if token.sequence_nr >= OTHER and at >= known:
            index = self._numbers[at - known].index(token.sequence_nr)
        if index is None or not self._exact[at]:
            return
        token.place = shape.places[index]
        graph = shape.graph
        if graph is not None:
            token.graph, token.index = graph, index
            node = graph.nodes[index] if index < len(graph.nodes) else None
            if node is not None and node.module is not None:
                token.module = (node.module, node.module_class or "")

    def _find(self, sequence_nr: int) -> int | None:
        """Find the call that ran the node with this number.

        It is one of those that ended after it was built, and had it in its graph: the last that
        freed it, as each could read what it saved, or else the last that kept it.
        """
        found = None
        first = bisect_right(self._ends, sequence_nr)
        if sequence_nr >= OTHER:  # of another thread it is not known when that was
            first = max(0, len(self._ends) - _MOST_ASKED)
        known = len(self._shapes) - len(self._numbers)
        for at in range(first, min(len(self._ends), first + _MOST_ASKED)):
            if sequence_nr < self._lows[at]:
                continue
            if at >= known:
                is_in = sequence_nr in self._numbers[at - known]
            else:
                offsets = self._shapes[at].offsets
                is_in = self._roots[at] - sequence_nr in offsets or not self._exact[at]
            if is_in and (found is None or self._keeps[found] or not self._keeps[at]):
                found = at
        return found

    @property
    def shapes(self) -> set[Shape]:
        """The shapes of the last calls."""
        return set(self._shapes[-_MOST_KNOWN:])

    @property
    def _columns(self) -> tuple[array[int], ...]:
        found = self._calls, self._steps, self._roots, self._ends
        return *found, self._exact, self._keeps, self._lows
