"""Sees what grows from iteration to iteration: graphs that are carried on, holders of old graphs, reference cycles."""

from __future__ import annotations

import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from types import FrameType, FunctionType, ModuleType

from gradscope.code.stores import find_store
from gradscope.code.through_data import writes_data
from gradscope.collect.calls import Call
from gradscope.collect.look import Look
from gradscope.collect.shapes import Repeat
from gradscope.collect.state import State
from gradscope.detect.leaks.cycles import find_cycle
from gradscope.detect.leaks.spans import Room, Spans
from gradscope.detect.leaks.suspects import Scanned, Suspect, scan
from gradscope.detect.observers import Observer
from gradscope.fixing.leaks import detached_after, detached_where_stored
from gradscope.model import BackwardCall, Finding
from gradscope.program.paths import Origin, Path
from gradscope.program.sites import Place, user_frames
from gradscope.rules import gs301, gs302, gs304
from gradscope.torch_private import next_sequence_nr

_MOST_TICKS = 100_000
_SATURATED = 100  # iterations: a scan looks at no more entries of a container
_FREE_SCANS = 8  # made whatever they cost; later ones only while they stay cheap
_SHARE, _SHARE_TO_CONFIRM = 0.01, 0.05  # of the run's time
_FIRST_LOOK = 8  # saved tensors
_SIGHTINGS = 3  # scans in which the same holder has to have grown
_ENOUGH, _ENOUGH_AT_END = (
    (24, 8),
    (6, 4),
)  # iterations: as long as no optimizer has stepped, they may be micro-batches
_ENOUGH_AT_ONCE = 4  # iterations seen in a single look
_MOST_LOOPS = 1_000

_Key = tuple[Origin, str]


class _Sightings:
    """One holder as seen in scan after scan: how many iterations had run, and what it held then."""

    __slots__ = ("grows", "seen")

    def __init__(self) -> None:
        self.seen: list[tuple[int, Suspect]] = []
        self.grows = True

    def add(self, count: int, suspect: Suspect) -> None:
        if self.seen:
            last = self.seen[-1][1].iterations
            self.grows &= suspect.iterations > last or min(suspect.iterations, last) >= _SATURATED
        self.seen = [*self.seen[-(_SIGHTINGS - 1) :], (count, suspect)]

    @property
    def holds_all(self) -> bool:
        """True when nearly every iteration so far is still held."""
        count, suspect = self.seen[-1]
        return self.grows and suspect.iterations >= count - 1

    @property
    def rates(self) -> tuple[float, float]:
        """Nodes and bytes more with every iteration."""
        (_, first), (_, last) = self.seen[0], self.seen[-1]
        if last.iterations == first.iterations:
            return last.nodes / last.iterations, last.nbytes / last.iterations
        more = last.iterations - first.iterations
        return (last.nodes - first.nodes) / more, (last.nbytes - first.nbytes) / more


class _Loop:
    """The backward calls made at one place.

    One call is one iteration; in a program whose optimizers step, the calls between two steps are one (accumulation).
    """

    __slots__ = (
        "alive",
        "call",
        "count",
        "done",
        "due",
        "holders",
        "numbers",
        "record",
        "starts",
        "steps",
        "ticks",
    )

    def __init__(self, steps: int) -> None:
        self.call = self.count = 0
        self.steps = steps
        self.starts = self.due = False
        self.ticks = array("Q")
        self.holders: dict[_Key, _Sightings] = {}
        self.numbers: frozenset[int] = frozenset()
        self.alive: list[tuple[int, int]] = []
        self.record: BackwardCall | None = None
        self.done = False

    def begin(self, call: int, steps: int) -> None:
        """A call begins, after so many steps of optimizers."""
        self.call = call
        self.starts = not steps or steps != self.steps or not self.count
        self.count += self.starts
        self.steps = steps
        self.due = self.starts and self.is_due

    def end(self, sequence_nr: int) -> None:
        """The call has ended."""
        if not self.starts:
            self.ticks.pop()
        self.ticks.append(sequence_nr)
        if len(self.ticks) > _MOST_TICKS:
            del self.ticks[: _MOST_TICKS // 2]

    @property
    def is_due(self) -> bool:
        """True at the 4th, 6th, 8th, 12th, 16th, 24th … call."""
        half = self.count // 3 * 2 if self.count % 3 == 0 else self.count
        return self.count >= 4 and half & (half - 1) == 0 and not self.done


class Growth(Observer):
    """Says GS301, GS302 and GS304; it scans at fewer and fewer calls, and only while that stays cheap."""

    def __init__(self, watch: State) -> None:
        super().__init__(watch)
        self.named: dict[Place, Path] = {}
        """Which variable held what a line had saved and no backward call has met."""
        self.told_between_calls = False
        self._loops: dict[Place, _Loop] = {}
        self._between: dict[_Key, _Sightings] = {}
        self._looks = 0
        self._creates = False
        self._told: set[_Key] = set()
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
            self._loops.get(call.place) if call.place is not None and call.parent is None else None
        )
        if loop is None or loop.call != call.number:
            return ()
        loop.end(next_sequence_nr())
        loop.record = record
        if not loop.due or record.exception is not None or not self._is_cheap(loop.holders):
            return ()
        if self.watch.steady.on:  # which ends when more nodes are alive than before
            return ()
        loop.alive = [*loop.alive[-(_SIGHTINGS - 1) :], (loop.count, self.watch.census.alive)]
        scanned = self._scan(frame, loop.ticks, loop.numbers, between_calls=False)
        loop.numbers = frozenset()
        if scanned is None:
            return ()
        loop.holders = self._follow(loop.holders, loop.count, scanned.suspects)
        self.watch.steady.doubted = any(
            s.grows and key not in self._told for key, s in loop.holders.items()
        )
        return self._judge(loop, ended=False)

    def after_program(self, main: ModuleType) -> Iterable[Finding]:
        """Look at what the program leaves in its variables, if no pack hook has told what was built since the last call."""
        if self.watch.steady.on:
            self.grown(_frame_in(main))
        return ()

    def at_end(self) -> Iterator[Finding]:
        """Judge loops that ended before they could be scanned often enough, and what came after them."""
        frames = user_frames(sys._getframe(1))
        if (
            frames and self.watch.steady.on
        ):  # no pack hook has told what was built since the last call
            self.grown(frames[0])
        for loop in self._loops.values():
            if not loop.done:
                yield from self._judge(loop, ended=True)
        if (
            self._looks and sys.exception() is None
        ):  # else the backward call may have been still to come
            last = [s for s in self._between.values() if s.seen[-1][0] == self._looks]
            for sightings in last:
                suspect = sightings.seen[-1][1]
                enough = len(sightings.seen) > 1 or suspect.iterations >= _ENOUGH_AT_ONCE
                if sightings.grows and enough and suspect.key not in self._told:
                    self.told_between_calls = True
                    yield self._kept_alive(sightings, None)

    def _loop(self, call: Call) -> _Loop | None:
        if call.place is None or call.parent is not None or threading.get_ident() != self._thread:
            return None
        loop = self._loops.get(call.place)
        steps = self.watch.steps
        if (loop is None and len(self._loops) < _MOST_LOOPS) or (
            loop is not None and steps and not loop.steps
        ):
            loop = self._loops[call.place] = _Loop(
                steps
            )  # what was counted before the first step was one iteration
        return loop

    def _judge(self, loop: _Loop, ended: bool) -> Iterator[Finding]:
        if loop.count < (_ENOUGH_AT_END if ended else _ENOUGH)[bool(loop.steps)]:
            return
        for key, sightings in loop.holders.items():
            enough = sightings.holds_all if ended else len(sightings.seen) == _SIGHTINGS
            if key in self._told or not sightings.grows or not enough:
                continue
            suspect = sightings.seen[-1][1]
            through_grad = self._creates and suspect.names[0].attribute == "grad"
            told = loop.done
            loop.done = True
            self._told.add(key)
            if through_grad:
                if not told:  # one parameter stands for all
                    yield self._cycle_through_grad(sightings, loop)
            elif suspect.in_graph and not suspect.is_container:
                yield self._carried(sightings, loop)
            else:
                yield self._kept_alive(sightings, loop.record)
        if not loop.done and not loop.holders and _grows(loop.alive, ended):
            loop.done = True
            cycle = find_cycle(creates=self._creates)
            if cycle is not None:
                (first, before), (last, now) = loop.alive[0], loop.alive[-1]
                facts = gs304.KeptByCycle(
                    loop.record,
                    cycle.kind,
                    cycle.name,
                    cycle.site,
                    last,
                    (now - before) / (last - first),
                )
                yield gs304.finding(facts)

    # between backward calls, or without any

    def grown(self, frame: FrameType) -> None:
        """Called from inside the pack hook when much has been saved since the last backward call, ever more rarely."""
        ledger = self.watch.ledger
        ledger.look_at = ledger.saved_tensors + max(
            _FIRST_LOOK, ledger.saved_tensors - self._packed_before
        )
        if not self._is_cheap(self._between):
            return
        scanned = self._scan(frame, (), frozenset(), between_calls=True)
        if scanned is not None:
            self._looks += 1
            self.named = scanned.named or self.named
            self._between = self._follow(self._between, self._looks, scanned.suspects)

    # both

    def _is_cheap(self, following: dict[_Key, _Sightings]) -> bool:
        """True while scans took a small share of the run's time; more is allowed to confirm what was seen already."""
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
        self, before: dict[_Key, _Sightings], count: int, suspects: Iterable[Suspect]
    ) -> dict[_Key, _Sightings]:
        """The holders of this scan, with what earlier ones saw of them."""
        now = {}
        for suspect in suspects:
            sightings = now[suspect.key] = before.get(suspect.key) or _Sightings()
            sightings.add(count, suspect)
        return now

    # in words

    def _carried(self, sightings: _Sightings, loop: _Loop) -> Finding:
        _, suspect = sightings.seen[-1]
        store = find_store(suspect.names, container=False)
        nodes, nbytes = sightings.rates
        record = loop.record
        silent = record is not None and record.site is not None and writes_data(record.site.file)
        name = suspect.names[0].text
        names = suspect.names if suspect.is_direct else suspect.names[: suspect.is_tuple]
        return gs301.finding(
            gs301.Carried(
                call=record,
                holder=name,
                stored=store,
                iterations=suspect.iterations,
                nodes=suspect.nodes,
                nbytes=suspect.nbytes,
                nodes_each=nodes,
                nbytes_each=nbytes,
                silent=silent,
                counts_bytes=self.watch.hooked,
            ),
            detached_after(record.site if record else None, names, in_tuple=not suspect.is_direct),
        )

    def _kept_alive(self, sightings: _Sightings, record: BackwardCall | None) -> Finding:
        _, suspect = sightings.seen[-1]
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

    def _cycle_through_grad(self, sightings: _Sightings, loop: _Loop) -> Finding:
        _, suspect = sightings.seen[-1]
        return gs304.finding(
            gs304.KeptByCycle(
                loop.record,
                "grad",
                suspect.names[0].text,
                None,
                suspect.iterations,
                sightings.rates[0],
            )
        )


def _frame_in(module: ModuleType) -> FrameType:
    """A frame that leads to the variables of a module whose code has run."""

    def frame(get: Callable[[], FrameType] = sys._getframe) -> FrameType:
        return get()

    return FunctionType(frame.__code__, vars(module), argdefs=frame.__defaults__)()  # type: ignore[no-any-return]


def _grows(alive: list[tuple[int, int]], ended: bool) -> bool:
    """True when at least one node more was alive with each further call, at every scan."""
    enough = 2 if ended else _SIGHTINGS
    pairs = pairwise(alive)
    return len(alive) >= enough and all(
        now - before >= last - first for (first, before), (last, now) in pairs
    )
