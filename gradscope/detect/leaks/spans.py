"""Measures the graphs of held tensors: over how many iterations they go, and what they hold."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch.autograd.graph import Node

from gradscope.collect.marks import token_of
from gradscope.collect.nodes import held, kind_of
from gradscope.collect.state import State
from gradscope.collect.thread_numbers import this_thread
from gradscope.program.sites import Place
from gradscope.program.tensors import is_parameter, storage_of
from gradscope.torch_private import NO_SEQUENCE_NR

_OLDEST = 127  # iterations told apart in one graph


@dataclass(slots=True)
class Extent:
    """What tensors keep alive: how many nodes, leaves not counted, and their numbers; saved bytes,
    and the lines that saved them.
    """

    numbers: set[int] = field(default_factory=set)
    nodes: int = 0
    nbytes: int = 0
    places: set[Place] = field(default_factory=set)


class Spans:
    """Looks at graphs for as long as one scan lasts. It holds Nodes: let go of it at once.

    ``ticks`` are the times at which the iterations so far ended. At most ``most`` nodes
    are touched. Its loops are its own: they go over the same nodes again and again, so it remembers
    what follows each node, and counts a node once.
    """

    def __init__(self, watch: State, ticks: Sequence[int], most: int) -> None:
        self._watch = watch
        self._ticks = ticks
        self._most = most
        self._masks: dict[Node, int] = {}
        self._numbers: dict[Node, int] = {}
        self._followed: dict[Node, tuple[Node, ...]] = {}

    @property
    def touched(self) -> int:
        """How many nodes were touched."""
        return len(self._followed)

    @property
    def is_full(self) -> bool:
        """True when no further node may be touched."""
        return len(self._followed) >= self._most

    def number(self, node: Node) -> int:
        """Return the number of a node, with the thread in it."""
        if not self._watch.generations.others:
            return self._watch.number_of(node)
        if node not in self._numbers:
            self._tell_threads(node)
        return self._numbers[node]

    def _tell_threads(self, root: Node) -> None:
        """Number the nodes that a graph has beyond those that are numbered."""
        index: dict[Node, int] = {}
        stack = [root]
        while stack:
            node = stack.pop()
            if node not in index:
                index[node] = len(index)
                stack += [] if node in self._numbers else self._following(node)
        watch = self._watch
        numbers = [self._numbers[n] if n in self._numbers else watch.number_of(n) for n in index]
        known = [
            n in self._numbers or token_of(n) is not None or bool(watch.saved_by(n)) for n in index
        ]
        targets = [tuple(index[f] for f in self._followed.get(n, ()) if f in index) for n in index]
        told = watch.generations.tell_threads(numbers, known, targets)
        self._numbers.update(zip(index, told, strict=True))

    def iteration(self, node: Node) -> int:
        """Return how many iterations ago the node was built; 0 is after the last one ended."""
        built, _ = self.time_of(self.number(node))
        return len(self._ticks) - bisect_right(self._ticks, built)

    def time_of(self, number: int) -> tuple[int, int]:
        """Return when the node with this number was built, to be compared with another's."""
        return self._watch.generations.time_of(number), number

    def iterations(self, root: Node) -> int:
        """Return how many iterations the graph has nodes of."""
        return self._mask(root).bit_count()

    def told_apart(self, numbers: Iterable[int]) -> int:
        """Return how many iterations the nodes with these numbers were built in."""
        return len({bisect_right(self._ticks, self.time_of(number)[0]) for number in numbers})

    def extent(self, roots: Iterable[Node]) -> Extent:
        """Return what these graphs hold together."""
        found = Extent()
        storages: dict[int, int] = {}
        seen: set[Node] = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            number = self.number(node)
            if number == NO_SEQUENCE_NR:
                continue
            found.numbers.add(number)
            found.nodes += 1
            for packed in self._watch.saved_by(node):
                if packed.storage:
                    storages[packed.storage] = packed.nbytes
                if packed.place is not None:
                    found.places.add(packed.place)
            if token_of(node) is None and self._watch.past.was_lifted(number):
                for _, data in held(node, kind_of(type(node))):
                    if isinstance(data, torch.Tensor) and not is_parameter(data):
                        storages[storage_of(data)] = data.nbytes
            stack += self._following(node)
        found.nbytes = sum(storages.values())
        return found

    def independent_terms(self, root: Node) -> int:
        """Return how many terms were added up, none of them computed from the total before it.

        So is a total over a loop whose iterations share nothing else; a recurrence has terms that
        depend on the total.
        """
        terms = 0
        node: Node | None = root
        while node is not None:
            following = [n for n in self._following(node) if n._sequence_nr() != NO_SEQUENCE_NR]
            if len(following) == 1:
                name = type(node).__name__
                if name.startswith("Add") and terms:  # the first term was added to a constant
                    return terms + 1
                if not name.startswith(("Add", "Mul", "Div")):
                    break
                node = following[0]
                continue
            if len(following) != 2 or not type(node).__name__.startswith(("Add", "Sub")):
                break
            older, newer = sorted(following, key=lambda n: self.time_of(self.number(n)))
            first = min(map(self.time_of, self.extent((newer,)).numbers), default=(0, 0))
            if first <= self.time_of(self.number(older)):
                break
            terms += 1
            node = older
        return terms + 1 if terms else 0

    def are_apart(self, roots: Sequence[Node]) -> int:
        """Return how many of these graphs share no node, leaves apart, with those before them."""
        seen: set[int] = set()
        apart = 0
        for root in roots:
            numbers = self.extent((root,)).numbers
            apart += seen.isdisjoint(numbers)
            seen |= numbers
        return apart

    def _following(self, node: Node) -> tuple[Node, ...]:
        known = self._followed.get(node)
        if known is None:
            if self.is_full:
                return ()
            known = self._followed[node] = tuple(n for n, _ in node.next_functions if n is not None)
        return known

    def _mask(self, root: Node) -> int:
        """One bit for each iteration that the graph has nodes of."""
        masks = self._masks
        stack = [root]
        entered: set[Node] = set()
        while stack:
            node = stack[-1]
            if node in masks:
                stack.pop()
                continue
            following = self._following(node)
            unknown = [n for n in following if n not in masks]
            if unknown and node not in entered:
                entered.add(node)
                stack += unknown
                continue
            stack.pop()
            is_leaf = node._sequence_nr() == NO_SEQUENCE_NR
            mask = 0 if is_leaf else 1 << min(self.iteration(node), _OLDEST)
            for each in following:
                mask |= masks.get(each, 0)
            masks[node] = mask
        return masks[root]


class Room:
    """Counts the nodes that may still be touched: each takes stack when it is destroyed."""

    _PER_SCAN = 20_000

    def __init__(self, watch: State) -> None:
        self._watch = watch
        self._touched = 0
        self._thread = this_thread.number

    def left(self) -> int:
        """Return how many nodes the next scan may touch: none outside of the watch's thread."""
        if this_thread.number != self._thread:
            return 0
        wanted = self._touched + self._PER_SCAN
        limit = self._watch.stack_limit
        room = limit.room_for(0)
        if wanted > room:
            room = limit.room_for(wanted)
        return max(0, min(self._PER_SCAN, room - self._touched))

    def take(self, touched: int) -> None:
        """Note what a scan has touched."""
        self._touched += touched
