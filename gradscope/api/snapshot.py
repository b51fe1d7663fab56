"""Looks at any backward graph on demand, inside a watch or without one: ``snapshot``, ``saved_tensors``, ``check``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, Node

from gradscope.api.watch import current
from gradscope.collect.backward import Backward
from gradscope.collect.ledger import Ledger
from gradscope.collect.snapshot import picture
from gradscope.collect.walk import Walker, root_node
from gradscope.errors import GradscopeError
from gradscope.hooks import StackLimit
from gradscope.model import Graph, Hazards, Root, SavedTensors
from gradscope.program.names import Names
from gradscope.program.sites import user_frames
from gradscope.program.tensors import describe
from gradscope.program.variables import variables

_MOST_NODES = 300_000
_limit = StackLimit()


def snapshot(*roots: torch.Tensor | GradientEdge) -> Graph:
    """The backward graph of one or more tensors as plain data, as it is at this moment.

    Works on any graph, with or without a watch; reads nothing that would run an unpack hook. Nodes come in depth-first order from
    the roots. A very deep graph is looked at only as far as the stack allows (``Graph.not_looked_at`` counts the edges left).

    Raises GradscopeError for a root that has no graph (a leaf, or a result under ``no_grad``).
    """
    nodes = _nodes(roots)
    session = current()
    names = session.names if session is not None else Names()
    frames = user_frames(sys._getframe(1))
    names.learn_variables(frames)
    most = room()
    if session is not None:
        with torch._C.DisableTorchFunction():
            session.backward.looker.look(
                nodes
            )  # ties what the hooks saw to the nodes: sites, modules, generations
    walker = Walker(most)
    index = walker.walk(nodes)
    called = _names_of(roots, frames)
    shown = [
        Root(index[node], name, describe(root) if isinstance(root, torch.Tensor) else "")
        for node, root, name in zip(nodes, roots, called, strict=True)
    ]
    return picture(list(index), index, shown, names=names, left=walker.left)


def saved_tensors(*roots: torch.Tensor | GradientEdge) -> SavedTensors:
    """All saved tensors of the graph of one or more tensors: pairs of a node's name and what it saved.

    Each tells its name in the derivative formula, shape, dtype, bytes, state (saved, retained, freed, stale) and, where a watch saw it,
    the line that saved it. Raises GradscopeError for a root that has no graph.
    """
    return SavedTensors(
        (node.name, saved) for node in snapshot(*roots).nodes for saved in node.saved
    )


def check(
    *roots: torch.Tensor | GradientEdge, inputs: Sequence[torch.Tensor | GradientEdge] | None = None
) -> Hazards:
    """What the engine would raise if backward were called on ``roots`` now; empty when it would run.

    ``inputs`` restricts the call as in ``backward(inputs=…)``. Nothing is run and nothing is changed. Without a watch it is not known
    which call freed a graph, nor which line built it.

    Raises GradscopeError for a root that has no graph.
    """
    _nodes(roots)
    session = current()
    backward = session.backward if session is not None else _bystander()
    return Hazards(backward.foresee(roots, tuple(inputs or ())))


def _bystander() -> Backward:
    """A choke point that no call goes through, for looks outside a watch."""
    names = Names()
    return Backward(Ledger(names), names, None, lambda finding: None, hooked=False)


def _nodes(roots: Sequence[Any]) -> list[Node]:
    if not roots:
        raise GradscopeError("no tensor given: pass the loss, or another tensor with a grad_fn")
    nodes = []
    for place, root in enumerate(roots, 1):
        if not isinstance(root, torch.Tensor | GradientEdge):
            raise GradscopeError(
                f"argument {place} is a {type(root).__name__}: pass tensors (or GradientEdges)"
            )
        node = root_node(root)
        if node is None:
            reason = "it is a leaf" if root.requires_grad else "it does not require grad"  # type: ignore[union-attr]
            raise GradscopeError(
                f"argument {place} has no backward graph: {reason}; pass a tensor with a grad_fn"
            )
        nodes.append(node)
    return nodes


def room() -> int:
    """How many nodes may be touched in one look: what the stack allows to destroy once Python has seen it."""
    session = current()
    limit = session.backward.stack_limit if session is not None else _limit
    return min(limit.room_for(_MOST_NODES), _MOST_NODES)


def _names_of(roots: Sequence[Any], frames: Sequence[Any]) -> list[str | None]:
    found = {id(value): name for frame in frames[:1] for name, value in reversed(variables(frame))}
    return [found.get(id(root)) for root in roots]
