"""Finds graphs that were kept for nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType

from gradscope.code import source
from gradscope.collect.calls import Call
from gradscope.collect.look import Look
from gradscope.collect.marks import Packed
from gradscope.collect.state import State
from gradscope.detect.observers import Observer
from gradscope.model import BackwardCall, Finding, Site
from gradscope.program.sites import from_library
from gradscope.rules import gs303

_OFTEN_ENOUGH = 3
_MOST_KEPT = 256  # calls remembered
_EVERY = 8  # calls between two judgements


@dataclass(slots=True)
class _Kept:
    """A call that kept its graph: how much was dropped since, and whether any of it ran again."""

    record: BackwardCall
    nbytes: int = 0
    used: bool = False


class Waste(Observer):
    """Announces GS303, from the saved tensors that were dropped."""

    def __init__(self, watch: State) -> None:
        super().__init__(watch)
        self._kept: dict[int, _Kept] = {}
        self._told: set[Site] = set()

    def dropped(self, packed: Packed, nbytes: int) -> None:
        """Count a saved tensor that went with its graph, at any moment."""
        token = packed.token
        if token is not None:
            kept = self._kept.get(token.call.number) if token.call is not None else None
            if kept is not None:
                kept.nbytes += nbytes

    def before_call(
        self, call: Call, look: Look, record: BackwardCall, frame: FrameType | None
    ) -> Iterable[Finding]:
        """Note which graphs that were kept are run again."""
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
        keeps = record.retain_graph and not record.create_graph and _is_of_the_user(record)
        if keeps and record.exception is None and call.place is not None:
            self._kept[call.number] = _Kept(record)
            if len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        if call.number % _EVERY == 0:
            yield from self._judge()

    def after_guarded(self, call: Call) -> Iterable[Finding]:
        """Judge from time to time; no hook tells what becomes of the graph."""
        return self._judge() if self._kept and call.number % _EVERY == 0 else ()

    def at_end(self) -> Iterator[Finding]:
        """Judge what there was."""
        yield from self._judge()

    def _judge(self) -> Iterator[Finding]:
        if self._kept:
            yield from self._judge_kept()

    def _judge_kept(self) -> Iterator[Finding]:
        sites = {kept.record.site: kept.record for kept in self._kept.values()}
        for site, record in sites.items():
            of_site = [kept for kept in self._kept.values() if kept.record.site == site]
            unused = [kept.nbytes for kept in of_site if kept.nbytes and not kept.used]
            if site is None or site in self._told or any(kept.used for kept in of_site):
                continue
            enough = len(unused) >= _OFTEN_ENOUGH
            if enough and self.watch.is_worth_telling(site, max(unused)):
                self._told.add(site)
                facts = gs303.KeptForNothing(record, len(unused), max(unused))
                yield gs303.finding(facts)


def _is_of_the_user(record: BackwardCall) -> bool:
    """Return whether the user could leave ``retain_graph=True`` away: a library may pass it, as the
    adjoint method of an ODE solver does inside of ``loss.backward()``.
    """
    if not from_library(sys._getframe(1)):
        return True
    written = None if record.site is None else source.call_at(record.site)
    return written is not None and any(k.arg == "retain_graph" for k in written.keywords)
