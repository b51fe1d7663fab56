"""Finds the user's line whose graphs no backward call ever met: an evaluation with gradients."""

from __future__ import annotations

import ast
import inspect
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType

from gradscope.code import source
from gradscope.code.stores import find_store
from gradscope.collect.calls import Call
from gradscope.collect.look import Look
from gradscope.collect.marks import Packed
from gradscope.collect.shapes import Repeat, Shape
from gradscope.collect.state import State
from gradscope.detect.leaks.growth import Growth
from gradscope.detect.observers import Observer
from gradscope.detect.proposing import proposed
from gradscope.fixing.held import fixes_for_unused
from gradscope.model import BackwardCall, Finding, Site
from gradscope.program.routes import Route
from gradscope.program.sites import Place
from gradscope.rules import gs305

_OFTEN_ENOUGH = 3
_FEW = 64
_FEWEST_BYTES = 1024
_SHARE = 0.05  # of all that was saved
_MOST_GRAPHS = 1_000
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

_Line = tuple[str, int]


@dataclass(slots=True)
class _Dropped:
    """What was saved by way of one route and lost with its graph, which no backward call has met.

    What goes while nothing is saved in between goes together: ``last`` separates the times.
    """

    times: int = 0
    nbytes: int = 0
    last: int = -1


class Unused(Observer):
    """Announces GS305 at the end: only then it is known that no backward call came.

    A line counts as trained through as soon as one graph that was built by way of it was met by a
    backward call, or one was made there.
    """

    def __init__(self, watch: State, growth: Growth) -> None:
        super().__init__(watch)
        self._growth = growth
        self._dropped: dict[Route, _Dropped] = {}
        self._met: Counter[frozenset[Route | None]] = Counter()
        self._repeats: Counter[Shape] = Counter()
        self._lines: Counter[_Line] = Counter()
        self._has_repeated = False
        # What goes on when the watch begins is larger than the watch.
        self._around = {watch.saving.routes.of(sys._getframe())}

    def dropped(self, packed: Packed, nbytes: int) -> None:
        """Count a saved tensor that went with its graph, at any moment."""
        route = packed.route
        if packed.token is not None or route is None or route.in_call or not route.places:
            return
        dropped = self._dropped.get(route)
        if dropped is None:
            dropped = self._dropped[route] = _Dropped()
        dropped.nbytes += nbytes
        saved = self.watch.ledger.saved_tensors
        if saved != dropped.last:
            dropped.last = saved
            dropped.times += 1

    def before_call(
        self, call: Call, look: Look, record: BackwardCall, frame: FrameType | None
    ) -> Iterable[Finding]:
        """Note by way of which lines the graph was built, and the call is made."""
        self._met[frozenset(token.route for token in look.tokens)] += 1
        if len(self._met) > _MOST_GRAPHS:
            self._fold()
        self._around.add(self.watch.saving.routes.of(frame))
        return ()

    def before_repeat(self, call: Call, repeat: Repeat) -> Iterable[Finding]:
        """Note the same of a recognized graph."""
        self._has_repeated = True
        self._repeats[repeat.shape] = count = self._repeats[repeat.shape] + 1
        if len(self._repeats) > _MOST_GRAPHS:
            self._fold()
        if not count & (count - 1) or count % _FEW == 0:  # they come by way of the same lines
            self._around.add(self.watch.saving.routes.of(sys._getframe()))
        return ()

    def at_end(self) -> Iterator[Finding]:
        """Judge what there was."""
        if self._dropped and not (self._growth.told_between_calls or self.watch.saving.routes.cut):
            yield from self._judge()

    def _judge(self) -> Iterator[Finding]:
        often = {r: d for r, d in self._dropped.items() if d.times >= _OFTEN_ENOUGH}
        floor = max(_FEWEST_BYTES, _SHARE * self.watch.ledger.saved_bytes)
        if sum(d.nbytes for d in often.values()) < floor:
            return
        trained = self._trained()
        lines: dict[_Line, list[Route]] = {}
        sites: dict[_Line, Site] = {}
        for route in often:
            site = _outermost(route, trained)
            if site is not None:
                sites.setdefault((site.file, site.line), site)
                lines.setdefault((site.file, site.line), []).append(route)
        sizes = {line: sum(often[r].nbytes for r in routes) for line, routes in lines.items()}
        if sum(sizes.values()) < floor:
            return
        line = max(sizes, key=lambda each: sizes[each])
        routes = sorted(lines[line], key=lambda r: -often[r].nbytes)
        times = max(often[r].times for r in routes)
        facts = self._facts(sites[line], routes[0], times, sizes[line], trained)
        yield gs305.finding(facts, proposed(self.watch.notes, lambda: fixes_for_unused(facts)))

    def _facts(
        self, site: Site, route: Route, times: int, nbytes: int, trained: dict[_Line, int]
    ) -> gs305.NeverBackpropagated:
        built = route.places[0]
        name = self._growth.named.get(built)
        stored = None if name is None else find_store((name,), container=False)
        if _line(built) in trained or (stored and (stored.file, stored.line) in trained):
            name = stored = None
        return gs305.NeverBackpropagated(
            made=site,
            built=built.site if _line(built) not in trained else None,
            also_trained=trained.get(_line(built), 0),
            holder=None if name is None else name.text,
            stored=stored,
            times=times,
            exactly=not self._has_repeated,
            nbytes=nbytes // times,
            after=self.watch.calls,
        )

    def _trained(self) -> dict[_Line, int]:
        """Return the lines that are trained through, and by how many backward calls."""
        self._fold()
        lines = dict(self._lines)
        for place in (place for route in self._around for place in route.places):
            lines.setdefault(_line(place), 0)
        return lines

    def _fold(self) -> None:
        """Count the calls for each line by way of which their graphs were built."""
        for routes, calls in self._met.items():
            places = {place for route in routes if route is not None for place in route.places}
            self._lines.update(dict.fromkeys(map(_line, places), calls))
        for shape, calls in self._repeats.items():
            places = {place for place in shape.places if place is not None}
            self._lines.update(dict.fromkeys(map(_line, places), calls))
        self._met.clear()
        self._repeats.clear()


def _line(place: Place) -> _Line:
    return place.site.file, place.site.line


def _outermost(route: Route, trained: dict[_Line, int]) -> Site | None:
    """Return the outermost line of a route that is not trained through, one in a loop if there is.

    What a generator or coroutine runs goes on at lines that only resume it: they are left out.
    """
    found: list[Site] = []
    for place in route.places:
        if _line(place) not in trained:
            found.append(place.site)
        if place.code.co_flags & _SUSPENDED:
            break
    found.reverse()
    return next(filter(_is_repeated, found), found[0] if found else None)


def _is_repeated(site: Site) -> bool:
    if source.loop_around(site) is not None:
        return True
    statement = source.statement_at(site)
    return statement is not None and any(
        isinstance(node, _COMPREHENSIONS) and source.spans(node, site.line)
        for node in ast.walk(statement)
    )
