"""Finds graphs that were built or kept for nothing: in an evaluation with gradients, or by
``retain_graph=True``.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from gradscope.code import source
from gradscope.code.bytecode import flow_of, site_at
from gradscope.code.stores import find_store
from gradscope.collect.calls import Call
from gradscope.collect.look import Look
from gradscope.collect.marks import Packed
from gradscope.collect.observers import Observer
from gradscope.collect.shapes import Shape
from gradscope.collect.state import State
from gradscope.detect.leaks.growth import Growth
from gradscope.model import BackwardCall, Finding, Site
from gradscope.program.ahead.questions import backward_calls_after
from gradscope.program.layouts import class_namespace, derives, is_user_module, user_functions
from gradscope.program.sites import Place, Route, from_library
from gradscope.rules import gs303, gs305

_OFTEN_ENOUGH = 3
_FEW = 64
_FEWEST_BYTES = 1024
_SHARE = 0.05  # of all that was saved
_MOST_GRAPHS = 1_000
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_MOST_FUNCTIONS = 500  # read for one line
_MOST_KEPT = 256  # calls remembered
_EVERY = 8  # calls between two judgements
_BACKWARD = ("backward", "manual_backward", "grad")
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
        self.watch = watch
        self._growth = growth
        self._dropped: dict[Route, _Dropped] = {}
        self._met: set[frozenset[Route | None]] = set()
        self._repeats: Counter[Shape] = Counter()
        self._lines: set[_Line] = set()
        self._has_repeated = False
        # What is under way when the watch begins is larger than the watch.
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
    ) -> None:
        """Note by way of which lines the graph was built, and the call is made."""
        self._met.add(frozenset(token.route for token in look.tokens))
        if len(self._met) > _MOST_GRAPHS:
            self._fold()
        self._around.add(self.watch.saving.routes.of(frame))

    def before_guarded(self, call: Call) -> None:
        """Note the same of a recognized graph."""
        self._has_repeated = True
        self._repeats[call.shape] = count = self._repeats[call.shape] + 1
        if len(self._repeats) > _MOST_GRAPHS:
            self._fold()
        if not count & (count - 1) or count % _FEW == 0:  # they come by way of the same lines
            self._around.add(self.watch.saving.routes.of(sys._getframe()))

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
        yet = _YetToTrain(self._around, often)
        lines: dict[_Line, list[Route]] = {}
        sites: dict[_Line, Site] = {}
        for route in often:
            site = _outermost(route, trained, yet)
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
        if not self.watch.is_worth_telling(facts.made, facts.nbytes):
            return
        yield gs305.finding(facts)

    def _facts(
        self, site: Site, route: Route, times: int, nbytes: int, trained: Set[_Line]
    ) -> gs305.NeverBackpropagated:
        built = route.places[0]
        name = self._growth.named.get(built)
        stored = None if name is None else find_store((name,), container=False)
        if _line(built) in trained or (stored and (stored.file, stored.line) in trained):
            name = stored = None
        return gs305.NeverBackpropagated(
            made=site,
            built=built.site if _line(built) not in trained else None,
            holder=None if name is None else name.text,
            stored=stored,
            times=times,
            exactly=not self._has_repeated,
            nbytes=nbytes // times,
            after=self.watch.calls,
        )

    def _trained(self) -> Set[_Line]:
        """Return the lines that are trained through."""
        self._fold()
        return self._lines | {_line(place) for route in self._around for place in route.places}

    def _fold(self) -> None:
        """Note the lines by way of which the graphs were built that calls have met."""
        routes = (route for met in self._met for route in met if route is not None)
        self._lines |= {_line(place) for route in routes for place in route.places}
        places = (place for shape in self._repeats for place in shape.places)
        self._lines |= {_line(place) for place in places if place is not None}
        self._met.clear()
        self._repeats.clear()


def _line(place: Place) -> _Line:
    return place.site.file, place.site.line


class _YetToTrain:
    """Says of which lines the run has not shown that they never train, though they have not.

    `agent.run(state)` learns once a buffer is full: a short run does not come to it.
    """

    def __init__(self, around: Iterable[Route], routes: Iterable[Route]) -> None:
        made = [route.places for route in around if route.places]
        self._lines = {_line(places[0]) for places in made}
        self._calls = {
            (inner.code, _shape(outer)) for places in made for inner, outer in pairwise(places)
        }
        self._named: dict[str, list[CodeType]] = {}
        codes = {place.code for route in routes for place in route.places}
        for code in codes:
            self._name(code)
        functions = [*user_functions()]
        spaces = _reached({code.co_filename for code in codes}, functions)
        for function in functions:
            if id(function.__globals__) in spaces:
                self._name(function.__code__)

    def _name(self, code: CodeType) -> None:
        known = self._named.setdefault(code.co_name, [])
        if code not in known:
            known.append(code)
            for inner in _inside(code):
                self._name(inner)

    def may_come(self, places: Sequence[Place]) -> bool:
        """Return whether a backward call may yet come inside of what the last of these places, the
        outermost, calls, or through what that returns.
        """
        *inner, last = places
        if self._reach_one({place.code for place in inner}):
            return True
        if inner and (inner[-1].code, _shape(last)) in self._calls:
            return True  # nothing that is written there tells it from a call that trains
        calls = backward_calls_after(last.code, last.offset)
        return any((each.file, each.line) not in self._lines for each in calls)

    def _reach_one(self, codes: set[CodeType]) -> bool:
        """Return whether functions, or what they call by its name, have a backward call that was
        never made.
        """
        waiting, known = deque(codes), codes
        while waiting and len(known) < _MOST_FUNCTIONS:
            for index, names in _calls_in(waiting[0]):
                site = site_at(waiting[0], index)
                if names[-1] in _BACKWARD and (site.file, site.line) not in self._lines:
                    return True
                called = {*self._called(waiting[0], names)}
                waiting += called - known
                known |= called
            inside = {*_inside(waiting.popleft())}
            waiting += inside - known
            known |= inside
        return bool(waiting)

    def _called(self, code: CodeType, names: Sequence[str]) -> Iterable[CodeType]:
        """Return the functions that a call may run: of those of its name the one of the same class,
        for a method of the same object.
        """
        named = self._named.get(names[-1], ())
        beside = f"{code.co_qualname.rpartition('.')[0]}.{names[-1]}"
        own = [e for e in named if names[:-1] == ("self",) and e.co_qualname == beside]
        return own or named


def _calls_in(code: CodeType) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the calls of code, each with the names of what it calls."""
    flow = flow_of(code)
    for index, instruction in enumerate(flow.instructions):
        if instruction.is_call and (names := flow.names_of_call(index)):
            yield index, names


def _reached(files: set[str], functions: Sequence[FunctionType]) -> set[int]:
    """Return by their ids the globals of functions in files, and of what these globals name."""
    waiting = [each.__globals__ for each in functions if each.__code__.co_filename in files]
    spaces: set[int] = set()
    while waiting:
        names = waiting.pop()
        if id(names) not in spaces and is_user_module(str(names.get("__name__"))):
            spaces.add(id(names))
            homes = {_home(value) for value in [*names.values()]}
            modules = [sys.modules.get(home) for home in homes if isinstance(home, str)]
            modules += [value for value in names.values() if type(value) is ModuleType]
            waiting += [vars(module) for module in modules if type(module) is ModuleType]
    return spaces


def _home(value: Any) -> object:
    """Return the name of the module that a function or class is of, without asking either."""
    if derives(type(value), type):
        return class_namespace(value).get("__module__")
    return value.__module__ if type(value) is FunctionType else None


def _inside(code: CodeType) -> Iterator[CodeType]:
    return (each for each in code.co_consts if isinstance(each, CodeType))


def _shape(place: Place) -> str:
    """Return how the call at a place is written, without the variables that it is given."""
    call = source.call_at(place.site)
    if call is None:
        return ""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    constants = [ast.dump(each) if isinstance(each, ast.Constant) else "" for each in given]
    return repr((constants, [keyword.arg for keyword in call.keywords]))


def _outermost(route: Route, trained: Set[_Line], yet: _YetToTrain) -> Site | None:
    """Return the outermost line of a route that is not trained through, one in a loop if there is.

    What a generator or coroutine runs goes on at lines that only resume it: they are left out.
    """
    found: list[Site] = []
    for depth, place in enumerate(route.places, 1):
        if _line(place) not in trained and not yet.may_come(route.places[:depth]):
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


@dataclass(slots=True)
class _Kept:
    """A call that kept its graph: how much was dropped since, and whether any of it ran again."""

    record: BackwardCall
    nbytes: int = 0
    used: bool = False


class Waste(Observer):
    """Announces GS303, from the saved tensors that were dropped."""

    def __init__(self, watch: State) -> None:
        self.watch = watch
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
    ) -> None:
        """Note which graphs that were kept are run again."""
        for i, token in enumerate(look.tokens if self._kept else ()):
            if token.call is not None and token.has_buffers and look.will_run(i):
                kept = self._kept.get(token.call.number)
                if kept is not None:
                    kept.used = True

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

    def at_end(self) -> Iterable[Finding]:
        """Judge what there was."""
        return self._judge()

    def _judge(self) -> Iterator[Finding]:
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
