"""Finds graphs that were built or kept for nothing: in an evaluation with gradients, or by
``retain_graph=True``.
"""

from __future__ import annotations

import ast
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from types import CodeType, FrameType

from gradscope.code import source
from gradscope.collect.calls import Call, Guarded
from gradscope.collect.inspection import Inspection
from gradscope.collect.marks import Packed
from gradscope.collect.observers import Observer
from gradscope.collect.state import State
from gradscope.detect.growth import Growth
from gradscope.detect.untrained import TrainingObserver
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
    """What was saved on one route and destroyed with its graph, which no backward call has met.

    ``times`` counts graphs: tensors that are destroyed while nothing is saved in between are of one
    graph, and ``last`` is the number of saved tensors when the last one was destroyed. ``modules``
    are the names of the modules that were being called.
    """

    times: int = 0
    nbytes: int = 0
    last: int = -1
    modules: set[str] = field(default_factory=set)


class UnusedGraphs(Observer):
    """Reports GS305, graphs that are built for nothing, at the end of the watch: only then it is
    known that no backward call came.

        for x in held_out:
            errors += (net(x) - y).abs().sum().item()  # without no_grad()

    A line counts as trained through once a backward call ran a graph that was built by way of this
    line, or was made there.
    """

    def __init__(self, watch: State, growth: Growth, trained: TrainingObserver) -> None:
        self.watch = watch
        self.growth = growth
        self.trained = trained
        self.lost = defaultdict[Route, _Dropped](_Dropped)
        self._met: set[Route | None] = set()
        self._places: set[Place | None] = set()
        self._repeated: set[int] = set()
        """The numbers of the shapes of recognized graphs, whose lines are known."""
        # A function that contains the whole watch is on the route of all that happens in it, and
        # says nothing about any of it.
        self._around = {watch.saving.routes.of(sys._getframe())}

    def dropped(self, packed: Packed, nbytes: int) -> None:
        """Count a saved tensor that was destroyed with its graph, at any moment."""
        route = packed.route
        if packed.mark is not None or route is None or route.in_call or not route.places:
            return
        dropped = self.lost[route]
        dropped.nbytes += nbytes
        if packed.module is not None:
            dropped.modules.add(packed.module[0])
        saved = self.watch.ledger.saved_tensors
        if saved != dropped.last:
            dropped.last = saved
            dropped.times += 1

    def before_call(self, call: Call, look: Inspection, frame: FrameType | None) -> None:
        """Note the routes on which the graph was built, and the route of the call itself."""
        self._met.update(mark.route for mark in look.marks)
        self._around.add(self.watch.saving.routes.of(frame))

    def guarded(self, calls: Sequence[Guarded], frame: FrameType | None) -> None:
        """Note the same for guarded calls."""
        new = [call.shape for call in calls if call.shape.number not in self._repeated]
        for shape in new:
            self._repeated.add(shape.number)
            self._places.update(shape.signature.places)
        few = any(call.number % _FEW == 0 for call in calls)
        if frame is not None and (new or few):  # they come by way of the same lines
            self._around.add(self.watch.saving.routes.of(frame))

    def at_end(self) -> Iterator[Finding]:
        """Report the line that built most for nothing, if it was often and much."""
        if not self.lost or self.growth.told_between_calls:
            return
        # If no gradient reaches parameters that an optimizer steps, GS502 says so. To advise
        # no_grad() around their module would be the wrong advice then.
        unreached, reached = self.trained.modules
        often = {
            route: dropped
            for route, dropped in self.lost.items()
            if dropped.times >= _OFTEN_ENOUGH
            and (not dropped.modules & unreached or dropped.modules & reached)
        }
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
        """Yield those of the routes that nothing is trained through, nor will be, each with the
        outermost line of which that is true; none if the hooks have not seen all routes.
        """
        if self.watch.saving.routes.cut or not self.watch.hooked:
            return
        trained, made = self._trained(), [r.places for r in self._around if r.places]
        around = {place.code for places in made for place in places}
        shared = {p.code for r in self._met if r is not None for p in r.places} - around
        ran = {_line(places[0]) for places in made}
        files = {place.site.file for route in routes for place in route.places}
        # Files with a backward call that the program has not come to yet.
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
    """Return how the call at a place is written, with constants and keywords but without the
    variables that it is given, to tell calls that train from calls that do not:

        for i in range(20): agent.run(x)  # learns once its buffer is full, so it may train later
        for i in range(40): agent.run(x, learning=False)  # is written differently: never trains

    Two calls that are written alike are taken to do the same.
    """
    call = source.call_at(place.site)
    if call is None:
        return ""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    constants = [ast.dump(each) if isinstance(each, ast.Constant) else "" for each in given]
    return repr((constants, [keyword.arg for keyword in call.keywords]))


def _may_come(file: str, made: set[_Line]) -> bool:
    """Return whether a file has a backward call that the run has not reached.

    ``agent.run(state)`` may learn only once its buffer is full, which a short run does not show.
    """
    return any(
        source.called_name(call) in _BACKWARD
        and not any((file, line) in made for line in range(call.lineno, (call.end_lineno or 0) + 1))
        for call in source.calls_in(source.tree(file))
    )


def _outermost(
    route: Route, trained: set[_Line], calls: set[tuple[CodeType, str]], shared: set[CodeType]
) -> Site | None:
    """Return the outermost line of a route that is not trained through, preferably one in a loop;
    no line that is written as one of the ``calls`` by which the program trains.

    Lines inside of a function that is ``shared``, which training goes through too, are not blamed:
    the line that calls it for nothing is. A generator or coroutine ends the search, because the
    lines outside of it only resume it.
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
    """Return whether a line runs again and again: it is in a loop, or has a comprehension."""
    if source.loop_around(site) is not None:
        return True
    statement = source.statement_at(site)
    return statement is not None and any(
        isinstance(node, source.COMPREHENSIONS) and source.spans(node, site.line)
        for node in ast.walk(statement)
    )


@dataclass(slots=True)
class _Kept:
    """A call that retained its graph: how much of it was dropped since, and whether any ran again.

    With ``create_graph`` it is what the call has built: the nodes with numbers from ``first`` up to
    ``last``.
    """

    record: BackwardCall
    first: int = 0
    last: int = 0
    nbytes: int = 0
    used: bool = False


class RetainWaste(Observer):
    """Reports GS303: graphs that a call retained and that no later call ran.

        loss.backward(retain_graph=True)  # in each iteration
        opt.step()

    The memory that this wastes is that of the saved tensors that were dropped with their graph,
    when the call could have freed them.
    """

    def __init__(self, watch: State, growth: Growth) -> None:
        self.watch = watch
        self.growth = growth
        self._kept: dict[int, _Kept] = {}
        self._created: list[_Kept] = []
        """Calls that built graphs (``create_graph``), in the order of their node numbers."""
        self._begun: dict[int, int] = {}
        self._used = set[Site | None]()
        """The lines of the calls whose built graphs were run."""

    def dropped(self, packed: Packed, nbytes: int) -> None:
        """Count a saved tensor that was destroyed with its graph, at any moment."""
        mark = packed.mark
        call = None if mark is None else mark.call
        if call is not None and (kept := self._kept.get(call.number)) is not None:
            kept.nbytes += nbytes
        number = packed.sequence_nr if mark is None else mark.sequence_nr
        if self._created and (kept := self._creator(number)) is not None:
            kept.nbytes += nbytes

    def before_call(self, call: Call, look: Inspection, frame: FrameType | None) -> None:
        """Note which of the retained graphs are run again."""
        for i, mark in enumerate(look.marks if self._kept or self._created else ()):
            if not look.will_run(i):
                continue
            ran = mark.call if mark.has_buffers else None
            if ran is not None and (kept := self._kept.get(ran.number)) is not None:
                kept.used = True
            if self._created and (kept := self._creator(mark.sequence_nr)) is not None:
                self._used.add(kept.record.site)
        record = call.record
        builds = record.create_graph and record.kind == "grad" and call.parent is None
        if builds and self.watch.generations.is_own:
            self._begun[call.number] = self.watch.generations.own_next

    def after_call(self, call: Call, frame: FrameType | None) -> None:
        """Remember a call that retained its graph, or built one."""
        first, record = self._begun.pop(call.number, None), call.record
        if record.exception is not None or call.place is None:
            return
        if first is not None and _is_written(record, "create_graph"):
            self._created.append(_Kept(record, first, self.watch.generations.own_next))
            del self._created[:-_MOST_KEPT]
        elif record.retain_graph and not record.create_graph and _is_written(record):
            self._kept[call.number] = _Kept(record)
            if len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]

    def _creator(self, number: int) -> _Kept | None:
        """Return the call that has built the node with this number."""
        i = bisect_right(self._created, number, key=attrgetter("first"))
        kept = self._created[i - 1] if i else None
        return kept if kept is not None and number < kept.last else None

    def at_end(self) -> Iterator[Finding]:
        """Report the lines that retained graphs often, and none of them for a later call."""
        known = self._used | self.growth.told_of
        created = () if self.watch.passes else self._created  # others may have run them
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
