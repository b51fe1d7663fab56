"""Pictures nodes as plain data, where time allows; keeps no node, tensor or frame past the look."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, fields, make_dataclass, replace
from itertools import chain, count, islice
from types import FrameType
from typing import Any

import torch
from torch.autograd.graph import Node

import gradscope.model as model
from gradscope.collect.calls import Shape, Shapes
from gradscope.collect.ledger import Entry, memory_of
from gradscope.collect.look import Look
from gradscope.collect.marks import Packed, Token, are_made, token_of
from gradscope.collect.nodes import held, kind_of, stale_by_engine, was_freed, whole_kinds
from gradscope.collect.state import State
from gradscope.model import Edge, Graph, NodeState, Root, SavedState
from gradscope.program.names import Names
from gradscope.program.sites import site_of, user_frames
from gradscope.program.tensors import describe, is_parameter, label_of, shape_of
from gradscope.program.undisturbed import Uncollected
from gradscope.torch_private import DisableTorchFunction


def _quickly(made: Any) -> Any:
    """Return what makes objects of a frozen class in a quarter of the time: a class of the same
    slots that is not frozen, and whose objects become of that class.
    """

    def become(draft: Any) -> None:
        draft.__class__ = made

    plain = [(f.name, Any, field(default=f.default)) for f in fields(made)]
    return make_dataclass(made.__name__, plain, slots=True, namespace={"__post_init__": become})


_node_of: Callable[..., model.Node] = _quickly(model.Node)
_saved_of: Callable[..., model.SavedTensor] = _quickly(model.SavedTensor)
_edge_of: Callable[..., Edge] = _quickly(Edge)
_label_of_dtype, _label_of_device = functools.cache(label_of), functools.cache(str)
"""The texts for dtypes and devices, each made once."""
_last_part = functools.cache(lambda name: name.rsplit("::", 1)[-1])


class _Painter:
    """What is the same for all nodes of one picture. Storages have numbers from 1, by address, so
    that shared memory shows; ``whole`` are kinds of which no node is freed or stale.
    """

    def __init__(self, names: Names, found: list[list[Entry]], numbers: Iterable[int]) -> None:
        self.names, self.memory = names, memory_of(found)
        self.storages = defaultdict[int, int](chain(numbers, count(len(found))).__next__)
        self.shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.whole: set[type] = set()


def picture(
    index: dict[Node, int],
    roots: Sequence[Root],
    *,
    names: Names,
    left: int = 0,
    runs: Callable[[int], bool] = lambda index: True,
) -> Graph:
    """The walked nodes as plain data."""
    with DisableTorchFunction(), Uncollected():  # of the many objects of a picture none is garbage
        found = [held(node, kind_of(type(node))) for node in index]
        painter = _Painter(names, found, islice(index.values(), 1, None))
        tokens = [*map(token_of, index)] if are_made() else [None] * len(index)
        painter.whole = whole_kinds(n for n, t in zip(index, tokens, strict=True) if t is None)
        nodes = [_node(i, n, tokens[i], found[i], painter, runs(i)) for n, i in index.items()]
        leaving = ((i, edge) for node, i in index.items() for edge in node.next_functions)
        edges = [_edge_of(i, index[node], nr) for i, (node, nr) in leaving if node in index]
    return Graph(tuple(nodes), tuple(edges), tuple(roots), left)


def _node(
    i: int, node: Node, token: Token | None, found: list[Entry], painter: _Painter, will_run: bool
) -> model.Node:
    kind = kind_of(type(node))
    saved = tuple([_saved(name, data, painter) for name, data in found])
    if token is None and type(node) in painter.whole:
        state = NodeState.LIVE if saved else NodeState.BUFFERLESS
    else:
        state = _state(node, token, saved)
    told: tuple[Any, ...] = _NOTHING
    number, differentiates = None, ""
    if kind.is_leaf:
        variable: Any = node.variable  # type: ignore[attr-defined]
        told = (*_NOTHING[:3], painter.names.of_tensor(variable), describe(variable), None, 0)
    elif token is None:
        number = node._sequence_nr()
    else:
        number, differentiates = token.sequence_nr, _differentiates(token)
        if not saved and token.graph is not None and token.index < len(token.graph.nodes):
            before = token.graph.nodes[token.index].saved
            saved = tuple([replace(s, state=SavedState.FREED) for s in before])
        freed_by = token.freed_by.number if token.freed_by else None
        module = token.module or (None, None)
        told = (site_of(token.place), *module, None, None, freed_by, token.generation)
    is_known = state is NodeState.FREED or kind.is_function or len(kind.names) == len(saved) == 1
    unneeded = () if is_known else _unneeded(kind.names, *[s.name for s in saved])
    name = _last_part(node.name())
    return _node_of(i, name, state, number, saved, *told, will_run, unneeded, differentiates)


_NOTHING = (None,) * 6 + (0,)
"""What a node with no mark tells of itself from ``site`` to ``built_after``."""


def _differentiates(token: Token) -> str:
    """Return ``TanhBackward0 of train.py:12`` if a call that ran that node built this one."""
    name, place = token.differentiates or ("", None)
    return name if place is None else f"{name} of {place.site.place}"


@functools.lru_cache
def _unneeded(names: tuple[str, ...], *saved: str | None) -> tuple[str, ...]:
    """Return what a node of this kind may save and this one, which was not freed, did not."""
    there = {(name or "").partition("[")[0] for name in saved}
    return tuple([name for name in names if name not in there])


def _state(node: Node, token: Token | None, saved: Sequence[model.SavedTensor]) -> NodeState:
    kind = kind_of(type(node))
    hidden = [] if token is None or kind.names else [p for p in (r() for r in token.packs) if p]
    stale = any(s.state is SavedState.STALE for s in saved) or any(p.is_stale for p in hidden)
    if stale or ((token is None or token.probed) and stale_by_engine(node, kind)):
        return NodeState.STALE
    if saved or hidden:
        call = None if token is None else token.call
        kept = call is not None and call.keep and not call.open
        return NodeState.RETAINED if kept else NodeState.LIVE
    if token is not None and (token.freed_by is not None or (token.has_buffers and kind.names)):
        return NodeState.FREED
    return NodeState.FREED if was_freed(node, kind) else NodeState.BUFFERLESS


def _saved(name: str, data: Any, painter: _Painter) -> model.SavedTensor:
    shown = None if name.startswith("tensors[") else name
    packed = data if isinstance(data, Packed) else None
    site = None if packed is None else site_of(packed.place)
    tensor = data if packed is None else packed.tensor
    if not isinstance(tensor, torch.Tensor):
        return model.SavedTensor(shown, (), "packed", "", 0, site=site)
    memory = painter.memory.get(id(tensor))
    key, nbytes, alone = (id(tensor), 0, None) if memory is None else memory
    now = tensor._version
    version = now if packed is None else packed.version
    state = SavedState.SAVED if version == now else SavedState.STALE
    shape = shape_of(tensor) or ()
    shape = painter.shapes.setdefault(shape, shape)
    dtype, device = _label_of_dtype(tensor.dtype), _label_of_device(tensor.device)
    is_owned = not (tensor._is_view() or tensor.is_leaf) or not is_parameter(tensor)
    called, storage = painter.names.of_tensor(tensor, key), painter.storages[key]
    what = shown, shape, dtype, device, nbytes, storage, version, state
    within = () if packed is None else tuple([place.site for place in packed.within])
    return _saved_of(*what, not is_owned, called, site, alone, within)


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
        graph = picture(look.index, roots, names=names, left=look.left, runs=look.will_run)
        self._taken += 1
        self._nodes += len(look.nodes)
        self._seconds += time.thread_time() - before
        return graph
