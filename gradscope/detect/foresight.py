"""GS102, GS103 and GS202: predicts at each call and step whether it breaks what the code will still
run backward; where that is not known, waits for lines that build on a freed graph.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable
from dataclasses import replace
from math import inf
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import Node

from gradscope.code import source
from gradscope.code.statements import store_of
from gradscope.collect.calls import Call
from gradscope.collect.inspection import Inspection
from gradscope.collect.marks import NodeMark, Packed, mark_of
from gradscope.collect.observers import Observer
from gradscope.collect.state import State
from gradscope.collect.walk import Walker, dependencies_last, reachable
from gradscope.detect.inplace import StaleGraphs
from gradscope.detect.line_watch import LineWatch
from gradscope.detect.lookahead import (
    MOST_MADE,
    MOST_NAMED,
    MOST_NODES,
    ConditionTracker,
    Effect,
    Held,
    HeldReads,
    ReachingTensors,
    Read,
    Schedule,
    predict,
    tensors_of,
)
from gradscope.detect.node_facts import built_at, node_at, will_free
from gradscope.model import BackwardCall, Finding, Site
from gradscope.model.variable_paths import Origin, Path
from gradscope.program.ahead.questions import hooks_of, start_after, start_at_call, start_before
from gradscope.program.sites import Place, place_in, site_of, user_frames
from gradscope.program.tensors import held_node, leaves_of, parameters_of, storage_of
from gradscope.program.undisturbed import GCPaused
from gradscope.rules import gs102, gs103, gs202
from gradscope.torch_private import cached_parametrizations

# Lines that are waited for at once: each of them is compared at every line that runs.
_MOST_EXPECTED = 64
# Backward calls for which a line is waited for. Higher: a read that comes later is still caught.
# Lower: lines are traced for less of the run.
_MOST_CALLS = 8


class _Expected(NamedTuple):
    """A line that may build on a freed graph, and the node of the tensor on which it would."""

    site: Site
    sequence_nr: int
    record: BackwardCall


class FreedWatch(Observer):
    """Reports GS103: a line is about to build on a graph that was freed.

        loss.backward()              # frees the graph of h
        penalty = h.square().mean()  # GS103 is reported before this line
        penalty.backward()           # would fail

    When a call frees nodes, it waits for each line that would build on them. When such a line is
    reached, it checks that the variable still holds the same tensor.
    """

    def __init__(self, watch: State, lines: LineWatch) -> None:
        self.watch = watch
        self._lines = lines
        self._expected: list[_Expected] = []
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what was told."""
        self._told: set[tuple[Site, Site | None]] = set()

    def expect(self, record: BackwardCall, found: HeldReads) -> None:
        """Wait for the lines that would build on what a call that begins will have freed."""
        coming = (_Expected(r.site, _number(held), record) for held, r in found if _builds(r))
        self._wait_for([*self._expected, *coming][:_MOST_EXPECTED])

    def _wait_for(self, expected: list[_Expected]) -> None:
        self._expected = expected
        self._lines.wait(self, bool(expected))

    def at_line(self, frame: FrameType) -> Iterable[Finding]:
        """Check whether the expected comes true: the very tensor, at that line, to be run
        backward.
        """
        recent = self.watch.calls - _MOST_CALLS
        if self._expected and self._expected[0].record.number < recent:
            self._wait_for([each for each in self._expected if each.record.number >= recent])
        found = [each for each in self._expected if each.site.line == frame.f_lineno]
        if not found:
            return ()
        here = place_in(frame).site
        own = here.file, here.function
        expected = {e.sequence_nr: e for e in found if (e.site.file, e.site.function) == own}
        if not expected or not torch.is_grad_enabled():
            return ()
        # Each line is checked once. A later call that frees nodes will expect it again.
        self._wait_for([each for each in self._expected if each not in found])
        return self._examine(expected, user_frames(frame), here)

    def _examine(
        self, expected: dict[int, _Expected], frames: list[FrameType], here: Site
    ) -> list[Finding]:
        for held in tensors_of(frames):
            known = expected.get(_number(held))
            freed = _freed_in(held) if known is not None else []
            read = _read_here(held, frames, here.line) if freed else None
            if known is None or read is None:
                continue
            cause = (read.site, known.record.site)
            if cause not in self._told:
                self._told.add(cause)
                found = gs103.finding(self._facts(known, read, freed))
                # The error of the call, if it comes, gets the same fix.
                self.watch.foreseen.setdefault(known.record.number, found)
                return [found]
        return []

    def _facts(
        self, known: _Expected, read: Read, freed: list[tuple[str, NodeMark]]
    ) -> gs103.ForwardOnFreed:
        site = known.record.site
        made = dict.fromkeys(filter(None, (site_of(mark.place) for _, mark in freed)))
        return gs103.ForwardOnFreed(
            read=read.site,
            holder=read.name,
            nodes=tuple(dict.fromkeys(name for name, _ in freed))[:MOST_NAMED],
            made=tuple(made)[:MOST_MADE],
            freed_by=known.record,
            next_call=read.backward,
            after=self.watch.calls,
            again=read.backward == site,
            carried=read.carried,
        )


def _read_here(held: Held, frames: list[FrameType], line: int) -> Read | None:
    """Return the read that was expected, if it comes and the tensor is still there."""
    wanted = ReachingTensors([held], lambda other: bool(_freed_in(other)))
    found = predict(wanted, start_before(frames[0], frames[0]), frames)
    reads = (read for each, read in found.reads if found.conditions is None and each is held)
    here = (read for read in reads if read.site.line == line and _builds(read))
    return next((read for read in here if not source.runs_a_part(read.backward)), None)


def _builds(read: Read) -> bool:
    """Return whether the read computes something new from the tensor."""
    return read.effect is not Effect.BACKWARD


def _number(held: Held) -> int:
    """Return the sequence number of the node of a tensor; nodes are never renumbered."""
    node = held_node(held.tensor)
    return -1 if node is None else node._sequence_nr()


def _freed_in(held: Held) -> list[tuple[str, NodeMark]]:
    """Return the nodes of a tensor's graph that have lost what they saved, the nearest first."""
    walked = Walker(MOST_NODES).walk([held_node(held.tensor)])
    known = ((node, mark) for node in walked if (mark := mark_of(node)) is not None)
    return [(node.name(), mark) for node, mark in known if mark.freed_by is not None]


# Predictions that are kept by the number of their call, to see whether they come true.
_MOST_FORESEEN = 10_000
# Freed nodes that a finding lists, and holders beside the one that it names.
_MOST_FREED, _MOST_OTHERS = 50, 5
# What an average of parameters is computed by, which is not to be trained through:
#
#     mean = 0.9 * mean + 0.1 * weight
#     ((weight - mean).square().sum() + net(x).mean()).backward()
_LINEAR = frozenset({"Add", "Sub", "Mul", "Div", "Lerp", "Clone"})


class Foresight(Observer):
    """Reports GS102: before a call frees nodes, whether the code will call backward on them again.

    It finds the variables that lead to these nodes, and simulates the code that will use them
    (``lookahead``). What is not certain yet is handed to ``later``, which waits for the lines.
    """

    def __init__(self, watch: State, later: FreedWatch) -> None:
        self.watch = watch
        self._later = later
        self._turning = ConditionTracker()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Inspect each kind of call again."""
        self._schedule = Schedule()

    def before_call(
        self, call: Call, look: Inspection, frame: FrameType | None
    ) -> Iterable[Finding]:
        """Find, for every tensor in a variable that leads to nodes which this call will free,
        whether the code will call backward on it.
        """
        frees = not (call.keep or call.record.create_graph or look.freed or look.stale)
        if frame is None or not frees:
            return ()
        due = self._schedule.is_due(_kind(call, look))
        if not due and not (call.woken and self._schedule.has_time()):
            return ()
        with self._schedule, GCPaused():
            return self._examine(call, look, user_frames(frame))

    def after_step(
        self, optimizer: Any, place: Place | None, frame: FrameType | None
    ) -> Iterable[Finding]:
        """Report GS202 if the step modified what a graph has saved on which the code will still
        call backward.
        """
        watch = self.watch
        if frame is None or place is None or not watch.ledger.live_tensors or watch.call:
            return ()
        # As in ``_kind``: the exact number does not matter, unless it grows without end.
        if not self._schedule.is_due((place, watch.ledger.live_tensors.bit_length())):
            return ()
        with self._schedule, GCPaused():
            frames = user_frames(frame)
            changed = {*map(storage_of, parameters_of(optimizer))} - {0}

            def is_changed(packed: Packed) -> bool:
                tensor = packed.tensor
                return packed.is_stale and tensor is not None and storage_of(tensor) in changed

            graphs = StaleGraphs(watch, is_changed, "a parameter")
            needed = graphs.needed(start_after(frames[0]), frames, self._schedule)
            if needed is None:
                return ()
            facts = needed.facts(place.site, watch.calls, gs202.By.STEP)
            return [gs202.finding(facts)]

    def _examine(self, call: Call, look: Inspection, frames: list[FrameType]) -> list[Finding]:
        freeing = _Freeing(look)
        if not any(freeing.frees):
            return []
        reached = [each for each in (*tensors_of(frames), *_cached()) if freeing.trace(each)]
        wanted = ReachingTensors(reached, freeing.trace, freeing.comes_to)
        tensors = (each.tensor for each in reached)
        modules = self.watch.names.modules
        hooks = hooks_of(look.nodes, look.kinds, tensors, modules) if reached else ()
        start = start_at_call(frames[0], is_inner=call.parent is not None, hooks=hooks)
        rounds = inf if call.woken else self._schedule.rounds
        foretold = predict(wanted, start, frames, rounds)
        self._schedule.read(foretold)
        self.watch.unread.update(foretold.reasons)
        found = foretold.reads
        if foretold.conditions is not None:
            self._later.expect(call.record, found)
        turn = self._turning.next_turn(call.place, call.number, foretold.compared)
        self.watch.alarms[call.place] = turn
        if not found:
            return []
        facts = _shared_graph(self.watch, look, call.record, found)
        computed = _computes_retain(frames[0])
        facts = facts._replace(conditions=foretold.conditions, computed=computed)
        finding = gs102.finding(facts)
        if len(self.watch.foreseen) < _MOST_FORESEEN:
            self.watch.foreseen[call.number] = finding
        return [finding]


def _kind(call: Call, look: Inspection) -> Hashable:
    """Return what tells calls apart whose code ahead may differ: the line, and the kinds of nodes.

    The sizes of tensors do not matter, nor the exact number of nodes, which varies with the length
    of a sequence: only its order of magnitude counts.
    """
    sizes = len(look.nodes).bit_length(), look.oldest is None
    return call.place, call.exact, frozenset(look.kinds), sizes


def _computes_retain(frame: FrameType) -> bool:
    """Return whether the call computes its ``retain_graph``, as in ``retain_graph=i < 3``."""
    call = source.call_at(place_in(frame).site)
    keeps = ("retain_graph", "create_graph")
    given = [each.value for each in call.keywords if each.arg in keeps] if call else []
    return any(not isinstance(value, ast.Constant) for value in given)


def _cached() -> list[Held]:
    """Return the tensors that ``parametrize.cached()`` keeps, which no variable leads to."""
    nowhere = Origin("unnamed", "", "", 0)
    found = cached_parametrizations()
    return [Held(each, [Path.of(nowhere, f"<cached {name}>", ())]) for name, each in found]


class _Freeing:
    """Which nodes of an inspected graph the call will free, and what leads to them."""

    def __init__(self, look: Inspection) -> None:
        self.look = look
        self.frees = [will_free(look, i) for i in range(len(look.nodes))]
        self._below = list(self.frees)
        for i in dependencies_last(look.targets):
            self._below[i] = self._below[i] or any(self._below[j] for j in look.targets[i])
        self._walker = Walker(MOST_NODES)

    def trace(self, held: Held) -> bool:
        """Fill in which nodes to be freed the tensor leads to; return whether there are any."""
        start = held_node(held.tensor)
        if start is None:
            return False
        held.own = self.look.index.get(start)
        met = self._met_from(start)
        held.freed = [i for i in reachable(self.look.targets, met) if self.frees[i]]
        return bool(held.freed)

    def _met_from(self, start: Node) -> list[int]:
        """Return the inspected nodes that a walk meets first and that lead to freed ones."""
        index = self.look.index
        walked = self._walker.walk([start], enter=lambda node: node not in index)
        return [i for node in walked if (i := index.get(node)) is not None and self._below[i]]

    def comes_to(self, held: Held, tensor: torch.Tensor) -> bool:
        """Return whether a path from the held tensor to another runs a node that will be freed."""
        behind = (target for i in held.freed for target in self.look.targets[i])
        found = reachable(self.look.targets, behind)
        node = held_node(tensor)
        if node is not None:
            return self.look.index.get(node) in found
        return any(leaf is tensor for leaf in leaves_of(self.look.nodes[i] for i in found))


def _is_root_of(record: BackwardCall, look: Inspection, held: Held, name: str) -> bool:
    """Return whether a call starts at the tensor held under this name, and nowhere else.

    All results of a function from torch.compile have one node: there the names tell them apart.
    """
    root = record.roots[0] if len(record.roots) == 1 else None
    if root is None or held.own != root.node:
        return False
    is_compiled = held.own in look.compiled
    return not is_compiled or root.name in (None, name)


# the facts of GS102: what a call is about to free, and in which situation


def _shared_graph(
    watch: State, look: Inspection, record: BackwardCall, found: HeldReads
) -> gs102.SharedGraph:
    """Return the facts about the first of the holders."""
    site = record.site
    assert site is not None
    held, reading = min(found, key=_rank)
    made = _made(watch, look, held.freed)
    again = reading.backward == site or reading.again
    same_root = _is_root_of(record, look, held, reading.name)
    return gs102.SharedGraph(
        call=record,
        holder=reading.name,
        nodes=tuple(node_at(look, None, i) for i in held.freed[:_MOST_FREED]),
        made=made,
        read=reading.site,
        next_call=reading.backward,
        link=_link(reading, held, (*_places_of(watch, look, held), *made)),
        others=_others(watch, look, found, reading, made),
        same_root=same_root,
        again=again,
        carried=reading.carried,
        elements=_elements(reading, site),
        averaged=_is_average(look, record, held),
        accumulated=same_root and reading.effect is Effect.AUGMENTED,
        parted=reading.parted,
    )


def _others(
    watch: State, look: Inspection, found: HeldReads, chosen: Read, made: tuple[Site, ...]
) -> tuple[tuple[str, Site | None], ...]:
    """Return the other holders on which the same call will fail, and where they were assigned."""
    alike = [(h, r) for h, r in found if r.name != chosen.name and r.backward == chosen.backward]
    links = {r.name: _link(r, h, (*_places_of(watch, look, h), *made)) for h, r in alike}
    return tuple(sorted(links.items()))[:_MOST_OTHERS]


def _rank(entry: tuple[Held, Read]) -> tuple[bool, bool, int]:
    """Order holders: those that something is built on before a loss; then by the shortest name."""
    reading = entry[1]
    return reading.again, reading.effect is not Effect.BACKWARD, len(reading.name)


def _made(watch: State, look: Inspection, freed: list[int]) -> tuple[Site, ...]:
    sites = (built_at(look, watch.generations, i) for i in freed[:_MOST_FREED])
    return tuple(dict.fromkeys(filter(None, sites)))[:MOST_MADE]


def _places_of(watch: State, look: Inspection, held: Held) -> tuple[Site, ...]:
    """Return where the held tensor itself was computed."""
    if held.own is not None:
        site = built_at(look, watch.generations, held.own)
    else:
        node = held_node(held.tensor)
        mark = mark_of(node) if node is not None else None
        site = site_of(mark.place) if mark is not None else None
    return () if site is None else (site,)


def _link(reading: Read, held: Held, ran: tuple[Site, ...]) -> Site | None:
    """Return the line that stored the holder, preferably one that ``ran``.

    An element may be stored with its container: ``self.state = (h, c)``, ``queue.append(k)``.
    """
    site = reading.site
    written = Path(reading.name, reading.name, Origin("local", site.function, site.file, 0))
    named = [path for path in held.paths if path.text == reading.name] or held.paths
    # For ``model.state`` the line that stored ``model`` says nothing; for ``state[0]`` that of
    # ``state``.
    wholes = [
        path.up_to(n)
        for path in named
        for n in range(len(path.steps), -1, -1)
        if n or (path.steps and path.steps[0].kind == "item")
    ]
    for path in (written, *(replace(each, root=each.text) for each in wholes)):
        found = store_of((path,), (site.file,), container=path.text != reading.name, ran=ran)[0]
        if found is not None:
            return found
    return None


def _elements(reading: Read, site: Site) -> str:
    """Return the list that the loop around the call takes its losses from, if it does."""
    loop = source.loop_around(site)
    is_root = reading.backward == site and reading.effect is Effect.BACKWARD
    if not isinstance(loop, ast.For) or not is_root:
        return ""
    iterated = {ast.unparse(node) for node in source.reads_of(loop.iter)}
    container = reading.name.partition("[")[0]
    return container if "[" in reading.name and container in iterated else ""


def _is_average(look: Inspection, record: BackwardCall, held: Held) -> bool:
    """Return whether a tensor is a weighted sum of leaves that the call reaches without it too."""
    names = {look.nodes[i].name().removesuffix("Backward0") for i in held.freed}
    if held.own is None or not names <= _LINEAR:
        return False
    roots = [root.node for root in record.roots]
    kept = set(reachable(look.targets, roots, cut={held.own}))
    return not leaves_of(look.nodes[i] for i in reachable(look.targets, roots) if i not in kept)
