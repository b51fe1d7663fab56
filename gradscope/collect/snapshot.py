"""Pictures nodes as plain data, where time allows; keeps no node, tensor or frame past the look."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from types import FrameType
from typing import Any

import torch
from torch.autograd.graph import Node

import gradscope.model as model
from gradscope.collect.calls import Shape, Shapes
from gradscope.collect.ledger import Entry, owned_alone
from gradscope.collect.look import Look
from gradscope.collect.marks import Packed, Token, token_of
from gradscope.collect.nodes import Kind, held, kind_of, stale_by_engine, was_freed
from gradscope.collect.state import State
from gradscope.model import Edge, Graph, NodeState, Root, SavedState
from gradscope.program.names import Names
from gradscope.program.sites import site_of, user_frames
from gradscope.program.tensors import describe, is_parameter, label_of, shape_of
from gradscope.program.undisturbed import Uncollected
from gradscope.torch_private import DisableTorchFunction


class _Painter:
    """What is the same for all nodes of one picture. Storages have numbers from 1, by address, so
    that shared memory shows; ``alone`` says of which of them the graph is the only owner.
    """

    def __init__(self, names: Names, alone: Mapping[int, bool]) -> None:
        self.names, self.alone = names, alone
        self.storages = defaultdict[int, int](count(1).__next__)


_label_of_dtype, _label_of_device = functools.cache(label_of), functools.cache(str)
"""The texts for dtypes and devices, each made once."""


def picture(
    nodes: Sequence[Node],
    index: dict[Node, int],
    roots: Sequence[Root],
    *,
    names: Names,
    left: int = 0,
    runs: Callable[[int], bool] = lambda index: True,
) -> Graph:
    """The walked nodes as plain data."""
    with DisableTorchFunction(), Uncollected():  # of the many objects of a picture none is garbage
        kinds = [kind_of(type(node)) for node in nodes]
        found = [held(node, kind) for node, kind in zip(nodes, kinds, strict=True)]
        painter = _Painter(names, owned_alone(found))
        drawn = tuple(
            [
                _node(i, node, kinds[i], found[i], painter, will_run=runs(i))
                for i, node in enumerate(nodes)
            ]
        )
        edges = tuple(
            [
                Edge(i, index[target], nr)
                for i, node in enumerate(nodes)
                for target, nr in node.next_functions
                if target in index
            ]
        )
    return Graph(drawn, edges, tuple(roots), left)


def _node(
    i: int, node: Node, kind: Kind, found: list[Entry], painter: _Painter, *, will_run: bool
) -> model.Node:
    name = node.name().rsplit("::", 1)[-1]
    if kind.is_leaf:
        variable = node.variable  # type: ignore[attr-defined]
        called = painter.names.of_tensor(variable)
        leaf = model.Node(i, name, NodeState.BUFFERLESS, will_run=will_run)
        return replace(leaf, variable=called, variable_label=describe(variable))
    token = token_of(node)
    saved = [_saved(attribute, data, painter) for attribute, data in found]
    state = _state(node, kind, token, bool(saved))
    is_probed = token is None or token.probed
    stale = any(s.state is SavedState.STALE for s in saved) or (
        is_probed and bool(stale_by_engine(node, kind))
    )
    if stale and state.is_whole:
        state = NodeState.STALE
    if (
        not saved
        and token is not None
        and token.graph is not None
        and token.index < len(token.graph.nodes)
    ):
        saved = [replace(s, state=SavedState.FREED) for s in token.graph.nodes[token.index].saved]
    unneeded = () if state is NodeState.FREED else _unneeded(kind, saved)
    number = node._sequence_nr() if token is None else token.sequence_nr
    drawn = model.Node(i, name, state, number, tuple(saved), will_run=will_run, unneeded=unneeded)
    if token is None:
        return drawn
    module, module_class = token.module or (None, None)
    return replace(
        drawn,
        site=site_of(token.place),
        module=module,
        module_class=module_class,
        freed_by=token.freed_by.number if token.freed_by else None,
        built_after=token.generation,
        differentiates=_differentiates(token),
    )


def _differentiates(token: Token) -> str:
    """Return ``TanhBackward0 of train.py:12`` if a call that ran that node built this one."""
    name, place = token.differentiates or ("", None)
    return name if place is None else f"{name} of {place.site.place}"


def _unneeded(kind: Kind, saved: Sequence[model.SavedTensor]) -> tuple[str, ...]:
    """Return what a node of this kind may save and this one, which was not freed, did not."""
    if kind.is_function or len(kind.names) == len(saved) == 1:
        return ()
    names = {(s.name or "").partition("[")[0] for s in saved}
    return tuple([name for name in kind.names if name not in names])


def _state(node: Node, kind: Kind, token: Token | None, has_saved: bool) -> NodeState:
    if has_saved:
        call = None if token is None else token.call
        kept = call is not None and call.keep and not call.open
        return NodeState.RETAINED if kept else NodeState.LIVE
    if token is not None and (token.freed_by is not None or token.has_buffers):
        return NodeState.FREED
    return NodeState.FREED if was_freed(node, kind) else NodeState.BUFFERLESS


def _saved(name: str, data: Any, painter: _Painter) -> model.SavedTensor:
    shown = None if name.startswith("tensors[") else name
    packed = data if isinstance(data, Packed) else None
    tensor = packed.tensor if packed is not None else data
    if not isinstance(tensor, torch.Tensor):
        return model.SavedTensor(
            shown, (), "packed", "", 0, site=site_of(packed.place) if packed else None
        )
    try:
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, storage.nbytes()
    except (NotImplementedError, RuntimeError):  # sparse and opaque tensors
        key, nbytes = id(tensor), 0
    version = tensor._version
    stale = packed is not None and version != packed.version
    return model.SavedTensor(
        shown,
        shape_of(tensor) or (),
        _label_of_dtype(tensor.dtype),
        _label_of_device(tensor.device),
        nbytes,
        painter.storages[key],
        packed.version if packed is not None else version,
        SavedState.STALE if stale else SavedState.SAVED,
        is_parameter(tensor),
        painter.names.of_tensor(tensor, key),
        site_of(packed.place) if packed is not None else None,
        painter.alone.get(key),
    )


# Taken whatever they cost; later ones only while they stay cheap.
_FREE_PICTURES, _FREE_NODES = 20, 2_000
_SHARE = 0.05  # of the run's time
_MOST_NODES = 50_000


class Pictures:
    """One picture of each shape of graph, and one of every graph that something is wrong with."""

    def __init__(self, state: State, shapes: Shapes) -> None:
        self._state = state
        self._shapes = shapes
        self._taken = self._nodes = 0
        self._seconds = 0.0

    def of(
        self, shape: Shape, look: Look, roots: tuple[Root, ...], frame: FrameType | None
    ) -> tuple[Graph | None, bool]:
        """Return the graph of a look as plain data, and whether the picture is a new one."""
        graph = shape.graph
        saving = self._state.saving
        if graph is not None:
            if self._taken > _FREE_PICTURES or self._state.calls > 2 * _FREE_PICTURES:
                saving.detailed = False
        else:
            detailed, saving.detailed = saving.detailed, True
            # Without the modules, and without the places of what the hooks did not see, the next
            # graph of its shape is pictured.
            worth_it = detailed and not look.unhooked and self._is_cheap(look)
            if not worth_it and not look.freed and not look.stale:
                return None, False
            if len(self._state.running) > 1 and any(t.is_run_elsewhere for t in look.tokens):
                return None, False
            graph = self._take(look, roots, frame)
        new = shape.graph is not graph
        if new:
            self._shapes.keep_picture(shape, graph)
        for i, token in enumerate(look.tokens):
            if token.graph is None:
                token.graph, token.index = graph, i
        return graph, new

    def _is_cheap(self, look: Look) -> bool:
        in_time = self._seconds < _SHARE * self._state.elapsed()
        free = self._taken < _FREE_PICTURES and self._nodes < _FREE_NODES
        return len(look.nodes) <= _MOST_NODES and (in_time or free)

    def _take(self, look: Look, roots: tuple[Root, ...], frame: FrameType | None) -> Graph:
        before = time.thread_time()
        names = self._state.names
        names.learn_variables(user_frames(frame))
        graph = picture(
            look.nodes, look.index, roots, names=names, left=look.left, runs=look.will_run
        )
        self._taken += 1
        self._nodes += len(look.nodes)
        self._seconds += time.thread_time() - before
        return graph
