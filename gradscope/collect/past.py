"""What went by while the hooks were lifted: when that was, and the calls that were made."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from operator import attrgetter

from gradscope.collect.calls import Call
from gradscope.collect.generations import Generations
from gradscope.collect.marks import Token
from gradscope.collect.shapes import Shape
from gradscope.collect.thread_numbers import OTHER

_MOST_CALLS, _MOST_NODES = 1_000, 250_000  # remembered
_MOST_KNOWN = 200
_MOST_ASKED = 256  # calls that may have run one node


class Past:
    """When the hooks were lifted, and the newest calls on recognized graphs, in the order of
    time.
    """

    def __init__(self, generations: Generations) -> None:
        self._generations = generations
        self._calls: list[Call] = []
        self._nodes = 0
        self._toggles = array("Q")  # sequence numbers at which the hooks went and came, in turn

    def toggle(self) -> None:
        """Note that the hooks are lifted now, or put back."""
        self._toggles.append(self._generations.own_next)

    def was_lifted(self, sequence_nr: int) -> bool:
        """Return whether the node with this number was built while the hooks were lifted."""
        if sequence_nr >= OTHER:  # what it saved tells that
            return False
        return bool(self._toggles) and bisect_right(self._toggles, sequence_nr) % 2 == 1

    def add(self, call: Call) -> None:
        """Remember a call that has just ended, by the number at which it did."""
        call.sequence_nr = self._generations.own_seen
        self._calls.append(call)
        self._nodes += len(call.numbers)
        if len(self._calls) > _MOST_CALLS or self._nodes > _MOST_NODES:
            older = slice(len(self._calls) // 2)
            self._nodes -= sum(len(each.numbers) for each in self._calls[older])
            del self._calls[older]

    def count_new(self, numbers: array[int]) -> int:
        """Count the nodes, leaves not among them, that are in no graph which the call before has
        kept.
        """
        if not self._calls or not self._calls[-1].keep:
            return len(numbers) - numbers.count(0)
        return len({*numbers}.difference(self._calls[-1].numbers, (0,)))

    def recall(self, token: Token) -> None:
        """Fill in which call ran a node that was built without hooks, and where it was made."""
        call = self._find(token.sequence_nr)
        if call is None:
            return
        token.call = call
        if call.estimated:
            return
        index = call.numbers.index(token.sequence_nr)
        token.place = call.shape.places[index]
        graph = call.shape.graph
        if graph is not None:
            token.graph, token.index = graph, index
            node = graph.nodes[index] if index < len(graph.nodes) else None
            if node is not None and node.module is not None:
                token.module = (node.module, node.module_class or "")

    def _find(self, number: int) -> Call | None:
        """Find the call that ran the node with this number.

        It is one of those that ended after it was built, and had it in its graph: the last that
        freed it, as each could read what it saved, or else the last that kept it.
        """
        found = None
        first = bisect_right(self._calls, number, key=attrgetter("sequence_nr"))
        if number >= OTHER:  # of another thread it is not known when that was
            first = max(0, len(self._calls) - _MOST_ASKED)
        for call in self._calls[first : first + _MOST_ASKED]:
            is_in = call.lowest <= number and number in call.numbers
            if is_in and (found is None or found.keep or not call.keep):
                found = call
        return found

    def who_freed(self, number: int) -> Call | None:
        """Return the call that has most likely freed a node of long ago: the first that ended after
        it was built.
        """
        after = self._generations.first_after(number)
        if after is None:
            return None
        call = Call(*after, keep=False)
        call.open, call.completed = False, True
        return call

    @property
    def shapes(self) -> set[Shape]:
        """The shapes of the last calls."""
        return {call.shape for call in self._calls[-_MOST_KNOWN:]}
