"""Holds what the inspection of a backward call's graph found: nodes, marks, and their problems."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from torch.autograd.graph import Node

from gradscope.collect.calls import BEFORE_WATCH, EngineCall, Signature
from gradscope.collect.generations import OTHER
from gradscope.collect.marks import NodeMark, Stale
from gradscope.collect.nodes import kind_of
from gradscope.collect.slots import FREED_TEXT
from gradscope.collect.walk import Targets, targets_of
from gradscope.program.sites import Place
from gradscope.torch_private import NO_SEQUENCE_NR

_NOTHING = EngineCall.of(())
"""What is asked for where no call is about to run the graph."""


class Inspection:
    """What the inspection of one backward call's graph found; it lives until the engine starts.

    ``kinds`` and ``places`` are the signature of the graph: the type of each node in depth-first
    order, and where it was made. ``unhooked`` has address and bytes of what new nodes saved while
    the hooks were suspended, which the ledger does not know; ``foreign`` says that hooks of the
    program's own packed what some nodes saved. ``left`` counts the edges that were not followed.
    What the call has ``asked`` for are roots that are ``bare`` of a graph, inputs that are
    ``constant``, and ones that are ``unused``: each by its place among them.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.index: dict[Node, int] = {}
        self.marks: list[NodeMark] = []
        self.kinds: list[type] = []
        self.places: list[Place | None] = []
        self.left = self.nbytes = self.tensors = 0
        self.freed: list[int] = []
        self.stale: list[tuple[int, Stale]] = []
        self.compiled: list[int] = []
        self.oldest: int | None = None
        self.runs: list[bool] | None = None
        self.unhooked: list[tuple[int, int]] = []
        self.foreign = False
        self.asked = _NOTHING
        self.bare: list[int] = []
        self.constant: list[int] = []
        self.unused: list[int] = []

    @property
    def is_wrong(self) -> bool:
        """Whether the engine may refuse to run the graph. What was compiled it refuses only if it
        is to keep it.
        """
        keeps = self.asked.keep_graph or self.asked.create_graph
        asked = self.bare or self.constant or self.unused or (keeps and self.compiled)
        return bool(self.freed or self.stale or asked)

    @cached_property
    def targets(self) -> Targets:
        """Where the edges of each node lead."""
        return targets_of(self.nodes, self.index)

    def will_run(self, i: int) -> bool:
        """Return whether the engine will run the i-th node."""
        return self.runs is None or self.runs[i]

    def signature(self, place: Place | None, kind: int) -> Signature:
        """Return by what a graph is known whose call, of this kind, was made at ``place``."""
        runs = None if self.runs is None else tuple(self.runs)
        nodes = tuple(self.kinds), tuple(self.places), tuple(self.freed), runs
        return Signature(place, kind, self.nbytes, self.left, *nodes)

    def narrow(self, error: BaseException, built: int) -> None:
        """Keep only the problems that the engine can have hit when it ran the graph and raised this
        error: what it has freed itself was most likely built from number ``built`` on. Where it was
        freed and no node says so, it was one that cannot be asked.
        """
        is_freed = FREED_TEXT in str(error)
        self.stale = [] if is_freed else self.stale
        unnamed = (i for i, node in enumerate(self.nodes) if kind_of(type(node)).is_unnamed)
        run = [i for i in self.freed or unnamed if is_freed and self.will_run(i)]
        for mark in (self.marks[i] for i in run):
            mark.freed_by = mark.freed_by or BEFORE_WATCH
        self.freed = [i for i in run if not built <= self.marks[i].sequence_nr < OTHER] or run

    def numbers_of(self, roots: Iterable[Node]) -> tuple[int, ...]:
        """Return the sequence numbers of those roots that were looked at."""
        return tuple(self.marks[self.index[n]].sequence_nr for n in roots if n in self.index)

    def count_fresh(self, latest: int) -> int:
        """Count the nodes, leaves not among them, that were built since this call, the latest."""
        return sum(t.generation == latest and t.sequence_nr != NO_SEQUENCE_NR for t in self.marks)
