"""Lifts the saved-tensor hooks while iterations repeat, and puts them back for anything new.

While they are in force, a call is *watched*: its graph is looked at in full, and what it saves and
frees is counted. While they are lifted, calls are *guarded*: a bare walk asks of each graph whether
all of it is there, unmodified and of known kinds, and what is counted with such a call is what was
counted with those that were watched.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from torch.autograd.graph import Node

from gradscope.collect.calls import INPUTS, Call
from gradscope.collect.generations import Generations
from gradscope.collect.marks import KEY, Token, Weight
from gradscope.collect.observers import Observer
from gradscope.collect.shapes import Habit, Shape
from gradscope.collect.thread_numbers import OTHER
from gradscope.torch_private import SAVED_TENSORS_ARE_READABLE

if TYPE_CHECKING:
    from gradscope.collect.state import State


_ALIKE, _ALIKE_WITHOUT_STEPS = 8, 24  # calls in a row that met only known shapes
_FEWER, _FEWER_WITHOUT_STEPS = 3, 9  # the same, where hooks have cost much:
_MUCH = 1_500  # nodes in these calls
_RENEWED, _WATCHED_AGAIN = 2_000, 3  # calls that are guarded, and then watched
_MOST_INTERVALS = 64  # of one shape
_LONGEST_WAIT = 2_000  # calls
_SETTLING = 4  # calls of each kind after the hooks were lifted
_TOLERANCE = 1.5  # of what grows and shrinks from call to call


class Lifting:
    """Decides when the hooks of the watch's own thread are lifted."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._ledger, self._census = state.ledger, state.census
        self._past, self._generations = state.past, state.generations
        self.on = False
        self.leaves = False
        """Nodes may live that were built without hooks and that no call has run and freed."""
        self.blocked = not state.hooked
        self.doubted = False
        """Something seems to grow from call to call: what it is shows only with hooks."""
        self.since = 0
        """The sequence number at which the hooks were lifted last."""
        self.theirs_entered = False
        """Whether the program has entered hooks of its own since."""
        self._alive: dict[Habit, tuple[int, int]] = {}  # calls since, and graphs alive at the most
        self._counted = state.ledger.counts()
        self._weight: Weight | None = None  # of the guarded call in progress
        self._alike = self._alike_nodes = self._guarded = 0
        self._unseen = False  # what was built since the last call was built without hooks
        self._awaited: tuple[Habit, int] | None = None
        self._wait_until = self._last_odd = 0

    # what begins it

    def after_hooked(self, call: Call, *, alike: bool) -> None:
        """Lift the hooks after enough consecutive calls matched a known shape.

        ``alike`` is False for a call after which things may not go on as before, whatever its graph
        looks like.
        """
        self._count(call)
        habit, extra = call.habit, call.built - call.fresh
        bounded = habit.bounds(self._ledger.live_tensors, self._census.alive - call.fresh)
        habit.extra = max(habit.extra, extra)
        if self.on:  # a graph that was built in part before they were lifted
            return
        same = alike and bounded and not call.woken
        self._alike = self._alike + 1 if same else 0
        self._alike_nodes = self._alike_nodes + call.fresh if same else 0
        if self._awaited is not None:
            waited_for, number = self._awaited
            again = waited_for is habit and extra >= number
            if again or call.number >= self._wait_until:
                self._awaited = None
        with_steps, without = _ALIKE, _ALIKE_WITHOUT_STEPS
        if self._alike_nodes >= _MUCH:
            with_steps, without = _FEWER, _FEWER_WITHOUT_STEPS
        needed = with_steps if call.steps else without
        if self._alike < needed or self._awaited is not None or self.doubted or self.blocked:
            return
        if call.parent is not None:  # the engine forgets what is done to its stack of hooks
            return
        if self._state.hooks.lift():
            self.on = True
            self.since = self._generations.own_next
            self.theirs_entered = False
            self._guarded = 0
            self._alive.clear()
            self._past.toggle()

    def _count(self, call: Call) -> None:
        """Note what was counted with a call that was watched, since the one before."""
        counted, record = self._ledger.counts(), call.record
        pairs = zip(counted, self._counted, strict=True)
        counts = tuple(now - then for now, then in pairs)
        self._counted = counted
        call.habit.watch((record.saved_tensors, record.saved_bytes), counts)
        unseen, self._unseen = self._unseen, False
        if unseen:  # what no call ran through is in no figure
            self._ledger.estimated_calls += call.built > call.fresh
        elif not (self.on or call.unhooked[0]):  # the hooks saw all of it
            intervals = call.shape.intervals
            if len(intervals) >= _MOST_INTERVALS:
                del intervals[next(iter(intervals))]
            intervals[call.built] = counts

    # while it goes on

    def begin(self, call: Call, roots: Sequence[Node]) -> None:
        """Count the nodes of a recognized graph as alive for as long as its root lives."""
        metadata: Any = roots[0].metadata  # a property, though its stub says a method
        if Weight.KEY not in metadata:
            mark = metadata.get(KEY)  # the program may have had a look at it: it is counted then
            is_counted = mark is not None and mark.census is self._census
            nodes = 0 if is_counted else self._past.count_new(call.numbers)
            metadata[Weight.KEY] = Weight(self._census, nodes)
        self._weight = metadata[Weight.KEY]

    def after_guarded(self, call: Call) -> None:
        """Count what watched calls tell, and put the hooks back if this one was not like them."""
        extra = call.built - call.fresh
        self._expect(call, extra)
        self._past.add(call)
        self._guarded += 1
        all_run = call.completed and not (call.keep or call.shape.signature.asked & INPUTS)
        if extra or not all_run or call.builds:
            self.leaves = True
        if self._has_outgrown(call):
            self.leave()
            self._state.observers.tell(Observer.outgrown)
        elif call.woken or not call.completed:
            self.leave()
        elif extra > call.habit.extra * _TOLERANCE:
            self._odd(call, extra)
        elif self._guarded >= _RENEWED:
            self.leave()
            self._alike = max(0, _ALIKE_WITHOUT_STEPS - _WATCHED_AGAIN)

    def _expect(self, call: Call, extra: int) -> None:
        """Count what was counted with calls on the same graph, or else with those of its kind."""
        counts = None if call.estimated else call.shape.intervals.get(call.built)
        # Others may free a part of a graph that is kept: two losses on one trunk. What was built
        # and is in no graph that was called may live or not: ``actions.append(policy(state))``.
        # What earlier calls tell was dropped since may be there: ``if i % 5: loss.backward()``.
        is_told = counts is not None and not (call.keep or extra or counts[-1])
        self._ledger.estimated_calls += not is_told
        counts = counts or call.habit.expected(call.size)
        weight, self._weight = self._weight, None
        if call.keep and weight is not None:  # what is dropped later on is still there
            weight.hold(counts[-2], counts[-1], self._ledger.drop_unseen)
            self._ledger.live_bytes += counts[-1]
            counts = (*counts[:-2], 0, 0)
        _, _, call.freed_tensors, call.freed_bytes, call.returned_bytes, *_ = counts
        self._ledger.add(counts)
        self._counted = self._ledger.counts()

    # what ends it

    def _has_outgrown(self, call: Call) -> bool:
        """Return whether more recognized graphs are alive than after earlier calls like this, and
        more nodes than there ever were.
        """
        habit, alive = call.habit, self._census.graphs
        calls, most = self._alive.get(habit, (0, 0))
        if calls < _SETTLING:
            self._alive[habit] = (calls + 1, max(most, alive))
            return False
        return alive > most and self._census.alive - call.fresh > habit.alive[1]

    def _odd(self, call: Call, extra: int) -> None:
        """Watch in full until as many nodes as now were built between two calls once more."""
        self._awaited = (call.habit, extra)
        self._wait_until = call.number + min(2 * (call.number - self._last_odd), _LONGEST_WAIT)
        self._last_odd = call.number
        self.leave()

    def before_theirs(self) -> None:
        """Learn that the program enters hooks of its own, which a walk must not run."""
        self.theirs_entered = True
        if not SAVED_TENSORS_ARE_READABLE:
            self.leave()

    def block(self) -> None:
        """Never lift the hooks again: something runs that a bare walk cannot see.

        They come back at the next backward call, as only their own thread can put them back.
        """
        self.blocked = True

    def leave(self) -> None:
        """Put the hooks back."""
        if not self.on:
            return
        self.on = False
        self._unseen = self.leaves = True  # what was built since the last call
        self._alike = self._alike_nodes = 0
        self._state.hooks.lower()
        self._past.toggle()
        number = self._generations.own_next
        for shape in self._past.shapes:
            for place in shape.signature.places:
                if place is not None:  # it ran in every iteration, so it has by now
                    place.last_sequence_nr = number


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
        token.place = call.shape.signature.places[index]
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
