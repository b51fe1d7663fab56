"""Takes snapshots of nodes as plain data, if time allows; keeps no node, tensor or frame after."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from types import FrameType
from typing import Any, NamedTuple

from torch.autograd.graph import Node

import gradscope.model as model
from gradscope.collect.calls import Shape, Shapes
from gradscope.collect.inspection import Inspection
from gradscope.collect.marks import NodeMark, Packed, are_made, mark_of
from gradscope.collect.nodes import (
    held,
    held_if_whole,
    kind_of,
    known_kinds,
    stale_by_engine,
    was_freed,
)
from gradscope.collect.saved_bytes import Entry, Storages
from gradscope.collect.state import State
from gradscope.collect.walk import Following
from gradscope.model import Graph, NodeState, Root, SavedState, SavedTensor
from gradscope.model.graph import Edges, Nodes
from gradscope.program.names import Names
from gradscope.program.sites import Place, site_of, user_frames
from gradscope.program.tensors import PLAIN, describe, is_parameter, label_of, shape_of
from gradscope.program.undisturbed import GCPaused
from gradscope.torch_private import (
    NO_SEQUENCE_NR,
    SAVED_TENSORS_ARE_READABLE,
    DisableTorchFunction,
    dispatch_modes,
)

_facts = attrgetter("shape", "dtype", "device", "_version")
_others = attrgetter("dtype", "device", "_version")


class _Read(NamedTuple):
    """What was read of a saved tensor, but for its storage; no facts if it is not a tensor.

    ``packed`` is what our pack hook knew: the version, and the places that saved it.
    """

    name: str
    facts: tuple[Any, ...] | None
    is_parameter: bool = False
    called: str | None = None
    packed: tuple[int, Place | None, tuple[Place, ...]] | None = None

    @property
    def is_stale(self) -> bool:
        """Whether the tensor was modified since."""
        return bool(self.packed and self.facts and self.facts[3] != self.packed[0])

    def form(self) -> SavedTensor:
        """Return the same as a picture has it."""
        version, place, within = self.packed or (None, None, ())
        name = None if self.name.startswith("tensors[") else self.name
        if self.facts is None:
            return SavedTensor(name, (), "packed", "", 0, site=site_of(place))
        shape, dtype, device, now = self.facts
        state = SavedState.STALE if self.is_stale else SavedState.SAVED
        what = name, tuple(shape), label_of(dtype), str(device), 0, 0
        then = now if version is None else version
        told = then, state, self.is_parameter, self.called, site_of(place), None
        return SavedTensor(*what, *told, tuple([each.site for each in within]))


def picture(
    index: dict[Node, int],
    roots: Sequence[Root],
    *,
    names: Names,
    left: int = 0,
    runs: Callable[[int], bool] | None = None,
    following: Iterable[Following] | None = None,
) -> Graph:
    """The walked nodes as plain data; ``following`` has the edges of each, if they were read."""
    if following is None:
        following = map(attrgetter("next_functions"), index)
    with DisableTorchFunction(), GCPaused():  # what is made here is not garbage
        painter = _SnapshotBuilder(names)
        painter.paint(index, following, runs)
    return Graph(painter.nodes, painter.edges, tuple(roots), left)


class _SnapshotBuilder:
    """Draws nodes, each as a row of a picture. A form is known by what was read for it."""

    def __init__(self, names: Names) -> None:
        self.nodes, self.edges = Nodes(), Edges()
        self._names, self._of_tensor = names, names.of_tensor
        self._storages, self._add_storage = Storages(), self.nodes.storages.append
        self._saved_forms: dict[tuple[Any, ...], SavedTensor] = {}

    def paint(
        self,
        index: dict[Node, int],
        following: Iterable[Following],
        runs: Callable[[int], bool] | None,
    ) -> None:
        """Draw nodes, with their edges: one loop, with local names, as a graph has very many."""
        asks, saved_by = SAVED_TENSORS_ARE_READABLE and not dispatch_modes(), self._saved
        add, connect, forms = self.nodes.add, self.edges.add, dict[Hashable, int]()
        mark: NodeMark | None = None
        are_marked = are_made()
        for (node, i), edges in zip(index.items(), following, strict=False):
            of = type(node)
            kind = known_kinds.get(of) or kind_of(of)
            if are_marked:
                mark = mark_of(node)
            entries = held_if_whole(node, kind, edges) if asks and mark is None else None
            is_whole = entries is not None
            if entries is None:
                entries = held(node, kind)
            saved: tuple[Any, ...] = ()
            if entries:
                saved = tuple([saved_by(entries, at) for at in range(len(entries))])
            state = "" if is_whole else _state(node, mark, saved).value
            will_run = runs is None or runs(i)
            number, told = (node._sequence_nr(), None) if mark is None else _told(mark)
            read = node.name() if kind.is_unnamed else of, saved, state, will_run, told
            freed = () if saved or mark is None else _freed(mark)
            form = None if kind.is_leaf or freed else forms.get(read)
            if form is None:
                form = forms[read] = len(self.nodes.forms)
                self.nodes.forms.append(self._form(node, mark, *read[1:4], freed))
            add(form, None if number == NO_SEQUENCE_NR else number)
            connect(edges, index)
        self.nodes.weigh(self._storages.nbytes, self._storages.are_alone())

    def _form(
        self,
        node: Node,
        mark: NodeMark | None,
        saved: Sequence[tuple[Any, ...]],
        known: str,
        will_run: bool,
        freed: tuple[SavedTensor, ...],
    ) -> model.Node:
        """Return the form of a node whose state is ``known``, unless it is whole."""
        kind = kind_of(type(node))
        state = NodeState(known or (NodeState.LIVE if saved else NodeState.BUFFERLESS))
        told: tuple[Any, ...] = (None, None, None, None, None, None, 0)
        differentiates = ""
        if kind.is_leaf:
            variable: Any = node.variable  # type: ignore[attr-defined]
            told = (*told[:3], self._names.of_tensor(variable), describe(variable), None, 0)
        elif mark is not None:
            freed_by = mark.freed_by.number if mark.freed_by else None
            module = mark.module or (None, None)
            told = (site_of(mark.place), *module, None, None, freed_by, mark.generation)
            by, place = mark.differentiates or ("", None)
            differentiates = by if place is None else f"{by} of {place.site.place}"
        forms = freed or tuple([self._saved_form(read) for read in saved])
        is_known = (
            state is NodeState.FREED or kind.is_function or len(kind.names) == len(forms) == 1
        )
        unneeded = () if is_known else _unneeded(kind.names, *[one.name for one in forms])
        name = node.name().rsplit("::", 1)[-1]
        told = *told, will_run, unneeded, differentiates
        return model.Node(0, name, state, None, forms, *told)

    def _saved_form(self, read: tuple[Any, ...]) -> SavedTensor:
        known = self._saved_forms.get(read)
        if known is None:
            known = self._saved_forms[read] = _Read(*read).form()
        return known

    def _saved(self, entries: Sequence[Entry], at: int) -> tuple[Any, ...]:
        """Return the fields of a ``_Read``."""
        number, key, is_view, *_ = self._storages.read(entries, at)
        self._add_storage(number)
        name, tensor = entries[at]
        packed = None
        if type(tensor) not in PLAIN:
            if isinstance(tensor, Packed):
                packed = tensor.version, tensor.place, tensor.within
                tensor = tensor.tensor
            if not number:
                return name, None, False, None, packed
            facts = (shape_of(tensor) or (), *_others(tensor))
        else:
            try:
                facts = _facts(tensor)
            except RuntimeError:  # a nested tensor has several shapes
                facts = ((), *_others(tensor))
        is_own = is_parameter(tensor) if is_view else tensor.is_leaf and tensor.requires_grad
        return name, facts, is_own, self._of_tensor(tensor, key), packed


def _told(mark: NodeMark) -> tuple[int, tuple[Any, ...]]:
    """Return the number of a marked node, and what else its mark tells."""
    freed_by = mark.freed_by and mark.freed_by.number
    told = mark.place, mark.module, freed_by, mark.generation, mark.differentiates
    return mark.sequence_nr, told


def _freed(mark: NodeMark) -> tuple[SavedTensor, ...]:
    """Return what a node had saved where it was first pictured."""
    if mark.graph is None or mark.index >= len(mark.graph.nodes):
        return ()
    before = mark.graph.nodes[mark.index].saved
    return tuple([replace(one, state=SavedState.FREED) for one in before])


@functools.lru_cache
def _unneeded(names: tuple[str, ...], *saved: str | None) -> tuple[str, ...]:
    """Return what a node of this kind may save and this one, which was not freed, did not."""
    there = {(name or "").partition("[")[0] for name in saved}
    return tuple([name for name in names if name not in there])


def _state(node: Node, mark: NodeMark | None, saved: Sequence[tuple[Any, ...]]) -> NodeState:
    kind = kind_of(type(node))
    hidden = [] if mark is None or kind.names else [p for p in (r() for r in mark.packs) if p]
    stale = any(_Read(*read).is_stale for read in saved) or any(p.is_stale for p in hidden)
    if stale or ((mark is None or mark.probed) and stale_by_engine(node, kind)):
        return NodeState.STALE
    if saved or hidden:
        call = None if mark is None else mark.call
        kept = call is not None and call.keep and not call.open
        return NodeState.RETAINED if kept else NodeState.LIVE
    if mark is not None and (mark.freed_by is not None or (mark.has_buffers and kind.names)):
        return NodeState.FREED
    return NodeState.FREED if was_freed(node, kind) else NodeState.BUFFERLESS


# Snapshots, and nodes in them, that are taken however long they take, so that no clock changes what
# a short run shows. Later ones are taken only while all of them took less than ``_SHARE`` of the
# run time.
_FREE_SNAPSHOTS, _FREE_NODES = 20, 2_000
_SHARE = 0.05
# Nodes of a graph that is still drawn although nothing is wrong with it. At a few hundred bytes a
# node, a snapshot of more would take tens of megabytes, and nobody can read its picture.
_MOST_NODES = 50_000


class Snapshots:
    """Takes one snapshot of each shape of graph, and one of every graph that has a problem."""

    def __init__(self, state: State, shapes: Shapes) -> None:
        self._state = state
        self._shapes = shapes
        self._taken = self._nodes = 0
        self._seconds = 0.0

    def of(
        self, shape: Shape, look: Inspection, roots: tuple[Root, ...], frame: FrameType | None
    ) -> tuple[Graph | None, bool]:
        """Return an inspected graph as plain data, and whether this snapshot is new.

        A graph of a known shape gets the snapshot of an earlier one.
        """
        graph = shape.graph
        saving = self._state.saving
        if graph is not None:
            if self._taken > _FREE_SNAPSHOTS or self._state.calls > 2 * _FREE_SNAPSHOTS:
                saving.detailed = False
        else:
            detailed, saving.detailed = saving.detailed, True
            # A graph whose modules, or the lines of whose nodes, are not known is left out: the
            # next one of its shape is drawn.
            worth_it = detailed and not look.unhooked and self._is_cheap(look)
            if not worth_it and not look.freed and not look.stale:
                return None, False
            if len(self._state.running) > 1 and any(t.is_run_elsewhere for t in look.marks):
                return None, False
            graph = self._take(look, roots, frame)
        new = shape.graph is not graph
        if new:
            self._shapes.keep_snapshot(shape, graph)
        for i, mark in enumerate(look.marks):
            if mark.graph is None:
                mark.graph, mark.index = graph, i
        return graph, new

    def _is_cheap(self, look: Inspection) -> bool:
        in_time = self._seconds < _SHARE * self._state.elapsed()
        free = self._taken < _FREE_SNAPSHOTS and self._nodes < _FREE_NODES
        return len(look.nodes) <= _MOST_NODES and (in_time or free)

    def _take(self, look: Inspection, roots: tuple[Root, ...], frame: FrameType | None) -> Graph:
        before = time.thread_time()
        names = self._state.names
        names.learn_variables(user_frames(frame))
        graph = picture(look.index, roots, names=names, left=look.left, runs=look.will_run)
        self._taken += 1
        self._nodes += len(look.nodes)
        self._seconds += time.thread_time() - before
        return graph
