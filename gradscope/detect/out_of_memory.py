"""Explains an error of an allocator by the graphs that are alive when memory runs out (GS401)."""

from __future__ import annotations

import heapq
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from operator import itemgetter
from types import CodeType, FrameType
from typing import Any

import torch
from torch.autograd.graph import Node as AutogradNode

from gradscope.code.statements import store_of
from gradscope.collect.backward import came_out_of_a_call
from gradscope.collect.inspector import weight
from gradscope.collect.marks import mark_of
from gradscope.collect.nodes import held, kind_of
from gradscope.collect.observers import Observer
from gradscope.collect.state import State
from gradscope.collect.walk import MOST_NODES, Walker, reachable, targets_of
from gradscope.detect.hazards import way_of
from gradscope.detect.suspects import LAST
from gradscope.detect.unused import RetainWaste, UnusedGraphs
from gradscope.formatting import common_module
from gradscope.model import Finding
from gradscope.model.variable_paths import Path
from gradscope.program.containers import look_at
from gradscope.program.reach import named_tensors
from gradscope.program.sites import (
    USER,
    Place,
    Route,
    frames_from,
    owner_of,
    place_in,
    site_of,
    user_frames,
)
from gradscope.program.tensors import held_node, shape_of
from gradscope.program.variables import local_variables
from gradscope.rules import gs303, gs305, gs401
from gradscope.torch_private import NO_SEQUENCE_NR

_ALLOCATORS = re.compile(r"DefaultCPUAllocator: (can't|not enough)|backend out of memory")
_SIZE = r"(\d[\d,.]*) ?(bytes|[KMGT]i?B)"
# Holders of graphs that are named, those of most bytes; and errors that are followed from an error
# to its cause. An allocator's error is found inside the error of a library that wrapped it, one or
# two levels deep; the bound is needed because an error may be its own cause.
_MOST_HELD, _MOST_CAUSES = 3, 10


def cause_of(error: BaseException | None) -> BaseException | None:
    """Return the error of one of torch's allocators, on any device, that this error is or was
    caused by; None if there is none.
    """
    for _ in range(_MOST_CAUSES):
        is_plain = type(error) is RuntimeError and _ALLOCATORS.search(_words(error)) is not None
        if error is None or is_plain or isinstance(error, torch.cuda.OutOfMemoryError):
            return error
        error = error.__cause__ or error.__context__
    return None


def explain(
    error: BaseException, unused: UnusedGraphs, waste: RetainWaste, raising: FrameType | None = None
) -> Finding:
    """Return the finding for an error of an allocator, from the graphs that are alive at that time.

    Graphs are found from the variables of the functions that the error came through, or of the
    frame in which it is being raised (``raising``). Nothing of them is kept.
    """
    watch, way = waste.watch, way_of(error)
    in_call = came_out_of_a_call(error) if way else bool(watch.running)
    way = way or [(frame, place_in(frame)) for frame in frames_from(raising)]
    if watch.budget is not None:
        watch.generations.pass_to(watch.budget.ended)
    frames, places = [f for f, _ in way], [p for _, p in way if owner_of(p.code) == USER]
    users = user_frames(frames[0] if frames else None)
    starts = _starts(users, frames)
    alive = _Alive(watch, starts, {place.code for place in places})
    evaluates = _evaluates(frames)
    # What was built since the last call ended, or since that before the one in which it failed.
    times = [*map(watch.generations.as_own, alive.numbers)]
    last = max(times, default=0) if in_call else watch.generations.own_next
    since, _ = watch.generations.around(last)
    newest = {i for i, time in enumerate(times) if time >= (since[0] if since else 0)}
    routes = [] if in_call else [alive.routes[i] for i in newest & alive.routes.keys()]
    if evaluates and not (routes or in_call or watch.passes):
        # No pack hook has seen what was built, but the frames of the error say where that was.
        routes = [Route((*places,), in_call=False)]
    untrained = dict(unused.untrained({*routes}))
    if untrained.keys() != {*routes} or not (watch.calls or evaluates):
        untrained = {}  # backward may still be called on some of it
    kept: list[Finding] = []
    for found, roots in unused.growth.held_in(users, untrained=not watch.calls or bool(untrained)):
        part = alive.take(i for i, number in enumerate(alive.numbers) if number in roots)
        kept += [replace(found, bytes=gs401.total_of(part))] if part else []
    needed, own = {*reachable(alive.targets, newest)}, alive.take(newest, among=newest)
    # If memory ran out in the first pass of a model in training mode, a backward call may have been
    # to come: that graph is not built for nothing. In evaluation mode, none would come.
    if own and untrained and (evaluates or unused.lost.keys() >= {*routes}):
        site = Counter(untrained[route] for route in routes).most_common(1)[0][0]
        kept.append(gs305.finding(site, None, 0, gs401.total_of(own)))
    ends = [(alive.index[n], path) for n, path in starts.items() if path and n in alive.index]
    sizes = [(gs401.total_of(alive.take([i])), i, path) for i, path in ends]
    largest = [each for each in heapq.nlargest(_MOST_HELD, sizes, key=itemgetter(0)) if each[0]]
    for size, i, _ in () if watch.passes else largest:
        mark, number = mark_of(alive.nodes[i]), alive.numbers[i]
        record = waste.kept_by(watch.history.find(number) if mark is None else mark.call)
        if record is not None and i not in needed:
            kept.append(gs303.finding(record, 0, size))
    files = {place.site.file for place in places}
    others = [(path.text, store_of((path,), files)[0], size) for size, _, path in largest]
    total = gs401.total_of(one for of_node in alive.saved.values() for one in of_node)
    most = total if watch.suspension.on else max(total, watch.ledger.peak_bytes)
    told = own, in_call, kept, others, total, most, watch.calls
    failed, (asked, allocated) = site_of(next(iter(places), None)), _sizes(error)
    return gs401.finding(gs401.OutOfMemory(failed, asked, allocated, *told))


class CaughtOutOfMemory(Observer):
    """Reports once that the program caught an out-of-memory error and continued."""

    def __init__(self, explain: Callable[..., Finding | None]) -> None:
        self._explain = explain
        self._errors = 0
        self._first: Finding | None = None

    def made(self, error: BaseException) -> None:
        """Explain an allocator's error that is about to be raised, if it is the first one.

        The graphs that are alive must be inspected now: the program may free them before it goes
        on.
        """
        self._errors += 1
        if self._errors == 1:
            self._first = self._explain(error, sys._getframe(1).f_back)

    def ended_it(self) -> None:
        """Take note that the last error ended the program or left the watch: it was not caught."""
        if self._errors == 1:
            self._first = None

    def before_call(self, *_: Any) -> Iterator[Finding]:
        """Report the error, now that the program has continued after it."""
        found, self._first = self._first, None
        if found is not None:
            yield gs401.survived(found)

    at_end = before_call


class _Alive:
    """The graphs that are alive when memory runs out.

    It has the nodes; and for each node where its edges lead, its number (-1 for a leaf), the
    storages that it was the first to save, and the route by which it was built. ``codes`` are the
    functions that the error came through.
    """

    def __init__(self, watch: State, roots: Iterable[AutogradNode], codes: Set[CodeType]) -> None:
        room_for = watch.stack_limit.room_for
        walker = Walker(room_for(0), lambda: min(room_for(MOST_NODES), MOST_NODES))
        self.index = walker.walk(roots)
        watch.stack_limit.keep()  # nobody knows when these nodes will be destroyed
        if walker.left:
            watch.notes.add(
                f"when memory ran out, {len(self.index):,} nodes were looked at, not all"
            )
        self.nodes = [*self.index]
        self.targets = targets_of(self.nodes, self.index)
        self.numbers = [-1 if n == NO_SEQUENCE_NR else n for n in map(watch.number_of, self.nodes)]
        self.routes: dict[int, Route] = {}
        self.saved = defaultdict[int, list[gs401.Memory]](list)
        self._taken: set[int] = set()
        first: dict[int, gs401.Memory] = {}
        made: Sequence[Place | None] = ()
        if watch.history.was_suspended(max(self.numbers, default=0)):
            made = watch.recognizer.places_of(tuple(map(type, self.nodes)), None)
        # A node that no hook has seen was made at the line of known nodes like it, if the function
        # that has this line is running now.
        likely = {i: place for i, place in enumerate(made) if place and place.code in codes}
        for i in sorted(range(len(self.nodes)), key=self.numbers.__getitem__):
            kind = kind_of(type(self.nodes[i]))
            packs = watch.saved_by(self.nodes[i]) if kind.saves else []
            if packs and packs[0].route:
                self.routes[i] = packs[0].route
            found = [(p.storage, p.nbytes, p.place, p.module, p.tensor) for p in packs] or [
                (*weight(data), likely.get(i), None, data)
                for _, data in held(self.nodes[i], kind)
                if isinstance(data, torch.Tensor)
            ]
            for key, nbytes, place, of, tensor in found:
                module = of[0] if of else ""
                if (known := first.get(key)) is not None and known.module != module:
                    known.module = common_module((known.module, module))
                elif known is None and key and nbytes:
                    shape = (tensor is not None and shape_of(tensor)) or (0,)
                    what = type(self.nodes[i]).__name__, module, site_of(place), shape[0]
                    first[key] = one = gs401.Memory(self.numbers[i], nbytes, *what)
                    self.saved[i].append(one)

    def take(self, starts: Iterable[int], among: Set[int] | None = None) -> list[gs401.Memory]:
        """Return what the nodes below ``starts`` saved, and count each node only once, however
        often this is called. With ``among``, count only these nodes.
        """
        led = reachable(self.targets, starts, cut=self._taken)
        new = [i for i in led if among is None or i in among]
        self._taken.update(new)
        return [one for i in new for one in self.saved[i]]


def _starts(
    users: Sequence[FrameType], frames: Iterable[FrameType]
) -> dict[AutogradNode, Path | None]:
    """Return the nodes of the tensors that variables of the user's frames reach, with a name each;
    and those of tensors in local variables of libraries, or in tuples and lists there, without a
    name.
    """
    values: list[Any] = [value for frame in frames for _, value in local_variables(frame)]
    values += [one for each in values if type(each) in (tuple, list) for one in each]
    tensors = [(e, None) for e in values if issubclass(type(e), torch.Tensor) and look_at(e)[0]]
    named = [(tensor, paths[0]) for tensor, paths in named_tensors(users, LAST)]
    found = [(held_node(tensor), name) for tensor, name in (*tensors, *reversed(named))]
    return {node: name for node, name in found if node is not None}


def _evaluates(frames: Sequence[FrameType]) -> bool:
    """Return whether the outermost module that runs is in evaluation mode (``model.eval()``)."""
    owners = (dict(local_variables(frame)).get("self") for frame in frames[::-1])
    modules = (vars(each) for each in owners if issubclass(type(each), torch.nn.Module))
    return not next(modules, {}).get("training", True)


def _words(error: BaseException) -> str:
    """Return the text of an error without running ``__str__`` of a class of the program."""
    return " ".join(each for each in error.args if type(each) is str)


def _sizes(error: BaseException) -> Iterator[int]:
    """Yield how many bytes an allocator was asked for, and how many it has given; 0 if unknown."""
    for pattern in (rf"allocate {_SIZE}", rf"{_SIZE} is allocated by PyTorch"):
        said = re.search(pattern, _words(error))
        number, unit = said.groups() if said else ("0", "b")
        yield round(float(number.replace(",", "")) * 1024.0 ** "bKMGT".index(unit[0]))
