"""Lifts the saved-tensor hooks while iterations repeat, and puts them back for anything new."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch.autograd.graph import Node

from gradscope.collect.calls import Call
from gradscope.collect.census import Census, Weight
from gradscope.collect.engine_call import INPUTS
from gradscope.collect.generations import Generations
from gradscope.collect.habits import Habit
from gradscope.collect.ledger import Ledger
from gradscope.collect.past import Past
from gradscope.collect.shapes import Repeat, Shape
from gradscope.torch_private import SAVED_TENSORS_ARE_READABLE

_ALIKE, _ALIKE_WITHOUT_STEPS = 8, 24  # calls in a row that met only known shapes
_FEWER, _FEWER_WITHOUT_STEPS = 3, 9  # the same, where hooks have cost much:
_MUCH = 1_500  # nodes in these calls
_MOST_INTERVALS = 64  # of one shape
_LONGEST_WAIT = 2_000  # calls
_MOST_KEPT = 100_000  # nodes
_SETTLING = 4  # calls of each kind after the hooks were lifted
_TOLERANCE = 1.5  # of what grows and shrinks from call to call


class Liftable(Protocol):
    """Default hooks that can be taken out and put back; DefaultHooks are."""

    def lift(self) -> bool:
        """Take the hooks out; False where that cannot be done now."""

    def lower(self) -> None:
        """Put the hooks back."""

    def sweep(self) -> None:
        """Take the hooks out after a backward call in which the watch has ended."""


class Lifting:
    """Decides when the hooks of the watch's own thread are lifted, and counts in their stead.

    ``since`` is the sequence number at which they were lifted last, ``theirs_entered`` whether the
    program has entered hooks of its own since. ``leaves``: nodes may live that were built without
    hooks and that no call has run and freed. ``doubted`` says that something seems to grow from
    call to call: what it is shows only with hooks. ``outgrown`` is called when more recognized
    graphs are alive after a call than after earlier ones of its kind.
    """

    def __init__(
        self,
        ledger: Ledger,
        census: Census,
        past: Past,
        hooks: Liftable | None,
        outgrown: Callable[[], None],
        generations: Generations,
    ) -> None:
        self.on = False
        self.leaves = False
        self.blocked = hooks is None
        self.doubted = False
        self._ledger = ledger
        self._census = census
        self._past = past
        self._hooks = hooks
        self._outgrown = outgrown
        self._generations = generations
        self.since = 0
        self.theirs_entered = False
        self._alive: dict[Habit, tuple[int, int]] = {}
        self._holding: list[weakref.ref[Weight]] = []
        self._kept: set[int] = set()  # nodes of recognized graphs that were kept and are counted
        self._counted = ledger.counts()
        self._unmet = (0, 0)  # tensors and bytes that were saved, in graphs that no call has met
        self._alike = self._alike_nodes = 0
        self._awaited: tuple[Habit, int] | None = None
        self._wait_until = self._last_odd = 0

    def after_hooked(self, call: Call, shape: Shape, alike: bool) -> None:
        """Lift the hooks after enough consecutive calls matched a known shape.

        ``alike`` is False for a call after which things may not go on as before, whatever its graph
        looks like.
        """
        counted = self._ledger.counts()
        if not (self.on or call.unhooked[0]):  # the hooks saw all of it
            if len(shape.intervals) >= _MOST_INTERVALS:
                del shape.intervals[next(iter(shape.intervals))]
            pairs = zip(counted, self._counted, strict=True)
            shape.intervals[call.built] = tuple(now - then for now, then in pairs)
        self._counted = counted
        habit, extra = call.habit, call.built - call.fresh
        bounded = habit.bounds(self._ledger.live_tensors, self._census.alive - call.fresh)
        habit.extra = max(habit.extra, extra)
        if self.on:  # a graph that was built in part before they were lifted
            return
        same = alike and bounded
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
        if self._hooks is not None and self._hooks.lift():
            self.on = True
            self.since = self._generations.own_next
            self.theirs_entered = False
            self._alive.clear()
            self._kept.clear()
            self._past.toggle()

    def begin(self, repeat: Repeat, roots: Sequence[Node]) -> None:
        """Count the nodes of a recognized graph as alive for as long as its root lives."""
        metadata: Any = roots[0].metadata  # a property, though its stub says a method
        repeat.weight = metadata.get(Weight.KEY)
        if repeat.weight is None:
            new = repeat.nodes - (self._counted_before(repeat) if self._kept else 0)
            repeat.weight = metadata[Weight.KEY] = Weight(self._census, new)

    def _counted_before(self, repeat: Repeat) -> int:
        return sum(map(self._kept.__contains__, repeat.numbers))

    def after_repeat(self, call: Call, repeat: Repeat) -> None:
        """Count what earlier calls of the same shape have counted, and remember the call."""
        habit, shape = call.habit, repeat.shape
        counts = shape.intervals.get(call.built)
        is_told = repeat.estimate is None and counts is not None
        extra = call.built - repeat.fresh
        if counts is None or not is_told:
            freed = (call.freed_tensors, call.freed_bytes, call.returned_bytes)
            nodes, (tensors, nbytes) = repeat.nodes or 1, repeat.saved
            new = nodes - self._counted_before(repeat)
            counts = (tensors * new // nodes, nbytes * new // nodes, *freed, 0, 0)
        # Others may free a part of a graph that is kept: two losses on one trunk. What was built
        # and is in no graph that was called may live or not: ``actions.append(policy(state))``.
        # What earlier calls tell was dropped since may be there: ``if i % 5: loss.backward()``.
        self._ledger.estimated_calls += bool(call.keep or extra or not is_told or counts[5])
        if self._holding or call.keep or self._unmet != (0, 0) or counts[:2] != counts[2:4]:
            self._share_out(call, repeat, counts)
        repeat.weight = None
        self._ledger.add(counts)
        self._counted = self._ledger.counts()
        self._past.add(call, repeat)
        if call.keep or self._kept:
            self._keep(call, repeat)
        all_run = call.completed and not (call.keep or shape.signature[-1] & INPUTS)
        if extra or not all_run or call.builds:
            self.leaves = True
        if self._has_outgrown(habit, repeat):
            self.leave()
            self._outgrown()
        elif not call.completed:
            self.leave()
        elif extra > habit.extra * _TOLERANCE:
            self._odd(call, extra)

    def _share_out(self, call: Call, repeat: Repeat, counts: Sequence[int]) -> None:
        """Find out whose was what a call has freed: it was saved since the call before, or waited
        for this one, as the second loss in ``a, b = f(h), g(h)``, or graphs hold it that were kept.
        """
        saved, saved_bytes, freed, freed_bytes, _, dropped, dropped_bytes = counts
        weight, held, held_bytes = repeat.weight, 0, 0
        tensors, nbytes = (0, 0) if call.keep and saved else self._unmet
        if weight is not None and call.keep:
            held, held_bytes = min(saved, repeat.saved[0]), min(saved_bytes, repeat.saved[1])
        tensors += saved - held - freed - dropped
        nbytes += saved_bytes - held_bytes - freed_bytes - dropped_bytes
        self._unmet = max(0, tensors), max(0, nbytes)
        if tensors < 0 or nbytes < 0:
            self._release(max(0, -tensors), max(0, -nbytes))
        if weight is not None and (held or not call.keep):
            weight.hold(held, held_bytes)
            if held:
                self._holding.append(weakref.ref(weight))

    def _release(self, tensors: int, nbytes: int) -> None:
        """Take what a call has freed from graphs that were kept, the newest first, or from those
        whose root alone has died: ``f(h).sum().backward(retain_graph=True)``.
        """
        alive = [weight for reference in self._holding if (weight := reference()) is not None]
        for weight in reversed(alive):
            tensors, nbytes = weight.release(tensors, nbytes)
        dropped, dropped_bytes = self._census.dropped
        self._census.dropped = max(0, dropped - tensors), max(0, dropped_bytes - nbytes)
        self._holding = [weakref.ref(weight) for weight in alive if weight.holds]

    def _keep(self, call: Call, repeat: Repeat) -> None:
        """Remember the nodes of a graph that the call keeps, so that they are counted once."""
        if not call.keep or len(self._kept) > _MOST_KEPT:
            self._kept.clear()
        if call.keep:
            self._kept.update(filter(None, repeat.numbers))

    def _has_outgrown(self, habit: Habit, repeat: Repeat) -> bool:
        """Return whether more recognized graphs are alive than after earlier calls like this, and
        more nodes than there ever were.
        """
        alive = self._census.graphs
        calls, most = self._alive.get(habit, (0, 0))
        if calls < _SETTLING:
            self._alive[habit] = (calls + 1, max(most, alive))
            return False
        return alive > most and self._census.alive - repeat.fresh > habit.alive[1]

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
        if not self.on or self._hooks is None:
            return
        self.on = False
        self.leaves = True  # what was built since the last call
        self._alike = self._alike_nodes = 0
        self._hooks.lower()
        self._past.toggle()
        number = self._generations.own_next
        for shape in self._past.shapes:
            for place in shape.places:
                if place is not None:  # it ran in every iteration, so it has by now
                    place.last_sequence_nr = number
