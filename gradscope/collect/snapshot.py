"""Pictures the nodes of a graph as plain data; keeps no node, tensor or frame past the look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.graph import Node

import gradscope.model as model
from gradscope.collect.marks import Packed, Token, token_of
from gradscope.collect.nodes import Kind, held, kind_of, stale_by_engine, was_freed
from gradscope.collect.owners import owned_alone
from gradscope.collect.walk import edges_of
from gradscope.model import Graph, NodeState, Root, SavedState
from gradscope.program.names import Names
from gradscope.program.sites import site_of
from gradscope.program.tensors import describe, dtype_label, is_parameter, shape_of, version_of
from gradscope.torch_private import DisableTorchFunction


class Storages:
    """Numbers storages within one picture, so that shared memory shows.

    ``alone`` says by address of which of them the graph is the only owner.
    """

    def __init__(self, alone: Mapping[int, bool]) -> None:
        self._numbers: dict[int, int] = {}
        self.alone = alone

    def number(self, key: int) -> int:
        """The number of the storage with this address, from 1."""
        return self._numbers.setdefault(key, len(self._numbers) + 1)


def picture(
    nodes: Sequence[Node],
    index: dict[Node, int],
    roots: Sequence[Root],
    *,
    names: Names | None = None,
    left: int = 0,
    runs: Callable[[int], bool] = lambda index: True,
) -> Graph:
    """The walked nodes as plain data."""
    kinds = [kind_of(type(node)) for node in nodes]
    found = [held(node, kind) for node, kind in zip(nodes, kinds, strict=True)]
    storages = Storages(owned_alone(found))
    drawn = tuple(
        _node(i, node, kinds[i], found[i], names, storages, runs(i)) for i, node in enumerate(nodes)
    )
    edges = tuple(edge for leaving in edges_of(nodes, index) for edge in leaving)
    return Graph(drawn, edges, tuple(roots), left)


def _node(
    i: int,
    node: Node,
    kind: Kind,
    found: Sequence[tuple[str, Any]],
    names: Names | None,
    storages: Storages,
    runs: bool,
) -> model.Node:
    name = node.name().rsplit("::", 1)[-1]
    token = token_of(node)
    if kind.is_leaf:
        variable = node.variable  # type: ignore[attr-defined]
        called = names.of_tensor(variable) if names else None
        return model.Node(
            i,
            name,
            NodeState.BUFFERLESS,
            variable=called,
            variable_label=describe(variable),
            will_run=runs,
        )
    saved = [_saved(attribute, data, names, storages) for attribute, data in found]
    state = _state(node, kind, token, bool(saved))
    stale = any(s.state is SavedState.STALE for s in saved) or (
        (token is None or token.probed) and bool(stale_by_engine(node, kind))
    )
    if stale and state.is_whole:
        state = NodeState.STALE
    if (
        not saved
        and token is not None
        and token.graph is not None
        and token.index < len(token.graph.nodes)
    ):
        saved = [_with_state(s, SavedState.FREED) for s in token.graph.nodes[token.index].saved]
    unneeded = () if state is NodeState.FREED else _unneeded(kind, saved)
    if token is None:
        return model.Node(
            i, name, state, node._sequence_nr(), tuple(saved), will_run=runs, unneeded=unneeded
        )
    module, module_class = token.module or (None, None)
    return model.Node(
        i,
        name,
        state,
        node._sequence_nr(),
        tuple(saved),
        site_of(token.place),
        module,
        module_class,
        freed_by=token.freed_by.number if token.freed_by else None,
        built_after=token.generation,
        will_run=runs,
        unneeded=unneeded,
    )


def _unneeded(kind: Kind, saved: Sequence[model.SavedTensor]) -> tuple[str, ...]:
    """Return what a node of this kind may save and this one, which was not freed, did not."""
    names = {(s.name or "").partition("[")[0] for s in saved}
    return () if kind.is_function else tuple(name for name in kind.names if name not in names)


def _with_state(saved: model.SavedTensor, state: SavedState) -> model.SavedTensor:
    return replace(saved, state=state)


def _state(node: Node, kind: Kind, token: Token | None, has_saved: bool) -> NodeState:
    if has_saved:
        kept = (
            token is not None and token.call is not None and token.call.keep and not token.call.open
        )
        return NodeState.RETAINED if kept else NodeState.LIVE
    if token is not None and (token.freed_by is not None or token.has_buffers):
        return NodeState.FREED
    return NodeState.FREED if was_freed(node, kind) else NodeState.BUFFERLESS


def _saved(name: str, data: Any, names: Names | None, storages: Storages) -> model.SavedTensor:
    shown = None if name.startswith("tensors[") else name
    packed = data if isinstance(data, Packed) else None
    tensor = packed.tensor if packed is not None else data
    if not isinstance(tensor, torch.Tensor):
        return model.SavedTensor(
            shown, (), "packed", "", 0, site=site_of(packed.place) if packed else None
        )
    with DisableTorchFunction():
        parameter = is_parameter(tensor)
        try:
            storage = tensor.untyped_storage()
            key, nbytes = storage._cdata, storage.nbytes()
        except (NotImplementedError, RuntimeError):  # sparse and opaque tensors
            key, nbytes = id(tensor), 0
        stale = packed is not None and version_of(tensor) != packed.version
        return model.SavedTensor(
            shown,
            shape_of(tensor) or (),
            dtype_label(tensor),
            str(tensor.device),
            nbytes,
            storages.number(key),
            packed.version if packed is not None else tensor._version,
            SavedState.STALE if stale else SavedState.SAVED,
            parameter,
            names.of_tensor(tensor) if names else None,
            site_of(packed.place) if packed is not None else None,
            storages.alone.get(key),
        )
