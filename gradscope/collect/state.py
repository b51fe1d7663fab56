"""Holds what one watch knows; collecting and detecting share it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from torch.autograd.graph import Node

from gradscope.collect.calls import COUNTS, Call
from gradscope.collect.generations import CallHistory, Generations
from gradscope.collect.hook_suspension import HookSuspension, Recognizer
from gradscope.collect.marks import Census, Packed, mark_of
from gradscope.collect.mutations import Mutations
from gradscope.collect.nodes import kind_of, packs_in
from gradscope.collect.notes import Notes
from gradscope.collect.observers import Observers
from gradscope.collect.saved_bytes import Ledger
from gradscope.collect.saving import DefaultHooks, Saving
from gradscope.collect.walk import StackLimit
from gradscope.formatting import counted
from gradscope.model import BackwardCall, Finding, Site
from gradscope.program.names import Names
from gradscope.program.sites import Place
from gradscope.torch_private import CALL, NO_SEQUENCE_NR, carried, next_sequence_nr

# Predictions of the last calls that are kept, to see whether one of them comes true in an error.
_MOST_FORETOLD = 100
_AROUND = 1.5  # measured: what the program needs longer by that, of the time that a look takes,
_CACHES = 75e-6  # and the seconds to fill the processor's caches again, before the call and after
_PER_NODE = 7e-6  # seconds that hooks take of a node that is built under them, measured
# Calls that are passed over between two looks at the clock while the budget is spent: with more,
# it would stay unused for long once calls become slower.
_MOST_PASSED = 256
# Waste below both this many bytes and this share of the peak is counted and not reported: a
# validation of a few samples without no_grad() keeps some KB for a moment, and fixing that gains
# nothing.
_LEAST_TOLD, _LEAST_SHARE = 1_000_000, 0.01


class Overhead:
    """Keeps the overhead of a watch within a share of the time since it began: once that is spent,
    calls are not inspected.

    ``passed`` counts those calls, and ``within`` those in progress; ``ended`` is the number of the
    next node when the last one ended, ``before_clock`` how many come before the clock is asked.
    """

    def __init__(self, percent: float) -> None:
        self.percent = percent
        self.passed = self.within = self.ended = self.before_clock = 0
        self.rests = False
        self._started, self._spent = time.perf_counter(), 0.0
        self._asked = 0.0, 0
        """When the clock was asked last, and how many calls had passed by then."""

    @property
    def left(self) -> float:
        """The seconds that may be spent now; less than 0 if it is spent."""
        return self.percent / 100 * (time.perf_counter() - self._started) - self._spent

    def rest(self) -> None:
        """Skip as many calls as will come, at the recent rate, until the budget has recovered."""
        (before, passed), self._asked = self._asked, (time.perf_counter(), self.passed)
        pace = (self._asked[0] - before) / (self.passed - passed or 1)
        wait = -self.left / self.percent * 100
        self.before_clock = min(_MOST_PASSED, int(wait / pace))

    def end(self, *, is_own: bool) -> None:
        """End a call that was not looked at; what it has built itself is as old as it."""
        self.within -= 1
        self.before_clock -= self.before_clock > 0
        self.passed += not self.within
        if is_own:
            self.ended = next_sequence_nr()

    def spend(self, since: float, nodes: int = 0) -> None:
        """Count the time since then, with what it costs the program to have its caches emptied, and
        so many nodes that were built under hooks.
        """
        self._spent += _AROUND * (time.perf_counter() - since) + _CACHES + _PER_NODE * nodes

    @property
    def notes(self) -> tuple[str, ...]:
        """What the report says of it."""
        calls = counted(self.passed, "backward call")
        note = f"{calls} not inspected (budget {self.percent:g} %); the totals exclude them"
        return (note,) if self.passed else ()


# The first calls, which cost most, are all timed; of the others, one in 17: no divisor of the
# iterations after which more is inspected (4, 6, 8, 12, 16 …).
_TIMED_ALL, TIMED_EACH = 34, 17
_ENOUGH_TIMED = 200  # calls, for what they took to say something of the loop, not of its start
# How much longer the program's own part takes, of the time that is taken from it: it runs with cold
# caches, and nodes that Python has seen die more slowly. Measured in CPU time with MLPs of 2 to 8
# layers, an LSTM and a transformer: 0.4 to 1.2.
_AFTERWARDS = 0.7


class Cost:
    """Measures what a watch takes of the program's time, by samples and its own clock."""

    def __init__(self) -> None:
        self._began = self._last = self._spent = 0.0
        self._calls = 0

    def add(self, calls: int, since: float, nodes: int = 0) -> None:
        """Count the time since then, where it is one of those of which it is taken, and so many
        nodes that were built under hooks; so many calls have begun.
        """
        if calls > _TIMED_ALL and calls % TIMED_EACH:
            return
        self._calls, self._last = calls, time.perf_counter()
        self._began = self._began or since
        each = 1 if calls <= _TIMED_ALL else TIMED_EACH
        self._spent += each * (self._last - since + _PER_NODE * nodes)

    @property
    def share(self) -> float:
        """The share of the time from the first call to the last; 0 of too few."""
        if self._calls < _ENOUGH_TIMED:
            return 0.0
        taken = min(1.0, self._spent / (self._last - self._began))
        return taken + _AFTERWARDS * taken * (1 - taken)


_THREAD_KEY = "gradscope.thread"


class State:
    """The knowledge of one watch: counts, names, generations, changes in place, and where it
    stands.

    ``report`` announces a finding, ``hooked`` says whether the watch has saved-tensor hooks at all;
    the default is a watch that no call goes through, for looks outside of one. ``foreseen`` has the
    predictions of failures by the number of the call that frees, ``left_out`` the places of waste
    that is not worth telling, ``unread`` what has ended a reading of the code ahead, how often.
    ``failed`` is the last call that failed and that no finding explains, by its number, with the
    record of an earlier one that has run the same nodes.
    """

    def __init__(
        self,
        report: Callable[[Finding], None] = lambda finding: None,
        notes: Notes | None = None,
        *,
        hooked: bool = False,
        budget: Overhead | None = None,
    ) -> None:
        self.started, self.clock = time.perf_counter(), time.time()
        self.hooked = hooked
        self.budget = budget
        self.cost = Cost()
        self.active = True
        self.looks = True
        """Whether graphs can be looked at on this torch."""
        self.names = Names()
        self.notes = notes or Notes()
        self.observers = Observers(report, self.notes)
        self.ledger = Ledger(self.observers, self.notes)
        self.census = Census()
        self.generations = Generations()
        self.saving = Saving(self.ledger, self.names, self.generations)
        self.hooks = DefaultHooks(self.saving, lambda: self.suspension.before_theirs())
        self.mutations = Mutations()
        self.stack_limit = StackLimit()
        self.history = CallHistory(self.generations)
        self.recognizer = Recognizer(self.history, self.census, self.stack_limit.room_for)
        self.suspension = HookSuspension(self)
        self.foreseen: dict[int, Finding] = {}
        self.left_out: set[Site | None] = set()
        self.unread: Counter[str] = Counter()
        self.foretold: deque[Finding] = deque(maxlen=_MOST_FORETOLD)
        self.running: dict[Call, None] = {}
        self.alarms: dict[Place | None, range] = {}  # the calls that are worth a close look
        self.failed: tuple[int, BackwardCall | None] | None = None
        self.calls = self.guarded = self.steps = 0

    @property
    def call(self) -> Call | None:
        """The innermost backward call that this thread runs, be it one of the engine's."""
        call = carried(CALL) if self.running else None
        return call if call in self.running else None

    def saved_by(self, node: Node) -> list[Packed]:
        """Return what a node saved. Torch may number those of two threads alike: then a node that
        no look has met is asked.
        """
        mark = mark_of(node)
        if mark is None and self.saving.other_thread:
            return packs_in(node, kind_of(type(node)))
        waiting = self.ledger.pending.get(node._sequence_nr(), ()) if mark is None else mark.packs
        return [packed for reference in waiting if (packed := reference()) is not None]

    def number_of(self, node: Node) -> int:
        """Return the number of a node, with the thread in it as far as that is known."""
        mark = mark_of(node)
        if mark is not None:
            return mark.sequence_nr
        number = node._sequence_nr()
        if self.saving.other_thread and number != NO_SEQUENCE_NR:
            bits = [self.generations.bits_of(p.thread) for p in self.saved_by(node)]
            number += max(bits) if bits else self.noted(node)
        return number

    def note_other(self, node: Node) -> None:
        """Note that the only other thread has built a node."""
        metadata: Any = node.metadata
        metadata[_THREAD_KEY] = bits = self.generations.others[0]
        self.generations.see_built(bits + node._sequence_nr(), counts=True)

    def noted(self, node: Node) -> int:
        """Return the upper bits of the numbers of the thread that is noted to have built a node."""
        if not self.generations.others:
            return 0
        metadata: Any = node.metadata
        bits: int = metadata.get(_THREAD_KEY, 0)
        return bits if bits in self.generations.others else 0

    @property
    def passes(self) -> bool:
        """Whether there were backward calls that were not looked at, as the budget was spent."""
        return self.budget is not None and self.budget.passed > 0

    @property
    def totals(self) -> dict[str, Any]:
        """What was saved, freed and dropped in all; what guarded calls did is reckoned."""
        both = zip(COUNTS, self.ledger.counts(), self.recognizer.reckoned, strict=True)
        return {name: counted + reckoned for name, counted, reckoned in both}

    @property
    def peak_bytes(self) -> int:
        """The most bytes that graphs have held at once."""
        return max(self.ledger.highest_bytes, self.ledger.peak_bytes)

    def is_worth_telling(self, site: Site | None, nbytes: int) -> bool:
        """Return whether waste of so many bytes matters; where it does not, count its place."""
        if nbytes >= min(_LEAST_TOLD, _LEAST_SHARE * self.peak_bytes):
            self.left_out.discard(site)
            return True
        self.left_out.add(site)
        return False

    def elapsed(self) -> float:
        """Return the seconds since the watch began."""
        return time.perf_counter() - self.started

    def end(self, call: Call, *, completed: bool) -> None:
        """End a call."""
        call.end(completed=completed)
        del self.running[call]
        if self.hooked and not self.suspension.on:
            self.hooks.resume()  # what was done to its stack of hooks the engine has forgotten
        if call.own:
            call.builds = self.generations.see() != call.sequence_nr
        if self.saving.is_shared:
            self.suspension.block()

    def go_on(self, call: Call) -> None:
        """Take it that what is built from now on is built after a call that has ended."""
        if call.own:
            self.generations.end(call.number, call.place)
        call.pattern.ended = self.generations.newest
        call.time = self.generations.now
        if self.stack_limit.is_raised:
            self.restore_stack()

    def restore_stack(self) -> None:
        """Put the stack limit back, unless deep graphs that were looked at are still alive."""
        if self.census.alive < self.stack_limit.OTHER_THREAD_NODES:
            self.stack_limit.restore()
