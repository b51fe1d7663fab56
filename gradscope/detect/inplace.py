"""GS202: announces an operation in place on what a live graph saved, if the code will run that
graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from types import FrameType
from typing import NamedTuple

from torch.autograd.graph import Node

from gradscope.code import source
from gradscope.code.statements import Statement, changed_by
from gradscope.collect.marks import Packed, mark_of
from gradscope.collect.nodes import kind_of, packs_in
from gradscope.collect.observers import Observer
from gradscope.collect.state import State
from gradscope.collect.walk import Walker
from gradscope.detect.line_watch import LineWatch
from gradscope.detect.lookahead import (
    MOST_MADE,
    MOST_NAMED,
    MOST_NODES,
    Held,
    ReachingTensors,
    Read,
    Schedule,
    predict,
    tensors_of,
)
from gradscope.model import Finding, Site
from gradscope.program.ahead.questions import FromFrames, start_before
from gradscope.program.sites import Place, user_frames
from gradscope.program.tensors import held_node, is_held_leaf, is_parameter, requires_grad
from gradscope.rules import gs202

# Nodes before a CopySlices among which the node is that it wraps, ``x[0].mul_(y)`` for one: between
# the two lie at most the nodes of a clone and of renewed views (``Inspector._claim_slices``).
_SLICES = 4
# Lines of one frame at which the graphs that a change concerns are searched for. At the first, a
# result may not have its name yet, because it is bound after all of these:
#
#     out = head(
#         self.norm(x.mul_(2)),
#     )
_TRIES = 3
# Changes that are looked into at once: each one reads the program ahead, and every line is traced
# while one waits.
_MOST_WAITING = 16
_DEEPEST = 1_000_000  # frames, more than any program has: no line was looked at yet


@dataclass(slots=True)
class _OutOfDate:
    """The stale tensors of one graph: their names, the nodes that saved them, and the lines."""

    tensors: dict[str, None] = field(default_factory=dict)
    nodes: dict[str, None] = field(default_factory=dict)
    made: dict[Site, None] = field(default_factory=dict)


class Needed(NamedTuple):
    """A graph with stale tensors on which the code will call backward; or may, under
    ``conditions``.
    """

    read: Read
    stale: _OutOfDate
    conditions: tuple[str, ...] | None

    def facts(self, changed_at: Site, after: int, by: gs202.By) -> gs202.StaleSoon:
        """Return the facts of the finding; ``after`` is the number of backward calls so far."""
        read, stale = self.read, self.stale
        tensors, nodes = tuple(stale.tensors)[:MOST_NAMED], tuple(stale.nodes)[:MOST_NAMED]
        saved = tensors, nodes, tuple(stale.made)[:MOST_MADE]
        known = changed_at, read.name, *saved, read.site, read.backward, after, by, self.conditions
        again = read.again and not read.alone
        return gs202.StaleSoon(*known, carried=again and read.carried, again=again)


@dataclass(frozen=True, slots=True)
class StaleGraphs:
    """Finds the graphs that a modification made stale; it holds nodes, and lives for one
    inspection.

    ``is_changed`` picks the modified saved tensors. ``unnamed`` is what a finding calls one without
    a name. ``tolerant`` are the kinds of node whose backward does not depend on the values.
    """

    watch: State
    is_changed: Callable[[Packed], bool]
    unnamed: str
    tolerant: frozenset[str] = frozenset()
    walker: Walker = field(default_factory=lambda: Walker(MOST_NODES))

    def needed(
        self, start: FromFrames, frames: Sequence[FrameType], schedule: Schedule
    ) -> Needed | None:
        """Return the first stale graph on which the code will call backward, or else the first one
        on which it may.
        """
        self.watch.names.learn_variables(frames)
        wanted = ReachingTensors([h for h in tensors_of(frames) if self._traces(h)], self._traces)
        if not wanted.leads:
            return None
        foretold = predict(wanted, start, frames, schedule.rounds)
        schedule.read(foretold)
        for held, read in foretold.reads:
            if not source.runs_a_part(read.backward):
                return Needed(read, self._stale_in(held), foretold.conditions)
        return None

    def _traces(self, held: Held) -> bool:
        return bool(self._stale_in(held).nodes)

    def _stale_in(self, held: Held) -> _OutOfDate:
        found = _OutOfDate()
        for node in self.walker.walk([held_node(held.tensor)]):
            for packed in () if node.name() in self.tolerant else self._saved_by(node):
                if packed.tensor is not None and self.is_changed(packed):
                    found.tensors[self.watch.names.of_tensor(packed.tensor) or self.unnamed] = None
                    found.nodes[node.name()] = None
                    if packed.place is not None:
                        found.made[packed.place.site] = None
        return found

    def _saved_by(self, node: Node) -> list[Packed]:
        """Return what a node saved. No inspection may have met the node yet: then what it saved
        waits in the ledger under the node's number, or is read from the node of a Function.
        """
        kind, pending = kind_of(type(node)), self.watch.ledger.pending
        if mark_of(node) is None and kind.is_function:
            return packs_in(node, kind)
        if mark_of(node) is None and kind.is_slices:
            number = node._sequence_nr()
            near = (pending.get(n, ()) for n in range(number - _SLICES, number + 1))
            return [packed for each in chain(*near) if (packed := each()) is not None]
        return self.watch.saved_by(node)


@dataclass(slots=True)
class Changed:
    """Saved tensors that one line has modified.

    ``computed``: an operation of a graph made one of them. ``trained``: one is a parameter.
    ``hidden``: they were modified through ``.data``, so torch does not know it. ``depth`` is the
    depth of the frame in which their graphs were searched last, and ``tries`` counts the lines of
    that frame.
    """

    statement: Statement
    computed: bool
    trained: bool
    packs: list[weakref.ref[Packed]]
    hidden: bool = False
    depth: int = _DEEPEST
    tries: int = 0


class InPlace(Observer):
    """Reports GS202 at the line after a modification, or as soon as a variable holds the stale
    graph:

        h = encoder(x)          # saves x
        x.add_(1)               # makes the graph of h stale
        h.sum().backward()      # GS202 is reported before this line, GS201 at it
    """

    def __init__(self, watch: State, lines: LineWatch) -> None:
        self.watch = watch
        self._lines = lines
        self._changes: list[Changed] = []
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what was reported."""
        self._schedule = Schedule()
        self._told: set[Site] = set()

    def changed(self, packs: list[Packed], place: Place, hidden: bool) -> None:
        """Begin to search for the graphs of saved tensors that a line has modified."""
        statement = changed_by(place.site)
        if not hidden:
            mutations = self.watch.mutations
            packs = [packed for packed in packs if mutations.note(packed, statement.site)]
        if not packs or statement.site in self._told or len(self._changes) >= _MOST_WAITING:
            return
        if self._schedule.is_due(place):
            computed = any(map(_is_computed, packs))
            trained = any(is_parameter(t) for packed in packs if (t := packed.tensor) is not None)
            references = [weakref.ref(packed) for packed in packs]
            self._changes.append(Changed(statement, computed, trained, references, hidden))
            self._lines.wait(self, True)

    def at_line(self, frame: FrameType) -> Iterable[Finding]:
        """Search for the graphs of modified tensors, in each frame to which the code returns.

        A function that modifies its argument may have no variable that leads to the graph, but its
        caller may:

            def scale_(t): t.mul_(2)   # only `h`, in the caller, leads to the graph
            h = net(x); scale_(x); h.sum().backward()
        """
        findings: list[Finding] = []
        if not self._changes:
            return findings
        frames = user_frames(frame)
        for change in tuple(self._changes):
            alive = {id(packed) for each in change.packs if (packed := each()) is not None}
            over = not alive or change.statement.site in self._told
            if not over and len(frames) <= change.depth:
                change.tries = 1 if len(frames) < change.depth else change.tries + 1
                change.depth = len(frames)
                if change.tries <= _TRIES:
                    with self._schedule:
                        found = self._examine(change, alive, frames, frame)
                    findings += found
                    over = bool(found)
                else:
                    over = len(frames) == 1
            if over:
                with suppress(ValueError):  # another thread may have come to a line first
                    self._changes.remove(change)
        self._lines.wait(self, bool(self._changes))
        return findings

    def _examine(
        self, change: Changed, alive: set[int], frames: list[FrameType], at: FrameType
    ) -> list[Finding]:
        written = change.statement.target.removesuffix(".data") or "a saved tensor"
        tolerant = gs202.TOLERANT if change.hidden else frozenset()
        graphs = StaleGraphs(self.watch, lambda packed: id(packed) in alive, written, tolerant)
        needed = graphs.needed(start_before(frames[0], at), frames, self._schedule)
        if needed is None:
            return []
        if needed.conditions is None:  # a finding under conditions may still become certain
            self._told.add(change.statement.site)
        by = gs202.By.DATA if change.hidden else gs202.By.OPERATION
        facts = needed.facts(change.statement.site, self.watch.calls, by)
        facts = facts._replace(computed=change.computed, trained=change.trained)
        return [gs202.finding(facts)]


def _is_computed(packed: Packed) -> bool:
    """Return whether an operation of the graph made a saved tensor: it is an output of the node
    that saved it, or has a graph itself.
    """
    tensor = packed.tensor
    if tensor is None or not packed.original:
        return True
    return requires_grad(tensor) and not is_held_leaf(tensor)
