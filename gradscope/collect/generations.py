"""Records at which node number each backward call ended, and which nodes it ran, to tell of a node
between which calls it was built, and which call has freed it.

Torch numbers the nodes that a thread builds from zero (``Node._sequence_nr``), so a number is also
a time: a node whose number is below the one that came next when call 7 ended was built before that.
The *generation* of a node is the number of the last backward call that had ended when the node was
built. ``loss`` here has nodes of two generations, which is why its backward call can fail:

    state = cell(x, state)      # generation 0
    state.sum().backward()      # call 1 frees them
    loss = head(state).sum()    # generation 1, on top of freed nodes of generation 0

Each thread counts for itself, so a node's *number* here is torch's sequence number plus a multiple
of ``OTHER`` that stands for the thread.
"""

from __future__ import annotations

import itertools
import sys
import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from operator import attrgetter

from gradscope.collect.calls import NODE, Call, Counted, Guarded, Shape, time_at
from gradscope.collect.marks import NodeMark
from gradscope.collect.walk import Targets, dependencies_last
from gradscope.program.sites import Place
from gradscope.torch_private import NO_SEQUENCE_NR, next_sequence_nr

# A node's number is torch's sequence number plus this, times the number of its thread, so that no
# two nodes share one: a thread that builds a node every 10 µs, the pace of scalar operations, needs
# 127 days to reach it. Nodes of the watch's own thread keep torch's number.
OTHER = 2**40

_numbers = itertools.count(1)


class _ThisThread(threading.local):
    """Gives each thread a number that no other thread of the process has had.

    Python gives the identity of a thread that is over to a new thread. Graphs live longer than
    threads, and nodes are counted in each thread from zero, so the two could not be told apart.
    """

    def __init__(self) -> None:
        self.number = next(_numbers)


this_thread = _ThisThread()
"""``this_thread.number`` differs in each thread of the process."""


def name_of_thread() -> str | None:
    """Return this thread's name; None for a thread that Python has not started and does not know.

    ``threading.current_thread()`` would add such a thread to those of the program, for good.
    """
    here = threading.get_ident()
    return next((thread.name for thread in threading.enumerate() if thread.ident == here), None)


# Calls whose end is remembered, in 16 bytes each. If there are more, every second one of the older
# half is forgotten: iterations of long ago are then told apart two by two, or four by four.
_MOST = 100_000

Boundary = tuple[int, Place | None, int]
"""The number at which a backward call ended, the call's place, and its own number."""


class _Thread:
    """The numbers that one thread has given to nodes, as far as they are known.

    ``ended_at`` has the thread's next number at the end of each call, from the call with index
    ``start`` to the last that ended before the thread built its newest node. At the end of later
    calls the next number is ``next``.
    """

    def __init__(self, first: int, start: int, *, counts: bool = True) -> None:
        self.first, self.next, self.counts, self.start = first, first, counts, start
        self.ended_at = array("Q")

    def go_on(self, following: int, ended: int) -> None:
        """Take note that ``following`` is its next number, after ``ended`` calls have ended."""
        missing = ended - self.start - len(self.ended_at)
        self.ended_at.extend(array("Q", (self.next,)) * missing)
        self.next = following

    def at(self, index: int) -> int:
        """Return the thread's next number at the end of the call with this index."""
        index -= self.start
        return self.ended_at[index] if index < len(self.ended_at) else self.next

    def forget(self, old: int) -> None:
        """Forget every second one of ``old`` calls; ``ended_at`` has the ends of all."""
        own = max(0, old - self.start)
        self.ended_at[:own] = self.ended_at[self.start % 2 : own : 2]
        self.start -= min(self.start, old) // 2


class Generations:
    """Records the ends of the backward calls of the thread that began the watch, and of the calls
    that threads of the engine made within them.

    The next number of another thread is known only when a hook or a call of ours runs there. So a
    node of such a thread is known to be at most so old, rather than exactly.
    """

    def __init__(self) -> None:
        self.own = this_thread.number
        """The number of the thread that began the watch."""
        self.newest = next_sequence_nr()
        """The number at which the last call ended, or the watch began: every node of the watch's
        own thread with a smaller number was built before that.
        """
        self.first = self.newest
        """The number of the first node that was built in the watch; 0 once other threads have built
        nodes, which they count from zero.
        """
        self.latest = 0
        """The number of the last call that ended."""
        self._begun = 0
        self._own_thread = _Thread(self.newest, 0)
        self._threads = {0: self._own_thread}
        self._calls = array("Q")
        self._places: list[Place | None] = []
        self.others: list[int] = []
        """The upper bits of the numbers of the other threads that have built nodes."""
        self.built = self._built_before = 0
        """How many nodes were built since the watch began, as far as that is known."""
        self.last_step, self.step_before = 0, sys.maxsize
        """The number of the next node when an optimizer last stepped, and at the step before that:
        a graph may have nodes from there on, though calls like its own have ended since. In a GAN,
        the losses of both networks go back over one pass of the generator.
        """

    @property
    def is_own(self) -> bool:
        """Whether this is the thread that began the watch."""
        return this_thread.number == self.own

    def bits_of(self, thread: int) -> int:
        """Return the upper bits of the numbers of a thread's nodes."""
        return 0 if thread == self.own else thread * OTHER

    def alike(self, number: int) -> list[int]:
        """Return the numbers of nodes that torch has numbered alike, in all known threads."""
        return [bits + number for bits in self._threads]

    @property
    def own_next(self) -> int:
        """The number of the next node of the watch's own thread, as far as it is known."""
        return self.see() if self.is_own else self.own_seen

    @property
    def own_seen(self) -> int:
        """The same, as it was when a call of the watch's own thread last began or ended."""
        return self._own_thread.next

    def see(self) -> int:
        """Return the number of this thread's next node, and take note of it."""
        number, thread = next_sequence_nr(), this_thread.number
        if thread != self.own:
            number += thread * OTHER
            self._see_other(number, number, counts=True)
        else:
            self._go_on(self._own_thread, number)
        return number

    def pass_to(self, number: int) -> None:
        """Take note that calls that were not inspected ran what was built before this number."""
        if number > self._own_thread.next:
            self._go_on(self._own_thread, number)
            self.end(self.latest, None)

    def see_built(self, number: int, *, counts: bool) -> None:
        """Take note of a node that another thread has built; it ``counts`` as built in the watch if
        that is a thread of the engine, working for a call of the watch's own thread.
        """
        self._see_other(number, number + 1, counts=counts)

    def _see_other(self, first: int, following: int, *, counts: bool) -> None:
        bits = following - following % OTHER  # what a checkpoint saves may come before any node
        thread = self._threads.get(bits)
        if thread is None:
            # If the watch's own thread had built no node before the watch began, then no engine has
            # run either: all nodes of its threads are of the watch.
            first = bits if counts and self._own_thread.first == 0 else max(first, bits)
            # The thread is met within a call that runs, so it builds after the call before that.
            start = len(self._places) - bool(self.latest)
            thread = self._threads[bits] = _Thread(first, start, counts=counts)
            self.others.append(bits)
            self.first = 0
        self._go_on(thread, following)

    def _go_on(self, thread: _Thread, following: int) -> None:
        """Take note that ``following`` is a thread's next number, unless it had gone on further."""
        if following > thread.next:
            self.built += thread.counts * (following - thread.next)
            thread.go_on(following, len(self._places))

    @property
    def built_since(self) -> int:
        """How many nodes were built since the last call ended."""
        return self.built - self._built_before

    def end(self, number: int, place: Place | None) -> None:
        """Record that a backward call has ended, whose thread's number was seen: a call of the
        watch's own thread, or one within such a call.
        """
        end = len(self._places)
        # No handler of a signal runs between these two, as nothing is called there.
        self._calls[end:], self._places[end:] = array("Q", (number,)), [place]
        if end >= _MOST:
            self._forget(_MOST // 2)
        self.newest = self._own_thread.next
        self.latest = number
        self._begun = max(self._begun, number)  # one within it has a larger number
        self._built_before = self.built

    def passed(self, calls: Sequence[Counted]) -> None:
        """Record calls of the watch's own thread that were only counted, none within another."""
        own, last = self._own_thread, calls[-1]
        own.go_on(own.next, len(self._places))
        own.ended_at.extend(max(own.next, call.sequence_nr) for call in calls)
        self._calls.extend(call.number for call in calls)
        self._places += [call.place for call in calls]
        self.built += max(0, last.sequence_nr - own.next)
        own.next = max(own.next, last.sequence_nr)
        self._begun = max(self._begun, last.number)
        self.newest, self.latest, self._built_before = own.next, last.number, self.built
        if len(self._places) > _MOST:
            self._forget(_MOST // 2)

    def _forget(self, old: int) -> None:
        """Forget every second one of the ``old`` oldest calls."""
        for thread in self._threads.values():
            thread.go_on(thread.next, len(self._places))
            thread.forget(old)
        self._calls[:old], self._places[:old] = self._calls[:old:2], self._places[:old:2]

    def stepped(self) -> None:
        """Record that an optimizer has stepped."""
        if this_thread.number == self.own:
            self.step_before = self.last_step or self.step_before
            self.last_step = next_sequence_nr()

    def of(self, number: int) -> int:
        """Return the generation of the node with this number: the last backward call that had ended
        when it was built. If that is long ago, it is the last one that is remembered.
        """
        thread = self._threads.get(number - number % OTHER)
        if thread is None:
            return self.latest
        ended = self._ended(thread, number)
        return self._calls[ended - 1] if ended > thread.start else 0

    def _ended(self, thread: _Thread, number: int) -> int:
        """Return how many calls had ended when this thread built the node with this number.

        Threads of the engine build nodes only within calls. Seen from outside of calls, all of
        their nodes were built before the last end.
        """
        ended = self._ended_by(thread, number)
        is_in_call = thread is not self._own_thread and thread.counts and self.is_own
        return min(ended, max(thread.start, len(self._places) - 1)) if is_in_call else ended

    def _ended_by(self, thread: _Thread, number: int) -> int:
        """Return how many calls had ended when this thread's next number was this one."""
        if number >= thread.next:
            return len(self._places)
        return thread.start + bisect_right(thread.ended_at, number)

    def as_own(self, number: int, *, first: bool = False) -> int:
        """Return the number of a node that the watch's own thread built at about the same time as
        this one of any thread: the last number that it can be, or the ``first``.
        """
        thread, own = self._threads.get(number - number % OTHER), self._own_thread
        if thread is None or thread is own:
            return number
        ended = self._ended(thread, number)
        if first and not thread.counts:  # it builds at any time between two calls
            return own.at(ended - 1) - 1 if ended else own.first
        return own.at(ended) - 1 if ended < len(self._places) else own.next

    @property
    def now(self) -> int:
        """The time now, as a number that grows with each node of the watch's own thread and with
        each of its calls: if only the engine builds nodes, the thread's next number stays the same.
        """
        return self.time_at(next_sequence_nr())

    def time_at(self, number: int) -> int:
        """Return the time now, when this is the number of this thread's next node."""
        return time_at(number, self._begun)

    def time_of(self, number: int) -> int:
        """Return when a node was built; if that is not known exactly, the latest possible time."""
        thread, own = self._threads.get(number - number % OTHER), self._own_thread
        time = (self.as_own(number) + 1) * NODE
        if thread is None or thread is own:
            return time
        ended = self._ended(thread, number)
        return time + 2 * self._calls[ended] - 1 if ended < len(self._places) else time

    def time_here(self, number: int) -> int:
        """Return the same for a node as this thread sees it: it built its own nodes in their order,
        whatever other threads did meanwhile.
        """
        own = self.bits_of(this_thread.number)
        is_own = number - number % OTHER == own
        return (number - own + 1) * NODE if is_own else self.time_of(number)

    def tell_threads(
        self, numbers: Sequence[int], known: Sequence[bool], targets: Targets
    ) -> list[int]:
        """Tell which thread has built each node of a graph, and return the numbers with threads.

        For nodes that saved something, the thread is ``known`` already: a pack hook ran in it. Node
        ``i`` has edges to the nodes ``targets[i]``.

        A node is younger than the nodes that its edges lead to, and older than the nodes whose
        edges lead to it. So in its own thread its number lies between theirs. If it does not, or if
        a node of the watch's own thread has that number already, another thread has built it:

            loss.backward(create_graph=True)  # on a GPU, a thread of the engine builds the graph of
            penalty = weight.grad.square().sum()  # weight.grad, and numbers its nodes from 0
        """
        numbers = [*numbers]
        least, below = [0] * len(numbers), [self.own_next] * len(numbers)
        taken = {number for number, is_known in zip(numbers, known, strict=True) if is_known}
        order = dependencies_last(targets)
        beside: dict[int, int] = {}

        def is_other(i: int) -> bool:
            number = numbers[i]
            if known[i] or number >= OTHER:
                return False
            return number in taken or not least[i] <= number < below[i]

        def note_other(i: int) -> None:
            near = map(numbers.__getitem__, targets[i])
            others = {n - n % OTHER for n in near if OTHER < n < NO_SEQUENCE_NR} or self.others
            # Of two threads that can have built it, take the later time: a node that is taken to be
            # too old would be reported as one of an earlier iteration.
            numbers[i] = max((bits + numbers[i] for bits in others), key=self.time_of)

        def is_told(i: int) -> bool:
            return numbers[i] != NO_SEQUENCE_NR and (known[i] or numbers[i] >= OTHER)

        for i in reversed(order):
            if is_other(i):
                note_other(i)
            elif i in beside and not self._threads[beside[i]].counts:
                # Either of two threads can have built it: again, take the later time.
                numbers[i] = max(numbers[i], beside[i] + numbers[i], key=self.time_of)
            # What is built in a call has the number of what was built just before it.
            time = self.as_own(numbers[i]) + (numbers[i] >= OTHER) if is_told(i) else below[i]
            for target in targets[i]:
                below[target] = min(below[target], below[i], time)
                if not known[target] and numbers[i] >= OTHER and numbers[target] < OTHER:
                    beside[target] = numbers[i] - numbers[i] % OTHER
        met: dict[int, int] = {}
        for i in order:
            other = met.setdefault(numbers[i], i)
            if other != i and numbers[i] < OTHER:  # one of the two leads to such nodes
                leads = any(OTHER <= numbers[t] < NO_SEQUENCE_NR for t in targets[other])
                note_other(other if leads and not known[other] else i)
            least[i] = max([least[target] for target in targets[i]], default=0)
            if is_other(i):
                note_other(i)
            if is_told(i):
                least[i] = max(least[i], self.as_own(numbers[i], first=True) + 1)
        return numbers

    def around(self, number: int) -> tuple[Boundary | None, Boundary | None]:
        """Return the ends of the last backward call before a node was built, and of the first one
        after it.
        """
        thread = self._threads.get(number - number % OTHER)
        if thread is None:
            return None, None
        i = self._ended_by(thread, number)
        earlier = self._boundary(thread, i - 1) if i > thread.start else None
        later = self._boundary(thread, i) if i < len(self._places) else None
        return earlier, later

    def _boundary(self, thread: _Thread, index: int) -> Boundary:
        return thread.at(index), self._places[index], self._calls[index]


# Guarded calls that are remembered, and nodes in them, to name the call that freed what another
# call needs: nearly always one of the last. If there are more, the older half is forgotten.
_MOST_CALLS, _MOST_NUMBERS = 1_000, 250_000
# Calls since the last one like it whose nodes are compared with an older part of a graph. Training
# loops call backward at one to three lines: a GAN at two, an actor and a critic at two or three. If
# more calls came between, the graph is read.
_MOST_MEANWHILE = 8
# Calls that are searched, one after the other, for the one that ran a node. Higher: the call that
# freed a graph of long ago is still named. Lower: each search goes through fewer numbers of nodes.
_MOST_ASKED = 256


class CallHistory:
    """Records when the hooks were suspended and resumed, and which nodes the newest guarded calls
    ran.

    Nodes that are built without hooks have no mark. If a later call meets one of them freed, this
    history tells which call did that, and at which line the node was made.
    """

    def __init__(self, generations: Generations) -> None:
        self.generations = generations
        self.counted: list[Counted] = []
        """Counted calls that have ended since the others were remembered (``gather``)."""
        self._taken: list[Counted] = []
        self._calls: list[Guarded] = []
        self._nodes = 0
        self._toggles = array("Q")  # sequence numbers at which the hooks went and came, in turn
        self._toggled_at = 0  # the last call that had begun at the last of these

    def toggle(self, calls: int) -> None:
        """Note that the hooks are suspended or resumed now, after ``calls`` calls have begun."""
        self.gather()
        self._toggles.append(self.generations.own_next)
        self._toggled_at = calls

    @property
    def toggled(self) -> int:
        """The sequence number at which the hooks were suspended or resumed last."""
        return self._toggles[-1]

    def was_suspended(self, sequence_nr: int) -> bool:
        """Return whether the node with this number was built while the hooks were suspended."""
        if sequence_nr >= OTHER:  # another thread's: only what it saved tells that
            return False
        return bool(self._toggles) and bisect_right(self._toggles, sequence_nr) % 2 == 1

    def add(self, call: Call) -> None:
        """Remember a guarded call that has just ended."""
        self.gather()
        call.sequence_nr = self.generations.own_seen
        self._keep([call])

    def may_have_freed(self, numbers: list[int], calls: int, oldest: int) -> bool:
        """Return whether a call may have freed one of the nodes with these numbers.

        ``calls`` is the number of the newest call. Calls are searched from there back to the one
        that had ended when number ``oldest`` came, or to when the hooks were suspended.
        """
        if min(numbers) < self._toggles[-1]:
            return True
        nodes = set(numbers)
        meanwhile: Iterable[Guarded]
        meanwhile = chain(reversed(self.counted), reversed(self._calls[-_MOST_MEANWHILE:]))
        for call in islice(meanwhile, _MOST_MEANWHILE):
            if call.sequence_nr <= oldest:
                return False
            if call.number != calls or not (call.keep or nodes.isdisjoint(call.numbers)):
                return True
            calls -= 1
        return calls > self._toggled_at

    def take(self) -> list[Counted]:
        """Return the calls that were counted since ``take`` was called last."""
        self.gather()
        taken, self._taken = self._taken, []
        return taken

    def gather(self) -> None:
        """Remember the calls that were counted, as all other guarded calls are."""
        if self.counted:
            counted = self.counted[:]
            del self.counted[:]
            self.generations.passed(counted)
            self._taken += counted
            self._keep(counted)

    def _keep(self, calls: Sequence[Guarded]) -> None:
        self._calls += calls
        self._nodes += sum(len(call.numbers) for call in calls)
        if len(self._calls) > _MOST_CALLS or self._nodes > _MOST_NUMBERS:
            older = slice(len(self._calls) // 2)
            self._nodes -= sum(len(each.numbers) for each in self._calls[older])
            del self._calls[older]

    def count_new(self, numbers: Sequence[int]) -> int:
        """Count the nodes, without leaves, that the call before has not run and kept."""
        calls: Sequence[Guarded] = self.counted or self._calls
        if not (calls and calls[-1].keep):
            return len(numbers) - numbers.count(0)
        return len({*numbers}.difference(calls[-1].numbers, (0,)))

    def has_new_shape(self, since: int) -> bool:
        """Return whether a call after number ``since`` ran a graph of a new shape."""
        self.gather()
        return any(call.of_new_shape and call.number > since for call in self._calls)

    def recall(self, mark: NodeMark) -> None:
        """Fill in, for a node that was built without hooks, which call ran it and where it was
        made.
        """
        call = self.find(mark.sequence_nr)
        if call is None:
            return
        mark.call = call
        if call.of_new_shape:
            return
        index = call.numbers.index(mark.sequence_nr)
        mark.place = call.shape.signature.places[index]
        graph = call.shape.graph
        if graph is not None:
            mark.graph, mark.index = graph, index
            node = graph.nodes[index] if index < len(graph.nodes) else None
            if node is not None and node.module is not None:
                mark.module = (node.module, node.module_class or "")

    def find(self, number: int) -> Call | None:
        """Find the guarded call that ran the node with this number.

        It ended after the node was built, and had it in its graph. Of several, it is the last that
        freed its graph, because each of them could still read what the node saved, or else the last
        that retained it.
        """
        self.gather()
        found = None
        first = bisect_right(self._calls, number, key=attrgetter("sequence_nr"))
        if number >= OTHER:  # of another thread it is not known when that was
            first = max(0, len(self._calls) - _MOST_ASKED)
        for at, each in enumerate(self._calls[first : first + _MOST_ASKED], first):
            if number in each.numbers:
                call = self._calls[at] = each if isinstance(each, Call) else each.call()
                if found is None or found.keep or not call.keep:
                    found = call
        return found

    def who_freed(self, number: int) -> Call | None:
        """Return the call that most likely freed a node of long ago: the first that ended after the
        node was built.
        """
        _, after = self.generations.around(number)
        if after is None:
            return None
        _, place, call = after
        return Call(call, place, keep=False, open=False, completed=True)

    @property
    def shapes(self) -> set[Shape]:
        """The shapes of the graphs of the last calls."""
        return {call.shape for call in self._calls[-_MOST_ASKED:]}
