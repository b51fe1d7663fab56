"""Finds graphs that were built or kept for nothing: in an evaluation with gradients, or by
``retain_graph=True``.
"""

from __future__ import annotations

import ast
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from types import CodeType, FrameType

from gradscope.code import source
from gradscope.collect.calls import Call, Guarded
from gradscope.collect.inspection import Look
from gradscope.collect.marks import Packed
from gradscope.collect.observers import Observer
from gradscope.collect.state import State
from gradscope.detect.growth import Growth
from gradscope.detect.untrained import Trained
from gradscope.formatting import gathered
from gradscope.model import BackwardCall, Finding, Site
from gradscope.program.ahead.frames import SUSPENDED
from gradscope.program.sites import Place, Route, site_of
from gradscope.rules import gs303, gs305

# How often a graph must be built for nothing at one place, or kept by one line. Once or twice may
# be a check before training: `print(net(x).shape)`.
_OFTEN_ENOUGH = 3
# One guarded call in 64 is asked for the lines that led to it: guarded calls come by the same
# lines.
_FEW = 64
# Graphs built for nothing are not reported below this many bytes, and below this share of all
# that was saved: to save that gains nothing.
_FEWEST_BYTES, _SHARE = 1024, 0.05
# The newest calls that kept their graph, remembered to see whether another call runs it.
_MOST_KEPT = 256
_BACKWARD = ("backward", "manual_backward", "grad")

_Line = tuple[str, int]


@dataclass(slots=True)
class _Dropped:
    """What was saved by way of one route and lost with its graph, which no backward call has met.

    What goes while nothing is saved in between goes together: ``last`` separates the times.
    ``modules`` were being called.
    """

    times: int = 0
    nbytes: int = 0
    last: int = -1
    modules: set[str] = field(default_factory=set)


class UnusedGraphs(Observer):
    """Announces GS305 at the end: only then it is known that no backward call came.

    A line counts as trained through as soon as one graph that was built by way of it was met by a
    backward call, or one was made there.
    """

    def __init__(self, watch: State, growth: Growth, trained: Trained) -> None:
        self.watch = watch
        self.growth = growth
        self.trained = trained
        self.lost = defaultdict[Route, _Dropped](_Dropped)
        self._met: set[Route | None] = set()
        self._places: set[Place | None] = set()
        self._repeated: set[int] = set()
        """The numbers of recognized graphs' shapes, whose places are known."""
        # What is under way when the watch begins is larger than the watch.
        self._around = {watch.saving.routes.of(sys._getframe())}

    def dropped(self, packed: Packed, nbytes: int) -> None:
        """Count a saved tensor that went with its graph, at any moment."""
        route = packed.route
        if packed.token is not None or route is None or route.in_call or not route.places:
            return
        dropped = self.lost[route]
        dropped.nbytes += nbytes
        if packed.module is not None:
            dropped.modules.add(packed.module[0])
        saved = self.watch.ledger.saved_tensors
        if saved != dropped.last:
            dropped.last = saved
            dropped.times += 1

    def before_call(
        self, call: Call, look: Look, record: BackwardCall, frame: FrameType | None
    ) -> None:
        """Note by way of which lines the graph was built, and the call is made."""
        self._met.update(token.route for token in look.tokens)
        self._around.add(self.watch.saving.routes.of(frame))

    def guarded(self, calls: Sequence[Guarded], frame: FrameType | None) -> None:
        """Note the same of recognized graphs."""
        new = [call.shape for call in calls if call.shape.number not in self._repeated]
        for shape in new:
            self._repeated.add(shape.number)
            self._places.update(shape.signature.places)
        few = any(call.number % _FEW == 0 for call in calls)
        if frame is not None and (new or few):  # they come by way of the same lines
            self._around.add(self.watch.saving.routes.of(frame))

    def at_end(self) -> Iterator[Finding]:
        """Judge what there was."""
        if self.lost and not self.growth.told_between_calls:
            yield from self._judge()

    def _judge(self) -> Iterator[Finding]:
        # What leads to parameters alone that are to be trained is not to run without gradients.
        unreached, reached = self.trained.modules
        lost = {
            route: dropped
            for route, dropped in self.lost.items()
            if not dropped.modules & unreached or dropped.modules & reached
        }
        often = {r: d for r, d in lost.items() if d.times >= _OFTEN_ENOUGH}
        floor = max(_FEWEST_BYTES, _SHARE * self.watch.totals["saved_bytes"])
        if sum(d.nbytes for d in often.values()) < floor:
            return
        trained = self._trained()
        lines = gathered(self.untrained(often), lambda each: (each[1].file, each[1].line))
        sizes = {line: sum(often[r].nbytes for r, _ in own) for line, own in lines.items()}
        if sum(sizes.values()) < floor:
            return
        line = max(sizes, key=lambda each: sizes[each])
        site = lines[line][0][1]
        routes = sorted((r for r, _ in lines[line]), key=lambda r: -often[r].nbytes)
        times = max(often[r].times for r in routes)
        built, nbytes = routes[0].places[0], sizes[line] // times
        if not self.watch.is_worth_telling(site, nbytes):
            return
        built_at = built.site if _line(built) not in trained else None
        known = times, nbytes, not self._repeated, self.watch.calls
        yield gs305.finding(site, built_at, *known)

    def untrained(self, routes: Collection[Route]) -> Iterator[tuple[Route, Site]]:
        """Yield those of the routes that nothing is trained through, nor will be, each with its
        outermost line of which that is true; none where the hooks have not seen all of them.
        """
        if self.watch.saving.routes.cut or not self.watch.hooked:
            return
        trained, made = self._trained(), [r.places for r in self._around if r.places]
        around = {place.code for places in made for place in places}
        shared = {p.code for r in self._met if r is not None for p in r.places} - around
        ran = {_line(places[0]) for places in made}
        files = {place.site.file for route in routes for place in route.places}
        waiting = {file for file in files if _may_come(file, ran)}
        calls = {
            (inner.code, _shape(outer)) for places in made for inner, outer in pairwise(places)
        }
        for route in routes:
            site = _outermost(route, trained, calls, shared)
            is_over = waiting.isdisjoint(place.site.file for place in route.places)
            if site is not None and is_over:
                yield route, site

    def _trained(self) -> set[_Line]:
        """Return the lines that are trained through."""
        routes = (route for route in (*self._met, *self._around) if route is not None)
        places = {place for route in routes for place in route.places} | self._places
        return {_line(place) for place in places if place is not None}


def _line(place: Place) -> _Line:
    return place.site.file, place.site.line


def _shape(place: Place) -> str:
    """Return how the call at a place is written, without the variables that it is given:

    for i in range(20): agent.run(x)  # learns once its buffer is full, so this may yet train
    for i in range(40): agent.run(x, learning=False)  # written otherwise: this does not
    """
    call = source.call_at(place.site)
    if call is None:
        return ""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    constants = [ast.dump(each) if isinstance(each, ast.Constant) else "" for each in given]
    return repr((constants, [keyword.arg for keyword in call.keywords]))


def _may_come(file: str, made: set[_Line]) -> bool:
    """Return whether a backward call is written in a file that the run has not come to.

    `agent.run(state)` learns once a buffer is full: a short run shows nothing of that.
    """
    return any(
        source.called_name(call) in _BACKWARD
        and not any((file, line) in made for line in range(call.lineno, (call.end_lineno or 0) + 1))
        for call in source.calls_in(source.tree(file))
    )


def _outermost(
    route: Route, trained: set[_Line], calls: set[tuple[CodeType, str]], shared: set[CodeType]
) -> Site | None:
    """Return the outermost line of a route that is not trained through, one in a loop if there is;
    none that is written as one of the ``calls`` by which the program trains.

    Where a line calls a function in vain, that is no matter of the function, if it is ``shared``:
    others train through it. What a generator or coroutine runs goes on at lines that only resume
    it: they are left out.
    """
    found: list[Place] = []
    for depth, place in enumerate(route.places):
        if _line(place) not in trained:
            found = [each for each in found if each.code not in shared]
            if not depth or (route.places[depth - 1].code, _shape(place)) not in calls:
                found.append(place)
        if place.code.co_flags & SUSPENDED:
            break
    sites = [each.site for each in reversed(found)]
    return next(filter(_is_repeated, sites), sites[0] if sites else None)


def _is_repeated(site: Site) -> bool:
    if source.loop_around(site) is not None:
        return True
    statement = source.statement_at(site)
    return statement is not None and any(
        isinstance(node, source.COMPREHENSIONS) and source.spans(node, site.line)
        for node in ast.walk(statement)
    )


@dataclass(slots=True)
class _Kept:
    """A call that kept its graph: how much was dropped since, and whether any of it ran again.

    With ``create_graph`` it is what the call has built, nodes with numbers from ``first`` on to
    ``last``.
    """

    record: BackwardCall
    first: int = 0
    last: int = 0
    nbytes: int = 0
    used: bool = False


class Waste(Observer):
    """Announces GS303, based on the saved tensors that were dropped."""

    def __init__(self, watch: State, growth: Growth) -> None:
        self.watch = watch
        self.growth = growth
        self._kept: dict[int, _Kept] = {}
        self._created: list[_Kept] = []
        """The calls that have built graphs, in the order of their numbers."""
        self._begun: dict[int, int] = {}
        self._used = set[Site | None]()
        """The lines of those whose graphs were run."""

    def dropped(self, packed: Packed, nbytes: int) -> None:
        """Count a saved tensor that went with its graph, at any moment."""
        token = packed.token
        call = None if token is None else token.call
        if call is not None and (kept := self._kept.get(call.number)) is not None:
            kept.nbytes += nbytes
        number = packed.sequence_nr if token is None else token.sequence_nr
        if self._created and (kept := self._creator(number)) is not None:
            kept.nbytes += nbytes

    def before_call(
        self, call: Call, look: Look, record: BackwardCall, frame: FrameType | None
    ) -> None:
        """Note which graphs that were kept are run again."""
        for i, token in enumerate(look.tokens if self._kept or self._created else ()):
            if not look.will_run(i):
                continue
            ran = token.call if token.has_buffers else None
            if ran is not None and (kept := self._kept.get(ran.number)) is not None:
                kept.used = True
            if self._created and (kept := self._creator(token.sequence_nr)) is not None:
                self._used.add(kept.record.site)
        builds = record.create_graph and record.kind == "grad" and call.parent is None
        if builds and self.watch.generations.is_own:
            self._begun[call.number] = self.watch.generations.own_next

    def after_call(
        self, call: Call, record: BackwardCall, frame: FrameType | None
    ) -> Iterable[Finding]:
        """Remember a call that kept its graph."""
        first = self._begun.pop(call.number, None)
        if record.exception is not None or call.place is None:
            return ()
        if first is not None and _is_written(record, "create_graph"):
            self._created.append(_Kept(record, first, self.watch.generations.own_next))
            del self._created[:-_MOST_KEPT]
        elif record.retain_graph and not record.create_graph and _is_written(record):
            self._kept[call.number] = _Kept(record)
            if len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return ()

    def _creator(self, number: int) -> _Kept | None:
        """Return the call that has built the node with this number."""
        i = bisect_right(self._created, number, key=attrgetter("first"))
        kept = self._created[i - 1] if i else None
        return kept if kept is not None and number < kept.last else None

    def at_end(self) -> Iterator[Finding]:
        """Judge what there was."""
        known = self._used | self.growth.told_of
        created = () if self.watch.passes else self._created  # what passed may have run them
        unused = (kept for kept in created if kept.record.site not in known)
        by_site = gathered((*self._kept.values(), *unused), lambda kept: kept.record.site)
        for site, of_site in by_site.items():
            sizes = [kept.nbytes for kept in of_site if kept.nbytes]
            if len(sizes) < _OFTEN_ENOUGH or any(kept.used for kept in of_site):
                continue
            if self.watch.is_worth_telling(site, max(sizes)):
                yield gs303.finding(of_site[-1].record, len(sizes), max(sizes))

    def kept_by(self, call: Call | None) -> BackwardCall | None:
        """Return the record of a call that retained its graph, if no graph retained at its line was
        run again.
        """
        site = site_of(call.place) if call is not None and call.keep else None
        kept = [kept for kept in self._kept.values() if kept.record.site == site]
        if call is None or not kept or any(each.used for each in kept):
            return None
        return replace(kept[-1].record, number=call.number)


def _is_written(record: BackwardCall, option: str = "retain_graph") -> bool:
    """Return whether the user wrote the option: a library may pass it, as the adjoint method of an
    ODE solver does inside of ``loss.backward()``.
    """
    written = None if record.site is None else source.call_at(record.site)
    return written is not None and any(k.arg == option for k in written.keywords)
