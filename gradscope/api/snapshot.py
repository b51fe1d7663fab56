"""``snapshot`` and ``saved_tensors``: any backward graph as plain data, with or without a watch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, Node

from gradscope.api.watch import current
from gradscope.collect.snapshot import picture
from gradscope.collect.stack_limit import StackLimit
from gradscope.collect.walk import Walker, root_node
from gradscope.errors import GradscopeError
from gradscope.model import Graph, Root, SavedTensors
from gradscope.program.names import Names, names_in
from gradscope.program.sites import user_frames
from gradscope.program.tensors import describe
from gradscope.torch_private import DisableTorchFunction

_MOST_NODES = 300_000
_limit = StackLimit()


def snapshot(*roots: torch.Tensor | GradientEdge) -> Graph:
    """Return the backward graph of one or more tensors as plain data, as it is at this moment.

    Works on any graph, with or without a watch, and reads nothing that would run an unpack hook.
    Nodes come in depth-first order from the roots. A very deep graph is looked at only as far as
    the stack allows; ``Graph.not_looked_at`` counts the edges left.

    Raises GradscopeError for a root that has no graph (a leaf, or a result under ``no_grad``).
    """
    nodes = start_nodes(roots)
    session = current()
    names = session.state.names if session is not None else Names()
    frames = user_frames(sys._getframe(1))
    names.learn_variables(frames)
    walker = Walker(room())
    if session is not None:
        # Ties what the hooks saw to the nodes: sites, modules, generations.
        with DisableTorchFunction():
            session.looker.look(nodes)
    index = walker.walk(nodes)
    named = names_in(frames[0], roots) if frames else [None] * len(roots)
    shown = [
        Root(index[node], name, describe(root) if isinstance(root, torch.Tensor) else "")
        for node, root, name in zip(nodes, roots, named, strict=True)
    ]
    return picture(list(index), index, shown, names=names, left=walker.left)


def start_nodes(roots: Sequence[Any]) -> list[Node]:
    """Return the node of each root. Raises GradscopeError for what has no graph."""
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
    """Return how many nodes one look may touch: those that the stack allows to destroy later."""
    session = current()
    limit = session.state.stack_limit if session is not None else _limit
    return min(limit.room_for(_MOST_NODES), _MOST_NODES)


def saved_tensors(*roots: torch.Tensor | GradientEdge) -> SavedTensors:
    """Return all saved tensors of the graph of one or more tensors, each with the name of its node.

    Each knows its name in the derivative formula, shape, dtype, bytes, state (saved, retained,
    freed, stale) and, where a watch saw it, the line that saved it.

    Raises GradscopeError for a root that has no graph.
    """
    return SavedTensors(
        (node.name, saved) for node in snapshot(*roots).nodes for saved in node.saved
    )
