"""Reports what grows from iteration to iteration: carried graphs, holders of old ones, cycles."""

from __future__ import annotations

import copy
import sys
import time
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from types import FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from gradscope.code.statements import Bound, bound_of, store_of
from gradscope.collect.available_memory import free_memory
from gradscope.collect.calls import Call, Counted, Guarded
from gradscope.collect.generations import this_thread
from gradscope.collect.inspection import Inspection
from gradscope.collect.observers import MOST_UNTOLD, Observer
from gradscope.collect.state import State
from gradscope.detect.suspects import (
    MOST_TICKS,
    SIGHTINGS,
    CallLoop,
    Emptied,
    Key,
    Scan,
    Sightings,
    Spans,
    Suspect,
    follow,
)
from gradscope.formatting import gathered
from gradscope.model import BackwardCall, Finding, Severity, Site, Trend
from gradscope.model.variable_paths import Path
from gradscope.program.containers import closure_of
from gradscope.program.reach import contexts, tracked
from gradscope.program.sites import Place, user_frames
from gradscope.program.tensors import held_node, is_held_leaf
from gradscope.program.undisturbed import TracePaused
from gradscope.rules import gs301, gs302, gs304
from gradscope.rules.base import NODE_BYTES, Grown
from gradscope.torch_private import DisableTorchFunction

# Scans that are made however long they take, so that no clock changes what is found: those of one
# loop up to iteration 12,288. Later ones have to be cheap.
_FREE_SCANS = 24
# Share of the run time that later scans may take, and those that confirm what has grown once.
_SHARE, _SHARE_TO_CONFIRM = 0.01, 0.05
# Nodes in one scan: each takes stack when it is destroyed, 6.4 MB for as many (``StackLimit``).
_TOUCHED = 20_000
# Saved tensors since the last backward call after which a scan comes; the next one comes when twice
# as many were saved, and so on. So there are few scans, however long the program goes without a
# call:
#
#     for step in range(10_000):
#         state = environment(policy(state))  # no backward call before the end of the episode
_FIRST_LOOK = 8
# Iterations before any optimizer has stepped, and after, from which on a loop is judged: while it
# runs, and at its end. Before a step they may be micro-batches, whose losses are kept on purpose:
#
#     for i in range(1, 121):
#         losses.append(net(x[i]).mean() / 40)
#         losses[-1].backward()
#         if i % 40 == 0:
#             opt.step()
#             losses = []
_ENOUGH, _ENOUGH_AT_END = (24, 8), (6, 4)
# Iterations that one scan must find if no second scan can see them grow.
_ENOUGH_AT_ONCE = 4
# Calls at one place, in a program that trains nothing: the layers, inner loops and searches of
# one step are taken to make fewer, so that a long program is told before its end:
#
#     for step in range(600):
#         net(image).sum().backward()  # saliency maps
#         kept.append(net(image))
_MORE_THAN_ONE_STEP = 500
# Places of backward calls that are followed. Programs have few; code made by exec() in a loop has
# new ones without end.
_MOST_LOOPS = 1_000
# Loops that are scanned once more at the end. Each scan takes up to the five seconds of ``LAST``.
_MOST_LOOKS_BACK = 8
# Iterations held by a dict: its keys may come again, as long as the program goes on; when that is
# over; and if it holds some from the beginning to the end. This one is full after its first
# epoch:
#
#     for epoch in range(5):
#         for i, x in enumerate(data):
#             if i not in cache:
#                 cache[i] = net(x)
#             head(cache[i].detach()).mean().backward()
#             opt.step()
_ENOUGH_KEYS, _ENOUGH_AT_THE_END, _ENOUGH_OF_ALL = 100, 16, 8
# Iterations of which a holder has graphs before it is emptied: the losses of ten may be printed
# together.
_ENOUGH_UNTIL_EMPTIED = 11
# Bytes below which a holder that is emptied from time to time gets advice and not a warning: a list
# of losses that are printed every ten iterations keeps some KB for a moment.
_MUCH = 1 << 20
# Tensors in cycles of the same kind: the program may hold one or two until its next round.
_FEWEST = 3


class Growth(Observer):
    """Reports what keeps graphs of earlier iterations: GS301, GS302 and GS304.

    It scans the program's variables at iterations 4, 6, 8, 12, 16, 24 … of each loop, and compares
    what each holder holds from scan to scan. Later scans are made only while they are cheap.
    """

    def __init__(self, watch: State) -> None:
        self.watch = watch
        self.told_between_calls = False
        self._loops: dict[Place, CallLoop] = {}
        self._between: dict[Key, Sightings] = {}
        self._unmet: dict[Key, Sightings] = {}
        """What grew between two calls, and was run by no call since."""
        self._emptied: dict[Key, Emptied] = {}
        self._run: set[Key] = set()
        """Holders whose graphs a later call has run: they collect graphs for that call."""
        self._creates = False
        self._told: set[Key] = set()
        self._last: dict[Key, tuple[_Facts, CallLoop, Sightings]] = {}
        """What was known of a holder when it was reported, the last if it is gone since."""
        self._cycles: list[tuple[CallLoop, tuple[str, str, Site | None], float]] = []
        self._attributes: set[str | None] = set()
        self._touched = 0
        self._thread = this_thread.number
        self._steps_before = watch.steps
        self._scans = 0
        self._seconds = 0.0
        self._most_packed = 0
        self._packed_before = watch.ledger.saved_tensors
        watch.ledger.look_at = self._packed_before + _FIRST_LOOK

    def switch_off(self) -> None:
        """Ask the ledger for no more notifications."""
        self.watch.ledger.look_at = sys.maxsize

    def outgrown(self) -> None:
        """Start again, because more graphs are alive than before: what grows from now on counts."""
        self._loops.clear()

    @property
    def told_of(self) -> set[Site | None]:
        """The lines of the calls whose growth was reported."""
        return {loop.record.site for loop in self._loops.values() if loop.done}

    # with backward calls

    def before_call(self, call: Call, look: Inspection, frame: FrameType | None) -> None:
        """Count the iteration, and remember for a scan which nodes the call runs through."""
        run = (t.sequence_nr for i, t in enumerate(look.marks) if look.will_run(i))
        self._begin(call, call.record, run, (mark.sequence_nr for mark in look.marks))

    def _begin(
        self, call: Guarded, record: BackwardCall, run: Iterable[int], numbers: Iterable[int]
    ) -> None:
        waits = record.create_graph and record.kind == "grad"
        self._creates |= record.create_graph and not waits
        self._go_on(run)
        loop = None if call.parent is not None else self._loop(call, waits=waits)
        if loop is not None:
            loop.waits |= waits
            loop.begin(call.number, call.steps - self._steps_before)
            if loop.waits and len(loop.ended) < MOST_TICKS:
                loop.begun[len(loop.ended) :] = array("Q", (call.began,))
        self._unmet |= self._between
        emptied = [key for key in self._emptied if key not in self._last]
        if self._unmet or emptied or (loop is not None and loop.due):
            met = frozenset(numbers)
            self._unmet = {k: s for k, s in self._unmet.items() if s.newest.roots.isdisjoint(met)}
            for key in emptied:
                suspect = self._emptied[key].at_most.newest
                if not suspect.roots.isdisjoint(met):
                    self._run |= suspect.keys
                    del self._emptied[key]
            if loop is not None and loop.due:
                loop.numbers = met

    def after_call(self, call: Call, frame: FrameType | None) -> Iterable[Finding]:
        """Scan the program's variables if it is time to, and report what has grown."""
        loop = self._end(call)
        if loop is None or call.record.exception is not None:
            return ()
        return self._scan_loop(loop, call.fresh, frame)

    def guarded(self, calls: Sequence[Guarded], frame: FrameType | None) -> Iterable[Finding]:
        """Do the same for guarded calls, of which only the last can be due for a scan."""
        loop, is_quiet = None, not (self._between or self._unmet or self._emptied or self._waits)
        for each in calls:
            if is_quiet and isinstance(each, Counted):  # nothing is looked for in its graph
                if (own := self._loop(each)) is not None:
                    own.begin(each.number, each.steps - self._steps_before)
                    own.end(each)
                continue
            if (record := each.shape.record) is not None:
                self._begin(each, record, each.numbers, each.numbers)
            loop = self._end(each)
        return () if loop is None else self._scan_loop(loop, calls[-1].fresh, frame)

    def patience(self, place: Place | None) -> int:
        """Return the number of calls before one is due for a scan."""
        loop = self._loops.get(place) if place is not None else None
        if loop is None or self._between or self._unmet:
            return 0
        if any(each.waits and each.count > each.usual for each in self._loops.values()):
            return 0
        return MOST_UNTOLD if loop.waits else min(MOST_UNTOLD, loop.calls_until_due)

    @property
    def _waits(self) -> bool:
        """Whether some calls may be steps within something larger (``CallLoop.waits``)."""
        return any(loop.waits for loop in self._loops.values())

    def _end(self, call: Guarded) -> CallLoop | None:
        """End an iteration; return its loop if it is due for a scan."""
        ledger = self.watch.ledger
        self._most_packed = max(self._most_packed, ledger.saved_tensors - self._packed_before)
        self._packed_before = ledger.saved_tensors
        ledger.look_at = ledger.saved_tensors + max(_FIRST_LOOK, 2 * self._most_packed)
        self._between.clear()
        place = None if call.parent is not None else call.place
        loop = None if place is None else self._loops.get(place)
        if loop is None or loop.call != call.number:
            return None
        loop.end(call)
        return loop if loop.due else None

    def _scan_loop(self, loop: CallLoop, fresh: int, frame: FrameType | None) -> Iterable[Finding]:
        is_over = loop.done and not self._emptied and self._told.isdisjoint(loop.holders)
        if is_over or not self._is_cheap(loop.holders):
            return ()
        alive = self.watch.census.alive - fresh  # the newest graph's size varies with its sequence
        loop.alive.append((loop.count, alive, self.watch.ledger.live_tensors))
        frames = user_frames(frame) or ([frame] if frame is not None else [])
        scanned = self._scan(frames, loop, loop.numbers)
        loop.numbers = frozenset()
        if scanned is None:
            return ()
        loop.holders = follow(loop.holders, loop.count, scanned)
        self._note_emptied(loop)
        self._look_for_unheld(loop, frames)
        doubts, grows = self.watch.suspension.doubts, [s.grows for _, s in self._untold(loop)]
        (doubts.add if any(grows) else doubts.discard)(self)
        told = [] if loop.waits else [*self._judge(loop, ended=False), *self._again(loop)]
        told += self._tell(e for e in self._were_emptied(loop) if e.level is Severity.WARNING)
        self.watch.suspension.leaks |= loop.done
        return told

    def after_program(self, main: ModuleType) -> None:
        """Scan what the program leaves in its variables, if pack hooks have not shown it."""
        self._look_back([_frame_in(main)])

    def at_end(self) -> Iterator[Finding]:
        """Judge the loops that ended before they were scanned often enough, and what came after."""
        if frames := user_frames(sys._getframe(1)):
            self._look_back(frames)
        for loop in self._loops.values():
            yield from self._judge(loop, ended=True)
            if loop.unheld is not None and not loop.done:
                yield _finding(loop.unheld)
        late = [*self._were_emptied(), *self._met_by_none()]
        self.told_between_calls |= any(each.loop is None for each in late)
        yield from self._final(late)
        self.watch.suspension.doubts.discard(self)

    def _met_by_none(self) -> Iterator[_Held]:
        """Yield what grew between calls, and was run by none."""
        if sys.exception() is not None:
            return  # without the exception, a backward call may have come
        for key, sightings in (self._unmet | self._between).items():
            suspect = sightings.newest
            often = len(sightings.seen) > 1 or suspect.iterations >= _ENOUGH_AT_ONCE
            bound = _bound(suspect, ended=True)
            is_emptied, is_last = bound is Bound.EMPTIED, key in self._between
            # A dict whose keys come again may hold graphs that calls have run. A holder that is
            # emptied may collect graphs for a call that was still to come.
            is_new = min(suspect.roots) >= self.watch.generations.newest
            may_be_run = is_last if is_emptied else bound is Bound.KEYED and not is_new
            grown = sightings.grows and often and not may_be_run
            if grown and self._is_untold(suspect):
                level = Severity.WARNING if is_last else self._level(sightings)
                facts = _facts(self.watch, sightings, None, level, emptied=is_emptied)
                yield _Held(key, facts, None, sightings)

    def _were_emptied(self, loop: CallLoop | None = None) -> Iterator[_Held]:
        """Yield holders whose graphs no call has run before the program emptied them.

        Of one ``loop``, yield those for which as many iterations have come since as before, so that
        a call had time to come. Without a loop, yield all.
        """
        for key, each in self._emptied.items():
            waited = loop is None or (loop is each.loop and loop.count >= 2 * each.at_most.count)
            if each.seen and waited and self._is_untold(each.at_most.newest):
                level = self._level(each.at_most)
                facts = _facts(self.watch, each.at_most, each.loop, level, emptied=True)
                yield _Held(key, facts, each.loop, each.at_most)

    def _is_untold(self, suspect: Suspect) -> bool:
        return self._told.isdisjoint(suspect.keys)

    def _level(self, sightings: Sightings) -> Severity:
        """Return the severity of a holder that keeps graphs for some time: a warning if they take
        more memory than the graph of any one call.
        """
        calls = (each.record.saved_bytes for each in self._loops.values())
        much = max(_MUCH, *calls, 0)
        held = _grown(self.watch, sightings, emptied=True).total
        return Severity.WARNING if held > much else Severity.ADVICE

    def _tell(self, found: Iterable[_Held]) -> Iterator[Finding]:
        """Report the holders of graphs; of those that one line fills, the one with the most."""
        for each in _by_line(found):
            self._told |= each.sightings.newest.keys
            if each.loop is not None:
                self._last[each.key] = each.facts, each.loop, each.sightings
            yield _finding(each.facts)

    def _go_on(self, numbers: Iterable[int]) -> None:
        """Start over with the loops that have built what a call runs: they were steps of it."""
        waiting = [place for place, loop in self._loops.items() if loop.begun]
        if not waiting:
            return
        run = [self.watch.generations.time_here(number) for number in numbers]
        for place in waiting:
            loop = self._loops[place]
            if any(map(loop.built, run)):
                usual = max(loop.count, loop.usual)
                self._loops[place] = CallLoop(loop.last, loop.steps, waits=True, usual=usual)

    def _loop(self, call: Guarded, *, waits: bool = False) -> CallLoop | None:
        if call.place is None or this_thread.number != self._thread:
            return None
        loop = self._loops.get(call.place)
        steps = call.steps - self._steps_before
        begins = len(self._loops) < _MOST_LOOPS if loop is None else steps and not loop.steps
        if begins:
            # What was counted before the first step was one iteration.
            before = () if loop is None else loop.ticks[-1:]
            loop = self._loops[call.place] = CallLoop(call, steps, waits=waits, before=before)
        return loop

    def _judge(self, loop: CallLoop, *, ended: bool) -> Iterator[Finding]:
        if loop.done or loop.count < (_ENOUGH_AT_END if ended else _ENOUGH)[bool(loop.steps)]:
            return
        grown = [each for each in self._untold(loop) if self._has_grown(loop, each[1], ended=ended)]
        if not loop.steps and loop.waits:  # nothing tells the holders of one graph apart
            grown = sorted(grown, key=lambda each: -each[1].newest.nodes)[:1]
        grads = [g for g in grown if self._creates and g[1].newest.names[0].attribute == "grad"]
        if grads:
            # The one that holds the most stands for the others, and for what was computed of them.
            self._told.update(*(sightings.newest.keys for _, sightings in grads))
            loop.done = True
            sightings = max((s for _, s in grads), key=lambda s: s.newest.nodes)
            suspect = sightings.newest
            nodes, name = suspect.each[0], suspect.names[0].text
            yield self._tell_cycle(loop, ("grad", name, None), suspect.iterations, nodes)
            return
        found = []
        for key, sightings in grown:
            loop.done = True
            self._told |= sightings.newest.keys
            attribute = sightings.newest.names[0].attribute
            if attribute is None or attribute not in self._attributes:
                found.append(_Held(key, _facts(self.watch, sightings, loop), loop, sightings))
            # else it was told by the name that it has elsewhere
        self._attributes |= {each.sightings.newest.names[0].attribute for each in found}
        yield from self._tell(found)
        if not loop.holders and loop.grows(ended=ended):
            (first_seen, before, _), (last, now, _) = loop.alive[loop.sought], loop.alive[-1]
            loop.sought = len(loop.alive)
            if (cycle := _find_cycle(self.watch, creates=self._creates)) is not None:
                loop.done = True
                each = (now - before) / (last - first_seen)
                yield self._tell_cycle(loop, cycle, last, each)

    def _tell_cycle(
        self, loop: CallLoop, cycle: tuple[str, str, Site | None], seen: int, each: float
    ) -> Finding:
        self._cycles.append((loop, cycle, each))
        return gs304.finding(loop.record, *cycle, seen, each)

    def _untold(self, loop: CallLoop) -> list[tuple[Key, Sightings]]:
        return [each for each in loop.holders.items() if each[0] not in self._told]

    def _has_grown(self, loop: CallLoop, sightings: Sightings, *, ended: bool) -> bool:
        """Return whether a holder was seen to grow, and nothing in the code says that it will stop.

        ``ended``: it has held nearly every iteration to the end.
        """
        if not sightings.grows:
            return False
        suspect = sightings.newest
        holds_all = ended and suspect.iterations >= sightings.count - 1
        if not (loop.steps or self._is_trained(loop, sightings)):
            is_grad = loop.record.kind == "grad"
            return self._lasts(loop, sightings) if ended and is_grad else holds_all
        if holds_all:
            return True
        if len(sightings.seen) < SIGHTINGS or not (ended or self._is_trained(loop, sightings)):
            return False
        bound = _bound(suspect, ended=ended)
        enough = _ENOUGH_AT_THE_END if ended else _ENOUGH_KEYS
        if ended and sightings.seen[-1][0] == sightings.count:
            oldest = self.watch.generations.time_here(min(suspect.roots))
            # Of the beginning: with `cache[i] = net(x)` in each epoch, all are of the last one.
            if bisect_right(loop.ticks, oldest) <= loop.count // 4:
                enough = _ENOUGH_OF_ALL
        return bound is Bound.NONE or (bound is Bound.KEYED and suspect.iterations >= enough)

    def _note_emptied(self, loop: CallLoop) -> None:
        """Note what the holders that the code empties hold at most, and which of them it has
        emptied.
        """
        for key, each in self._emptied.items():
            if each.loop is loop:
                now = loop.holders.get(key)
                held = 0 if now is None else _grown(self.watch, now, emptied=True).iterations
                at_most = _grown(self.watch, each.at_most, emptied=True).iterations
                each.seen |= 2 * held <= at_most
        for key, sightings in loop.holders.items():
            suspect, known = sightings.newest, self._emptied.get(key)
            if known is not None and known.loop is loop:
                before = known.at_most.newest
                # Of a larger one no more is looked at, but it is the same one that has grown.
                goes_on = suspect.cut and min(suspect.roots) == min(before.roots)
                if suspect.iterations > before.iterations or goes_on:
                    known.at_most = copy.copy(sightings)
            elif known is None and (
                len(sightings.seen) >= SIGHTINGS
                and suspect.iterations >= _ENOUGH_UNTIL_EMPTIED
                and not (loop.waits or self.watch.passes)
                and self._run.isdisjoint(suspect.keys)
                and self._is_trained(loop, sightings)
                and _bound(suspect, ended=False) is Bound.EMPTIED
            ):
                self._emptied[key] = Emptied(loop, copy.copy(sightings))

    def _look_for_unheld(self, loop: CallLoop, frames: Sequence[FrameType]) -> None:
        """Note whether of most iterations, in each of which an optimizer has stepped, a tensor with
        its graph lives that no scan has met.

        It is sought among all that Python's collector tracks, so it is asked last.
        """
        known = [sightings.newest for sightings in loop.holders.values()]
        held = sys.maxsize if any(n.cut for n in known) else sum(n.nodes for n in known)
        lives = loop.steps and loop.count >= _ENOUGH[0] and loop.lasts()
        if not lives or 2 * held > loop.alive[-1][1] or not (room := self._room()):
            loop.unheld = None
            return
        started = time.thread_time()
        with TracePaused():
            found = Scan(frames, Spans(self.watch, loop.ticks, room)).unheld(known)
        self._seconds += time.thread_time() - started
        loop.unheld = None
        if found is not None and found.iterations > loop.count // 2:
            each, names = Sightings(loop.count, found), found.names
            grown = _grown(self.watch, each)
            stored = store_of(names, found.files, container=True)[0] if names else found.built
            holder = names[0] if names else None
            told = True, found.is_scalar, self.watch.calls
            loop.unheld = gs302.KeptAlive(loop.record, holder, stored, grown, *told)

    @staticmethod
    def _is_trained(loop: CallLoop, sightings: Sightings) -> bool:
        """Return whether a leaf that a holder's graphs reach has changed since it was first seen,
        or may have, where the program changes them through ``.data``; or whether there were more
        calls than one step makes.
        """
        if loop.count > _MORE_THAN_ONE_STEP and not loop.waits:
            return True
        then, now = sightings.seen[0][1].versions, sightings.newest.versions
        return loop.writes_unseen or any(now.get(i, then[i]) != then[i] for i in then)

    @staticmethod
    def _lasts(loop: CallLoop, sightings: Sightings) -> bool:
        """Return whether what many calls of ``autograd.grad`` have built lives on, in a program
        that trains nothing: this holder has the most of it, and is not a local of a function that
        may be one pass of many, unless the calls go back over all of it for graphs that nothing
        runs.
        """
        suspect, name = sightings.newest, sightings.newest.names[0]
        is_there = sightings.count == loop.count or not name.is_local
        grew = len(sightings.seen) >= SIGHTINGS and sightings.seen[-1][0] == sightings.count
        is_most = 2 * suspect.iterations > sightings.count and (grew or loop.lasts())
        return is_most and (is_there or (loop.waits and suspect.in_graph))

    def _look_back(self, frames: list[FrameType]) -> None:
        """Look once more at what is still there when the program or the watch ends."""
        if self.watch.suspension.on or self._between or self._unmet:
            # No pack hook has shown what was built since the last call, or the last look; and what
            # no call has met may be there to the end.
            self._look_between(frames, last=True)
        alive = self.watch.census.alive
        loops = [e for e in self._loops.values() if e.holders or alive > e.count >= _ENOUGH_AT_ONCE]
        for loop in loops[:_MOST_LOOKS_BACK]:
            scanned = self._scan(frames, loop, loop.numbers, last=True)
            # The function may be over by whose variables it was known, or wait while others run.
            newest = (sightings.newest for sightings in loop.holders.values())
            seen = {key: suspect for suspect in newest for key in suspect.keys}
            most = loop.count + loop.before
            known = []
            for each in scanned or ():
                if each.key in seen or each.iterations >= most - 1:
                    old, times = seen.get(each.key, each), min(each.iterations, most)
                    same = each._replace(iterations=times, in_graph=old.in_graph, names=old.names)
                    known.append(same)
            loop.holders |= follow(loop.holders, loop.count, known)

    def _again(self, loop: CallLoop) -> Iterator[Finding]:
        """Bring up to date what is said of the holders that this scan has met again."""
        for key, (told, of, _) in self._last.items():
            if of is loop and key in loop.holders and key not in self._emptied:
                grown = _grown(self.watch, loop.holders[key])
                yield replace(_finding(told._replace(grown=grown)), count=0)

    def _final(self, late: Collection[_Held]) -> Iterator[Finding]:
        """Say the last figures of what was told before, and what is known ``late``: with the former
        where one line fills both.
        """
        for loop, cycle, each in self._cycles:
            yield replace(gs304.finding(loop.record, *cycle, loop.count, each), count=0)
        causes = set()
        for key, (told, loop, sightings) in self._last.items():
            if (cause := _finding(told).cause) in causes:
                continue
            causes.add(cause)  # of two names for one thing the first was said
            loops = [each for each in self._loops.values() if key in each.holders]
            seen = [(loop, sightings), *((each, each.holders[key]) for each in loops)]
            loop, sightings = max(seen, key=lambda each: each[1].newest.iterations)
            if is_emptied := isinstance(told, gs302.KeptAlive) and told.emptied:
                sightings = self._emptied[key].at_most
            grown = _grown(self.watch, sightings, emptied=is_emptied)
            if sightings.count < loop.count and not is_emptied:
                of = sightings.count + loop.before, loop.count + loop.before
                grown = grown._replace(seen=of)
            known = _Held(key, told._replace(grown=grown), loop, sightings)
            same = [e for e in late if e.line == known.line and known.level.rank <= e.level.rank]
            late = [each for each in late if each not in same]
            yield from (replace(_finding(e.facts), count=0) for e in _by_line([known, *same]))
        yield from self._tell(late)

    # between backward calls, or without any

    def grown(self, frame: FrameType) -> None:
        """Look, ever more rarely, when much has been saved since the last backward call."""
        ledger = self.watch.ledger
        since = ledger.saved_tensors - self._packed_before
        ledger.look_at = ledger.saved_tensors + max(_FIRST_LOOK, since)
        if self.watch.call is None and self._is_cheap(self._between):
            self._look_between(user_frames(frame) or [frame])

    def _look_between(self, frames: list[FrameType], *, last: bool = False) -> None:
        scanned = self._scan(frames, None, last=last)
        if scanned is None:
            return
        found = follow(self._between, 0, scanned)
        self._unmet |= {key: each for key, each in self._between.items() if key not in found}
        # The last look brings figures up to date; variables may be gone by then.
        self._between = self._between | found if last else found

    # both

    def held_in(
        self, frames: list[FrameType], *, untrained: bool
    ) -> Iterator[tuple[Finding, frozenset[int]]]:
        """Yield what the variables of frames keep of several iterations of the busiest loop, or of
        what is ``untrained`` through, with the numbers of the tensors' nodes. Where calls were not
        looked at, much that was built before the last one is of many iterations, too.
        """
        newest = self.watch.generations.newest
        busiest = sorted(self._loops.values(), key=lambda each: -each.count)[:1]
        for loop in [*busiest, None] if untrained or self.watch.passes else busiest:
            for suspect in self._scan(frames, loop, last=True) or ():
                is_old = suspect.iterations >= _ENOUGH_AT_THE_END and min(suspect.roots) < newest
                if loop or untrained or is_old:
                    yield _finding(_facts(self.watch, Sightings(0, suspect), loop)), suspect.roots

    def _is_cheap(self, following: dict[Key, Sightings]) -> bool:
        """Whether scans took a small share of the run's time; more to confirm a sighting."""
        share = _SHARE_TO_CONFIRM if following else _SHARE
        is_free = self._scans < _FREE_SCANS
        return is_free or self._seconds < share * (time.perf_counter() - self.watch.started)

    def _room(self) -> int:
        """Return how many nodes the next scan may touch: each takes stack when it is destroyed.

        None outside of the watch's thread.
        """
        if this_thread.number != self._thread:
            return 0
        room = self.watch.stack_limit.room_for(self._touched + _TOUCHED)
        return max(0, min(_TOUCHED, room - self._touched))

    def _scan(
        self,
        frames: Sequence[FrameType],
        loop: CallLoop | None,
        numbers: frozenset[int] = frozenset(),
        *,
        last: bool = False,
    ) -> list[Suspect] | None:
        """Return the holders of graphs of several iterations of a loop, or without one of graphs
        built between calls; None if no node may be touched.
        """
        room = self._room()
        if not room or not frames:
            return None
        started = time.thread_time()
        spans = Spans(self.watch, () if loop is None else loop.ticks, room)
        with TracePaused():
            scanned = Scan(frames, spans, numbers, loop is None, last).run()
        if scanned or loop is None:  # else all that was touched goes with the iteration
            self._touched += spans.touched
        self._scans += 1
        self._seconds += time.thread_time() - started
        return scanned


def _frame_in(module: ModuleType) -> FrameType:
    """A frame that leads to the variables of a module whose code has run."""

    def frame(get: Callable[[], FrameType] = sys._getframe) -> FrameType:
        return get()

    return FunctionType(frame.__code__, vars(module), argdefs=frame.__defaults__)()  # type: ignore[no-any-return]


_Facts: TypeAlias = gs301.Carried | gs302.KeptAlive


def _finding(facts: _Facts) -> Finding:
    """Return what is said of a holder."""
    return gs301.finding(facts) if isinstance(facts, gs301.Carried) else gs302.finding(facts)


class _Held(NamedTuple):
    """A holder, and the words about it."""

    key: Key
    facts: _Facts
    loop: CallLoop | None
    sightings: Sightings

    @property
    def level(self) -> Severity:
        """How bad it is."""
        return self.facts.level if isinstance(self.facts, gs302.KeptAlive) else Severity.WARNING

    @property
    def line(self) -> Site | Key:
        """The line that fills it, if that is known."""
        kept = isinstance(self.facts, gs302.KeptAlive)
        return self.facts.stored if kept and self.facts.stored is not None else self.key


def _by_line(found: Iterable[_Held]) -> Iterator[_Held]:
    """Yield of the holders that one line fills the one that holds the most, and name the others."""
    most = sorted(found, key=lambda each: -each.facts.grown.total)
    told = set[Key]()
    for first, *others in gathered(most, lambda each: each.line).values():
        facts, keys, names = first.facts, first.sightings.newest.keys, dict[str, None]()
        if not told.isdisjoint(keys):
            continue  # of two names for one thing
        told |= keys
        for each in others:
            suspect = each.sightings.newest
            if keys.isdisjoint(suspect.keys):  # else it is the same one, seen at another time
                own = (name.text for name in suspect.names if name.text != first.key[1])
                names[next(own, first.key[1])] = None
            keys = keys | suspect.keys
        if isinstance(facts, gs302.KeptAlive) and others:
            level = min((first.level, *(e.level for e in others)), key=lambda one: one.rank)
            facts = facts._replace(level=level, others=(*names,))
        yield first._replace(facts=facts)


def _grown(watch: State, sightings: Sightings, *, emptied: bool = False) -> Grown:
    """Return what a holder holds now, and how much more with each iteration; of one that is
    ``emptied`` what it held at least.
    """
    # Where calls were not looked at, there were more iterations than are known.
    now, trend = sightings.newest, None
    each, at_least = (0.0, 0.0) if watch.passes else now.each, now.cut or watch.passes
    are_counted = sightings.count and watch.hooked and not watch.passes
    if are_counted and len(sightings.looks) >= SIGHTINGS:
        free = free_memory(now.device)
        trend = Trend(now.names[0].text, (*sightings.looks,), now.device, free)
    held = now.iterations, now.nodes, now.nbytes
    if emptied:
        trend, at_least = None, True
        if now.cut and sightings.looks and now.each[0]:
            last = sightings.looks[-1]
            nodes = last.nodes // NODE_BYTES
            held = round(nodes / now.each[0]), nodes, last.saved + last.outputs
    return Grown(*held, *each, watch.hooked, at_least, trend=trend)


def _facts(
    watch: State,
    sightings: Sightings,
    loop: CallLoop | None,
    level: Severity = Severity.WARNING,
    *,
    emptied: bool = False,
) -> _Facts:
    """Return what is known of a holder of earlier iterations' graphs: of a tensor whose own graph
    goes back over them, or of all else.
    """
    suspect = sightings.newest
    name = suspect.names[0]
    stored = store_of(suspect.names, suspect.files, container=suspect.is_container)[0]
    inner = Path.of(name.origin, name.root, (*name.steps, *name.beyond))
    if inner.attribute not in (None, name.attribute):  # the objects in it were given the tensors
        stored = store_of((inner,), suspect.files)[0] or stored
    facts = name, stored, _grown(watch, sightings, emptied=emptied)
    if loop is not None and suspect.in_graph and not suspect.is_container:
        return gs301.Carried(loop.record, *facts, loop.writes_unseen, loop.waits)
    kinds = suspect.is_container, suspect.is_scalar
    call = None if loop is None else loop.record
    return gs302.KeptAlive(call, *facts, *kinds, watch.calls, level, emptied)


def _bound(suspect: Suspect, *, ended: bool) -> Bound:
    if not suspect.is_container:
        return Bound.NONE
    store, _ = store_of(suspect.names, suspect.files, container=True)
    return bound_of(suspect.names, store, ended=ended)


def _find_cycle(watch: State, *, creates: bool) -> tuple[str, str, Site | None] | None:
    """Return what closes the kind of cycle that keeps most graphs alive (``ctx``, ``hook``,
    ``grad``), its name and its line, of all that the collector tracks and the watch has seen built.

    ``creates``: the program has called ``backward(create_graph=True)``.
    """
    found = Counter(_closing(watch, creates=creates)).most_common(1)
    if not found or found[0][1] < _FEWEST:
        return None
    kind, what = found[0][0]
    if kind == "ctx":
        return kind, what.text, store_of((what,))[0]
    if kind == "hook":
        return kind, what.co_name, Site(what.co_filename, what.co_firstlineno)
    return kind, ".grad", None


def _closing(watch: State, *, creates: bool) -> Iterator[tuple[str, Any]]:
    """Yield what leads from a graph back to a tensor of its own: an attribute of a ``ctx``, the
    code of a hook, a ``.grad``.
    """

    def is_new(tensor: Tensor) -> bool:
        node = held_node(tensor)
        return node is not None and watch.number_of(node) >= watch.generations.first

    for path, tensor in contexts():
        if _made_by_ctx(path, tensor) and is_new(tensor):
            yield "ctx", path
    for each in tracked(Tensor):
        is_leaf = is_held_leaf(each)
        with DisableTorchFunction():
            grad = each.grad if is_leaf and creates else None
            hooks = None if is_leaf else each._backward_hooks
        if grad is not None and is_new(grad):
            yield "grad", None
        for hook in tuple(hooks.values()) if hooks and is_new(each) else ():
            if type(hook) is FunctionType:
                held = (*(value for _, value in closure_of(hook)), *(hook.__defaults__ or ()))
                if any(value is each for value in held):
                    yield "hook", hook.__code__


def _made_by_ctx(path: Path, tensor: Tensor) -> bool:
    """True when the tensor is an output of the very Function on whose ctx it was stored."""
    name = type(held_node(tensor)).__name__.removesuffix("Backward")
    return name in path.origin.function.split(".")
