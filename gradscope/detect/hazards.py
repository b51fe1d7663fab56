"""Makes the certain findings from the inspection of a graph: freed nodes, stale tensors, donated
buffers.
"""

from __future__ import annotations

import heapq
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import itemgetter
from types import CodeType, FrameType
from typing import Any

import torch
from torch.autograd.graph import Node as AutogradNode

from gradscope.code.statements import store_of
from gradscope.collect.backward import Evidence, came_out_of_a_call
from gradscope.collect.calls import Call, EngineCall
from gradscope.collect.generations import OTHER
from gradscope.collect.inspection import Inspection
from gradscope.collect.inspector import Inspector, weight
from gradscope.collect.marks import Stale, mark_of
from gradscope.collect.nodes import held, kind_of
from gradscope.collect.observers import Observer
from gradscope.collect.slots import FREED_TEXT
from gradscope.collect.snapshot import picture
from gradscope.collect.state import State
from gradscope.collect.walk import MOST_NODES, Walker, reachable, targets_of
from gradscope.detect import call_arguments, checkpoint_mismatch
from gradscope.detect.node_facts import built_at, needs_saved, node_at
from gradscope.detect.suspects import LAST
from gradscope.detect.unused import RetainWaste, UnusedGraphs
from gradscope.formatting import common_module, followers_last
from gradscope.model import BackwardCall, Finding, SavedState, SavedTensor
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
    user_frame,
    user_frames,
)
from gradscope.program.tensors import describe, held_node, shape_of, storage_of, version_of
from gradscope.program.variables import local_variables, variables
from gradscope.rules import gs101, gs104, gs201, gs303, gs305, gs401, gs501, gs505, unannounced
from gradscope.torch_private import (
    NO_SEQUENCE_NR,
    DisableTorchFunction,
    FunctionNode,
    has_donated_buffers,
)

# Freed nodes that a finding lists, for the picture and the JSON report: the text names some, and
# the line of the first that has one.
_MOST_NODES_NAMED = 50
_WARNINGS = {"GS101": ("GS102", "GS103"), "GS201": ("GS202",)}


def examine(evidence: Evidence) -> list[Finding]:
    """Return the finding for the error that the engine will raise first, if it will raise one.

    If a graph has several problems, the order in which the engine runs nodes decides which of them
    it meets. So that order is simulated.
    """
    look, call = evidence.look, evidence.call
    # torch checks the roots and the inputs of a call before it runs any node.
    if look.bare:
        return [gs501.finding(call_arguments.no_graph(evidence))]
    if look.constant:
        return [gs505.finding(call_arguments.unused(evidence, look.constant))]
    keeps = call.keep or evidence.call.record.create_graph
    # A freed node is no problem if the call does not run it, or if it needs nothing that it saved:
    #
    #     (x * 2).sum().backward()  # MulBackward saved no tensor, so it can run any number of times
    needed = {i for i in look.freed if look.will_run(i) and needs_saved(look, i)}
    stale: dict[int, list[Stale]] = {}
    for i, found in look.stale:
        if look.will_run(i) and needs_saved(look, i):
            stale.setdefault(i, []).append(found)
    # What torch.compile built frees its buffers in its own code, so it refuses retain_graph=True.
    compiled = filter(look.will_run, look.compiled if keeps else ())
    donated = {i for i in compiled if has_donated_buffers(type(look.nodes[i]))}
    wrong = needed | donated | stale.keys()
    order = run_order(look) if wrong else []
    first = next((i for i in order if i in wrong), None)
    if first is None:  # torch misses an input only when all nodes have run
        return [gs505.finding(call_arguments.unused(evidence, look.unused))] if look.unused else []
    if first in needed:
        return [gs101.finding(_freed_graph(evidence, [i for i in order if i in needed]))]
    if first in stale:
        return [_as_foretold(evidence, _stale_tensor(evidence, first, stale))]
    nodes = tuple(node_at(look, evidence.graph, i) for i in order if i in donated)
    return [gs104.finding(evidence.call.record, nodes)]


def foresee(inspector: Inspector, asked: EngineCall, frame: FrameType) -> list[Finding]:
    """Return what a backward call made in ``frame`` would raise now; record nothing."""
    state, user = inspector.state, user_frame(frame)
    call = Call(state.calls, None if user is None else place_in(user), asked.keep_graph)
    with DisableTorchFunction():
        roots = asked.roots
        look = inspector.inspect(asked, roots, call.place)
        call.roots = look.numbers_of(roots)
        del roots  # no node may be held longer than its inspection
        if not look.is_wrong:
            return []
        graph = picture(look.index, (), names=state.names, left=look.left, runs=look.will_run)
        kept = asked.keep_graph, asked.create_graph
        call.record = BackwardCall(state.calls, asked.word, site_of(call.place), (), *kept)
        return examine(Evidence(state, call, look, graph))


def run_order(look: Inspection) -> list[int]:
    """Return the nodes that will run, in the order in which the engine runs them on one device.

    A node is ready once all nodes that feed it have run. Of the ready nodes the youngest runs
    first, and AccumulateGrad before all others (torch/csrc/autograd/engine.cpp, ``ReadyQueue``). If
    nodes of different threads have the same sequence number, the order is up to the queue.
    """
    return followers_last(
        look.targets, lambda i: -(look.marks[i].sequence_nr % OTHER), look.will_run
    )


def _freed_graph(evidence: Evidence, freed: list[int]) -> gs101.FreedGraph:
    state, look, call = evidence.state, evidence.look, evidence.call
    mark = look.marks[freed[0]]
    by = mark.freed_by
    assert by is not None
    place = mark.place
    is_unseen = state.budget is not None and by.place is None  # freed while the budget was spent
    foreseen = state.foreseen.get(by.number)
    roots = {*range(len(look.targets))}.difference(*look.targets)
    # Leaves that a path without any freed node reaches would still be trained if the graph below
    # the freed nodes were detached, so a detach() is worth proposing.
    anew = reachable(look.targets, roots, cut={*freed})
    lines = (built_at(look, state.generations, i) for i in freed[:_MOST_NODES_NAMED])
    made = next((line for line in lines if line is not None), None)
    return gs101.FreedGraph(
        call=evidence.call.record,
        nodes=tuple(node_at(look, evidence.graph, i) for i in freed[:_MOST_NODES_NAMED]),
        made=(made,) if made is not None else (),
        freed_by=None if is_unseen else _record_of(by),
        freed_unseen=is_unseen,
        freed_same_statement=by.place is call.place and by.number > 0,
        same_root=bool(by.roots) and by.roots == call.roots,
        made_again=place is not None and place.last_sequence_nr >= by.sequence_nr,
        trains_anew=any(not look.targets[i] for i in anew),
        stepped_between=state.steps != by.steps,
        foreseen=() if foreseen is None else foreseen.fixes,
        foretold=None if foreseen is None else foreseen.site,
    )


def _record_of(call: Call) -> BackwardCall | None:
    return call.record if call.number else None


def missed(error: BaseException, call: Call, look_again: Callable[[], Evidence]) -> Finding | None:
    """Return a finding if the engine raised an error that was not reported before the call."""
    finding = unannounced(str(error), call.record)
    if finding is None or finding.code in {each.code for each in call.findings}:
        return None
    if finding.code == "GS601":
        return checkpoint_mismatch.explain(look_again(), error, way_of(error))
    if finding.code == "GS602":
        return None  # the observer of reducers explains that
    return explain(look_again(), finding)


def explain_read(error: BaseException, calls: int) -> Finding | None:
    """Return the finding for an exception that the user's code got by reading a freed saved tensor,
    such as ``loss.grad_fn._saved_self`` after ``loss.backward()``.
    """
    if FREED_TEXT not in str(error):
        return None
    innermost = next((each for each in way_of(error) if owner_of(each[1].code) == USER), None)
    if innermost is None:
        return None
    frame, place = innermost
    # Torch does not say which node was read: it is one that a variable of the frame holds.
    for _, value in variables(frame):
        mark = mark_of(value) if issubclass(type(value), (FunctionNode, AutogradNode)) else None
        if mark is not None and mark.freed_by is not None:
            by = _record_of(mark.freed_by)
            return gs101.finding_of_read(place.site, calls, value.name(), site_of(mark.place), by)
    return gs101.finding_of_read(place.site, calls)


def explain(evidence: Evidence, unexpected: Finding) -> Finding:
    """Return what is known of an error that was not reported before the call, from an inspection
    after it.

    Three things cannot be seen before the call: another call frees a part of the graph meanwhile; a
    hook or another thread modifies a saved tensor; a derivative returns no gradient. If a
    prediction was made for this line, the error is what it warned of. Anything else is
    ``unexpected``, and a bug in gradscope.
    """
    known: dict[str, Callable[[Evidence], Finding | None]] = {
        "GS101": _freed_meanwhile,
        "GS201": _modified_meanwhile,
        "GS505": partial(_not_given, text=unexpected.related[0].message),
    }
    find = known.get(unexpected.code)
    seen = None if find is None else find(evidence)
    return seen or _as_predicted(evidence.state.foretold, unexpected) or unexpected


def _freed_meanwhile(evidence: Evidence) -> Finding | None:
    look, call = evidence.look, evidence.call

    def is_another(by: Call | None) -> bool:
        """Return whether a different call freed something while this one ran."""
        return by is not None and by is not call and (by.number > call.number or call.met is by)

    freed = [i for i in look.freed if is_another(look.marks[i].freed_by)]
    by = look.marks[freed[0]].freed_by if freed else call.met or call.beside
    if by is None:
        return None
    made = built_at(look, evidence.state.generations, freed[0]) if freed else None
    return gs101.finding_meanwhile(
        gs101.FreedGraph(
            call=evidence.call.record,
            nodes=tuple(node_at(look, None, i) for i in freed[:1]),
            made=(made,) if made is not None else (),
            freed_by=by.record,
        )
    )


def _modified_meanwhile(evidence: Evidence) -> Finding | None:
    for first, stale in evidence.look.stale:
        if evidence.look.will_run(first):
            return gs201.finding_meanwhile(_stale_tensor(evidence, first, {first: [stale]}))
    return None


def _not_given(evidence: Evidence, text: str) -> Finding | None:
    """Return the finding for an input that the graph reaches, but for which a derivative on the way
    returned None. Newer versions of torch say which input it is.
    """
    look = evidence.look
    if look.unused or look.asked is None:
        return None
    said = re.search(r"at index (\d+)", text)
    which = range(len(look.asked.inputs)) if said is None else (int(said[1]),)
    return gs505.finding(call_arguments.unused(evidence, which)._replace(led_to=True))


def _as_predicted(foretold: Iterable[Finding], unexpected: Finding) -> Finding | None:
    """Return the error as the one that a prediction for its line warned of, if there is one."""
    for finding in foretold:
        if finding.code in _WARNINGS.get(unexpected.code, ()) and finding.expects(unexpected.site):
            return replace(
                unexpected,
                message=f"the engine raised what {finding.code} has warned of",
                missed=False,
                related=(*finding.related, *unexpected.related),
                fix=finding.fix,
            )
    return None


def _stale_tensor(
    evidence: Evidence, first: int, stale: dict[int, list[Stale]]
) -> gs201.StaleTensor:
    """Return what is known of the stale tensors of a call, the first being at node ``first``."""
    state, mark = evidence.state, evidence.look.marks[first]
    found = stale[first][0]
    tensor = found.tensor
    node = node_at(evidence.look, evidence.graph, first)
    saved = next((s for s in node.saved if s.state is SavedState.STALE), None)
    if saved is None:
        shape, dtype = shape_of(tensor) or (), describe(tensor).split("[")[0]
        nbytes = tensor.nbytes if storage_of(tensor) else 0  # of a sparse or opaque one
        saved = SavedTensor(found.name, shape, dtype, str(tensor.device), nbytes)
    name = state.names.of_tensor(tensor)
    saved = replace(saved, version=found.version, site=site_of(mark.place), source=name)
    names = _names_of(tensor, name)
    call = evidence.call.record
    modified = state.mutations.who_modified(found, mark, call, names)
    # Whether the step stands after the call in the same function: then the graph is of an earlier
    # iteration, and not of this one before the step.
    here, step = call.site, modified.last if modified.by_step else None
    return gs201.StaleTensor(
        call=call,
        node=node,
        saved=saved,
        version_now=version_of(tensor),
        modified=modified,
        more=sum(map(len, stale.values())) - 1,
        is_older=bool(here and step and here.function == step.function and here.line < step.line),
    )


def _as_foretold(evidence: Evidence, facts: gs201.StaleTensor) -> Finding:
    """Return the finding with the fix that GS202 proposed when the tensor was modified, so that the
    same problem is not given two different fixes.
    """
    found = gs201.finding(facts)
    for earlier in reversed(evidence.state.foretold):
        if earlier.code == "GS202" and earlier.announces(found):
            return replace(found, fix=earlier.fix)
    return found


def _names_of(tensor: torch.Tensor, known: str | None) -> frozenset[str]:
    """Return the program's names for a tensor or for others that share its memory."""
    last = (known or "").rsplit(".", 1)[-1]
    found = {known, last, f"self.{last}"} if known else set()
    storage = storage_of(tensor)
    pairs = chain.from_iterable(map(variables, user_frames(sys._getframe(1)) if storage else ()))
    tensors = ((name, value) for name, value in pairs if issubclass(type(value), torch.Tensor))
    found |= {name for name, value in tensors if storage_of(value) == storage}
    return frozenset(filter(None, found))


_ALLOCATORS = re.compile(r"DefaultCPUAllocator: (can't|not enough)|backend out of memory")
_SIZE = r"(\d[\d,.]*) ?(bytes|[KMGT]i?B)"
# Holders of graphs that are named, those of most bytes; and errors that are followed from an error
# to its cause. An allocator's error is found inside the error of a library that wrapped it, one or
# two levels deep; the bound is needed because an error may be its own cause.
_MOST_HELD, _MOST_CAUSES = 3, 10


def out_of_memory(error: BaseException | None) -> BaseException | None:
    """Return the error of one of torch's allocators, on any device, that this error is or was
    caused by; None if there is none.
    """
    for _ in range(_MOST_CAUSES):
        is_plain = type(error) is RuntimeError and _ALLOCATORS.search(_words(error)) is not None
        if error is None or is_plain or isinstance(error, torch.cuda.OutOfMemoryError):
            return error
        error = error.__cause__ or error.__context__
    return None


def explain_memory(
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


def way_of(error: BaseException) -> list[tuple[FrameType, Place]]:
    """Return the frames that an error came through, innermost first, and the line of each."""
    way, entry = [], error.__traceback__
    while entry is not None:
        way.append((entry.tb_frame, Place(entry.tb_frame.f_code, entry.tb_lasti)))
        entry = entry.tb_next
    return way[::-1]


def _words(error: BaseException) -> str:
    """Return the text of an error without running ``__str__`` of a class of the program."""
    return " ".join(each for each in error.args if type(each) is str)


def _sizes(error: BaseException) -> Iterator[int]:
    """Yield how many bytes an allocator was asked for, and how many it has given; 0 if unknown."""
    for pattern in (rf"allocate {_SIZE}", rf"{_SIZE} is allocated by PyTorch"):
        said = re.search(pattern, _words(error))
        number, unit = said.groups() if said else ("0", "b")
        yield round(float(number.replace(",", "")) * 1024.0 ** "bKMGT".index(unit[0]))
