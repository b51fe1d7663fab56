"""Finds graphs that were kept, or built, for nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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


@dataclass(slots=True)
class _Kept:
    """A call that kept its graph: how much was dropped since, and whether any of it ran again."""

    record: BackwardCall
    nbytes: int = 0
    used: bool = False


@dataclass(slots=True)
class _Dropped:
    """What one line saved and lost with its graph, which no backward call has met.

    What goes while nothing is saved in between goes together: ``last`` separates the times.
    """

    times: int = 0
    nbytes: int = 0
    last: int = -1


class Waste(Observer):
    """Announces GS303 and GS305, from the saved tensors that were dropped."""

    def __init__(self, watch: State, growth: Growth) -> None:
        super().__init__(watch)
        self._growth = growth
        self._kept: dict[int, _Kept] = {}
        self._dropped: dict[Place, _Dropped] = {}
        self._told: set[Site] = set()
        self._told_forward = False
        self._running = False

    def dropped(self, packed: Packed, nbytes: int) -> None:
        """Count a saved tensor that went with its graph, at any moment."""
        token = packed.token
        if token is not None:
            kept = self._kept.get(token.call.number) if token.call is not None else None
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
        for i, token in enumerate(look.tokens if self._kept else ()):
            if token.call is not None and token.has_buffers and look.will_run(i):
                kept = self._kept.get(token.call.number)
                if kept is not None:
                    kept.used = True
        return ()

    def after_call(
        self, call: Call, record: BackwardCall, frame: FrameType | None
    ) -> Iterator[Finding]:
        """Remember a call that kept its graph, and judge from time to time."""
        self._running = False
        keeps = record.retain_graph and not record.create_graph
        if keeps and record.exception is None and call.place is not None:
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
            if site is None or site in self._told or any(kept.used for kept in of_site):
                continue
            if len(unused) >= _OFTEN_ENOUGH:
                self._told.add(site)
                facts = gs303.KeptForNothing(record, len(unused), max(unused))
                yield gs303.finding(facts, without_retain(site))

    def _judge_dropped(self) -> Iterator[Finding]:
        often = {place: d for place, d in tuple(self._dropped.items()) if d.times >= _OFTEN_ENOUGH}
        total = sum(d.nbytes for d in often.values())
        if total < max(_FEWEST_BYTES, _SHARE * self.watch.ledger.saved_bytes):
            return
        self._told_forward = True
        place = max(often, key=lambda each: often[each].nbytes)
        name = self._growth.named.get(place)
        yield gs305.finding(
            gs305.NeverBackpropagated(
                made=place.site,
                holder=name.text if name is not None else None,
                stored=find_store((name,), container=False) if name is not None else None,
                times=often[place].times,
                nbytes=sum(d.nbytes // d.times for d in often.values()),
                after=self.watch.calls,
            )
        )
