"""Sees graphs that were kept or built for nothing: ``retain_graph=True`` without a second call, a forward without any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FrameType

from gradscope.code.stores import find_store
from gradscope.collect.calls import Call
from gradscope.collect.look import Look
from gradscope.collect.marks import Packed
from gradscope.collect.state import State
from gradscope.detect.leaks.growth import Growth
from gradscope.detect.observers import Observer
from gradscope.fixing.leaks import without_retain
from gradscope.model import BackwardCall, Finding, Site
from gradscope.program.sites import Place
from gradscope.rules import gs303, gs305

_OFTEN_ENOUGH = 3
_FEWEST_BYTES = 1024
_SHARE = 0.05  # of all that was saved
_MOST_KEPT = 256  # calls remembered
_MOST_PLACES = 10_000
_EVERY = 8  # calls between two judgements


class _Kept:
    """A call that kept its graph: what of it was dropped since, and whether any of it was run again."""

    __slots__ = ("nbytes", "record", "used")

    def __init__(self, record: BackwardCall) -> None:
        self.record = record
        self.nbytes = 0
        self.used = False


class _Dropped:
    """What one line saved that no backward call has met before its graph was gone.

    What goes while nothing is saved in between goes together: ``last`` tells one time from the next.
    """

    __slots__ = ("last", "nbytes", "times")

    def __init__(self) -> None:
        self.times = self.nbytes = 0
        self.last = -1


class Waste(Observer):
    """Says GS303 and GS305, from what the ledger tells of saved tensors that were dropped."""

    def __init__(self, watch: State, growth: Growth) -> None:
        super().__init__(watch)
        self._growth = growth
        self._kept: dict[int, _Kept] = {}
        self._dropped: dict[Place, _Dropped] = {}
        self._told: set[Site] = set()
        self._told_forward = False
        self._running = False

    def dropped(self, packed: Packed, nbytes: int) -> None:
        """A saved tensor went with its graph; called at any moment, so it only counts."""
        token = packed.token
        if token is not None:
            call = token.call
            kept = self._kept.get(call.number) if call is not None else None
            if kept is not None:
                kept.nbytes += nbytes
        elif packed.place is not None and not self._running:
            dropped = self._dropped.get(packed.place)
            if dropped is None:
                if len(self._dropped) >= _MOST_PLACES:
                    return
                dropped = self._dropped[packed.place] = _Dropped()
            dropped.nbytes += nbytes
            saved = self.watch.ledger.saved_tensors
            if saved != dropped.last:
                dropped.last = saved
                dropped.times += 1

    def before_call(
        self, call: Call, look: Look, record: BackwardCall, frame: FrameType | None
    ) -> Iterable[Finding]:
        """Note which graphs that were kept are run again."""
        self._running = True
        kept = self._kept
        if kept:
            runs = look.runs
            for i, token in enumerate(look.tokens):
                earlier = token.call
                if (
                    earlier is not None
                    and earlier.keep
                    and token.has_buffers
                    and (runs is None or runs[i])
                ):
                    again = kept.get(earlier.number)
                    if again is not None:
                        again.used = True
        return ()

    def after_call(
        self, call: Call, record: BackwardCall, frame: FrameType | None
    ) -> Iterator[Finding]:
        """Remember a call that kept its graph, and judge from time to time."""
        self._running = False
        if (
            record.retain_graph
            and not record.create_graph
            and record.exception is None
            and call.place is not None
        ):
            self._kept[call.number] = _Kept(record)
            if len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        if call.number % _EVERY == 0:
            yield from self._judge()

    def at_end(self) -> Iterator[Finding]:
        """Judge what there was."""
        yield from self._judge()

    def _judge(self) -> Iterator[Finding]:
        if self._kept:
            yield from self._judge_kept()
        if self._dropped and not self._told_forward and not self._growth.told_between_calls:
            yield from self._judge_dropped()

    def _judge_kept(self) -> Iterator[Finding]:
        sites = {kept.record.site: kept.record for kept in self._kept.values()}
        for site, record in sites.items():
            of_site = [kept for kept in self._kept.values() if kept.record.site == site]
            unused = [kept.nbytes for kept in of_site if kept.nbytes and not kept.used]
            if site is None or len(unused) < _OFTEN_ENOUGH or any(kept.used for kept in of_site):
                continue
            if site not in self._told:
                self._told.add(site)
                yield gs303.finding(
                    gs303.KeptForNothing(record, len(unused), max(unused)), without_retain(site)
                )

    def _judge_dropped(self) -> Iterator[Finding]:
        often = {place: d for place, d in tuple(self._dropped.items()) if d.times >= _OFTEN_ENOUGH}
        total = sum(d.nbytes for d in often.values())
        if total < max(_FEWEST_BYTES, _SHARE * self.watch.ledger.saved_bytes):
            return
        self._told_forward = True
        place = max(often, key=lambda each: often[each].nbytes)
        times = often[place].times
        name = self._growth.named.get(place)
        yield gs305.finding(
            gs305.NeverBackpropagated(
                made=place.site,
                holder=name.text if name is not None else None,
                stored=find_store((name,), container=False) if name is not None else None,
                times=times,
                nbytes=sum(d.nbytes // d.times for d in often.values()),
                after=self.watch.calls,
            )
        )
