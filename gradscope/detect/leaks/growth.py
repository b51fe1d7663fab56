"""Finds what grows from iteration to iteration: carried graphs, holders of old ones, cycles."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType, FunctionType, ModuleType

from gradscope.code.stores import find_store
from gradscope.code.through_data import writes_data
from gradscope.collect.calls import Call
from gradscope.collect.look import Look
from gradscope.collect.shapes import Repeat
from gradscope.collect.state import State
from gradscope.detect.leaks.cycles import find_cycle
from gradscope.detect.leaks.loops import SIGHTINGS, Key, Loop, Sightings
from gradscope.detect.leaks.spans import Room, Spans
from gradscope.detect.leaks.suspects import Scanned, Suspect, scan
from gradscope.detect.observers import Observer
from gradscope.fixing.leaks import detached_after, detached_where_stored
from gradscope.model import BackwardCall, Finding
from gradscope.model.paths import Path
from gradscope.program.sites import Place, user_frames
from gradscope.rules import gs301, gs302, gs304
from gradscope.torch_private import next_sequence_nr

_FREE_SCANS = 8  # made whatever they cost; later ones only while they stay cheap
_SHARE, _SHARE_TO_CONFIRM = 0.01, 0.05  # of the run's time
_FIRST_LOOK = 8  # saved tensors
# Iterations, before any optimizer has stepped, when they may be micro-batches, and after.
_ENOUGH, _ENOUGH_AT_END = (24, 8), (6, 4)
_ENOUGH_AT_ONCE = 4  # iterations seen in a single look
_MOST_LOOPS = 1_000


class Growth(Observer):
    """Announces GS301, GS302 and GS304; scans at ever fewer calls, and only while that is cheap."""

    def __init__(self, watch: State) -> None:
        super().__init__(watch)
        self.named: dict[Place, Path] = {}
        """Which variable held what a line had saved and no backward call has met."""
        self.told_between_calls = False
        self._loops: dict[Place, Loop] = {}
        self._between: dict[Key, Sightings] = {}
        self._looks = 0
        self._creates = False
        self._told: set[Key] = set()
        self._room = Room(watch)
        self._thread = threading.get_ident()
        self._scans = 0
        self._seconds = 0.0
        self._most_packed = 0
        self._packed_before = watch.ledger.saved_tensors
        watch.ledger.look_at = self._packed_before + _FIRST_LOOK

    def switch_off(self) -> None:
        """Have the ledger look out for nothing."""
        self.watch.ledger.look_at = sys.maxsize

    def outgrown(self) -> None:
        """Look for what grows from now on from the start."""
        self._loops.clear()

    # with backward calls

    def before_call(
        self, call: Call, look: Look, record: BackwardCall, frame: FrameType | None
    ) -> Iterable[Finding]:
        """Count the iteration, and remember for a scan which nodes the call runs through."""
        if record.create_graph:
            self._creates |= record.kind == "backward"
            if record.kind == "grad":  # a step inside something larger
                return ()
        loop = self._loop(call)
        if loop is not None:
            loop.begin(call.number, self.watch.steps)
            if loop.due:
                loop.numbers = frozenset(look.sequence_nrs())
        return ()

    def before_repeat(self, call: Call, repeat: Repeat) -> Iterable[Finding]:
        """Count the iteration all the same."""
        loop = self._loop(call)
        if loop is not None:
            loop.begin(call.number, self.watch.steps)
        return ()

    def after_call(
        self, call: Call, record: BackwardCall, frame: FrameType | None
    ) -> Iterable[Finding]:
        """Scan if it is time to, and judge what has grown."""
        ledger = self.watch.ledger
        self._most_packed = max(self._most_packed, ledger.saved_tensors - self._packed_before)
        self._packed_before = ledger.saved_tensors
        ledger.look_at = ledger.saved_tensors + max(_FIRST_LOOK, 2 * self._most_packed)
        self._between.clear()
        self._looks = 0
        loop = (
            None if call.place is None or call.parent is not None else self._loops.get(call.place)
        )
        if loop is None or loop.call != call.number:
            return ()
        loop.end(record, next_sequence_nr())
        if not loop.due or record.exception is not None or not self._is_cheap(loop.holders):
            return ()
        if self.watch.lifting.on:  # which ends when more nodes are alive than before
            return ()
        loop.note_alive(self.watch.census.alive)
        scanned = self._scan(frame, loop.ticks, loop.numbers, between_calls=False)
        loop.numbers = frozenset()
        if scanned is None:
            return ()
        loop.holders = self._follow(loop.holders, loop.count, scanned.suspects)
        self.watch.lifting.doubted = any(
            s.grows and key not in self._told for key, s in loop.holders.items()
        )
        return self._judge(loop, ended=False)

    def after_program(self, main: ModuleType) -> Iterable[Finding]:
        """Look at what the program leaves in its variables, unless pack hooks have shown it."""
        if self.watch.lifting.on:
            self.grown(_frame_in(main))
        return ()

    def at_end(self) -> Iterator[Finding]:
        """Judge loops that ended before they were scanned often enough, and what came after."""
        frames = user_frames(sys._getframe(1))
        if frames and self.watch.lifting.on:
            self.grown(frames[0])  # no pack hook has shown what was built since the last call
        for loop in self._loops.values():
            if not loop.done:
                yield from self._judge(loop, ended=True)
        if not self._looks or sys.exception() is not None:
            return  # the backward call may have been still to come
        for sightings in self._between.values():
            suspect = sightings.newest
            enough = len(sightings.seen) > 1 or suspect.iterations >= _ENOUGH_AT_ONCE
            is_there = sightings.seen[-1][0] == self._looks
            if is_there and sightings.grows and enough and suspect.key not in self._told:
                self.told_between_calls = True
                yield self._kept_alive(sightings, None)

    def _loop(self, call: Call) -> Loop | None:
        if call.place is None or call.parent is not None or threading.get_ident() != self._thread:
            return None
        loop = self._loops.get(call.place)
        steps = self.watch.steps
        if (loop is None and len(self._loops) < _MOST_LOOPS) or (
            loop is not None and steps and not loop.steps
        ):
            # What was counted before the first step was one iteration.
            loop = self._loops[call.place] = Loop(steps)
        return loop

    def _judge(self, loop: Loop, ended: bool) -> Iterator[Finding]:
        if loop.count < (_ENOUGH_AT_END if ended else _ENOUGH)[bool(loop.steps)]:
            return
        for key, sightings in loop.holders.items():
            enough = sightings.holds_all if ended else len(sightings.seen) == SIGHTINGS
            if key in self._told or not sightings.grows or not enough:
                continue
            suspect = sightings.newest
            told, loop.done = loop.done, True
            self._told.add(key)
            if self._creates and suspect.names[0].attribute == "grad":
                if not told:  # one parameter stands for all
                    name, (nodes, _) = suspect.names[0].text, sightings.rates
                    yield gs304.finding(
                        gs304.KeptByCycle(
                            loop.record, "grad", name, None, suspect.iterations, nodes
                        )
                    )
            elif suspect.in_graph and not suspect.is_container:
                yield self._carried(sightings, loop)
            else:
                yield self._kept_alive(sightings, loop.record)
        if not loop.done and not loop.holders and loop.grows(ended=ended):
            loop.done = True
            cycle = find_cycle(creates=self._creates)
            if cycle is not None:
                (first, before), (last, now) = loop.alive[0], loop.alive[-1]
                each = (now - before) / (last - first)
                yield gs304.finding(
                    gs304.KeptByCycle(loop.record, cycle.kind, cycle.name, cycle.site, last, each)
                )

    # between backward calls, or without any

    def grown(self, frame: FrameType) -> None:
        """Look, ever more rarely, when much has been saved since the last backward call."""
        ledger = self.watch.ledger
        since = ledger.saved_tensors - self._packed_before
        ledger.look_at = ledger.saved_tensors + max(_FIRST_LOOK, since)
        if not self._is_cheap(self._between):
            return
        scanned = self._scan(frame, (), frozenset(), between_calls=True)
        if scanned is not None:
            self._looks += 1
            self.named = scanned.named or self.named
            self._between = self._follow(self._between, self._looks, scanned.suspects)

    # both

    def _is_cheap(self, following: dict[Key, Sightings]) -> bool:
        """Whether scans took a small share of the run's time; more to confirm a sighting."""
        elapsed = time.perf_counter() - self.watch.started
        share = _SHARE_TO_CONFIRM if following else _SHARE
        return self._scans < _FREE_SCANS or self._seconds < share * elapsed

    def _scan(
        self,
        frame: FrameType | None,
        ticks: Sequence[int],
        numbers: frozenset[int],
        *,
        between_calls: bool,
    ) -> Scanned | None:
        room = self._room.left()
        if not room or frame is None:
            return None
        started = time.perf_counter()
        spans = Spans(self.watch, ticks, room)
        scanned = scan(user_frames(frame) or [frame], spans, numbers, between_calls=between_calls)
        if scanned.suspects or between_calls:  # else all that was touched goes with the iteration
            self._room.take(spans.touched)
        self._scans += 1
        self._seconds += time.perf_counter() - started
        return scanned

    def _follow(
        self, before: dict[Key, Sightings], count: int, suspects: Iterable[Suspect]
    ) -> dict[Key, Sightings]:
        """Return the holders of this scan, with what earlier ones saw of them."""
        now = {}
        for suspect in suspects:
            sightings = now[suspect.key] = before.get(suspect.key) or Sightings()
            sightings.add(count, suspect)
        return now

    # in words

    def _carried(self, sightings: Sightings, loop: Loop) -> Finding:
        suspect, record = sightings.newest, loop.record
        site = record.site if record is not None else None
        nodes, nbytes = sightings.rates
        names = suspect.names if suspect.is_direct else suspect.names[: suspect.is_tuple]
        return gs301.finding(
            gs301.Carried(
                call=record,
                holder=suspect.names[0].text,
                stored=find_store(suspect.names, container=False),
                iterations=suspect.iterations,
                nodes=suspect.nodes,
                nbytes=suspect.nbytes,
                nodes_each=nodes,
                nbytes_each=nbytes,
                silent=site is not None and writes_data(site.file),
                counts_bytes=self.watch.hooked,
            ),
            detached_after(site, names, in_tuple=not suspect.is_direct),
        )

    def _kept_alive(self, sightings: Sightings, record: BackwardCall | None) -> Finding:
        suspect = sightings.newest
        store = find_store(suspect.names, container=suspect.is_container)
        nodes, nbytes = sightings.rates
        name = suspect.names[0]
        writable = suspect.is_direct and not name.through_frame
        return gs302.finding(
            gs302.KeptAlive(
                call=record,
                holder=name.text,
                stored=store,
                is_container=suspect.is_container,
                is_scalar=suspect.is_scalar,
                through_frame=name.through_frame,
                iterations=suspect.iterations,
                nodes=suspect.nodes,
                nbytes=suspect.nbytes,
                nodes_each=nodes,
                nbytes_each=nbytes,
                after=self.watch.calls,
                counts_bytes=self.watch.hooked,
            ),
            detached_where_stored(store, in_container=suspect.is_container) if writable else (),
        )


def _frame_in(module: ModuleType) -> FrameType:
    """A frame that leads to the variables of a module whose code has run."""

    def frame(get: Callable[[], FrameType] = sys._getframe) -> FrameType:
        return get()

    return FunctionType(frame.__code__, vars(module), argdefs=frame.__defaults__)()  # type: ignore[no-any-return]
