"""``follow``: watches the nodes of one graph until each is destroyed."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from gradscope.api.snapshot import room, snapshot
from gradscope.collect.snapshot import picture
from gradscope.collect.walk import Walker, root_node
from gradscope.errors import GradscopeError
from gradscope.model import Graph, Node, NodeState, SavedState
from gradscope.model.printed import Printed
from gradscope.program.names import Names
from gradscope.program.referrers import tensors_with_graph
from gradscope.program.sites import user_frames
from gradscope.torch_private import DisableTorchFunction

_MOST_NODES = 20_000
_numbers = itertools.count(1)


class _Tag:
    """Put on a node, with which it dies; nothing but the node holds it."""

    __slots__ = ("__weakref__",)


class Life(Printed):
    """The nodes of one graph, and what has become of them; it keeps no part of the graph alive.

    Print it to see which nodes were destroyed, and what was freed of those that are still there.
    """

    def __init__(self, roots: tuple[torch.Tensor, ...], graph: Graph) -> None:
        self._key = f"gradscope life {next(_numbers)}"
        self._roots = [weakref.ref(root) for root in roots]
        self._graph = graph
        self._marks: list[weakref.ref[_Tag]] = []
        for node in Walker(len(graph.nodes)).walk(map(root_node, roots)):
            mark = _Tag()
            metadata: Any = node.metadata
            metadata[self._key] = mark
            self._marks.append(weakref.ref(mark))

    def now(self) -> Graph:
        """The graph as it was when it was followed, with each node in the state in which it is now.

        A node that is gone is ``destroyed``. What it held when it was last seen is ``dropped`` with
        it; whether a backward call had freed that since is not known.
        """
        there = self._there()
        nodes = tuple(
            _destroyed(node) if mark() is None else _renewed(node, there.get(node.index, node))
            for node, mark in zip(self._graph.nodes, self._marks, strict=True)
        )
        self._graph = replace(self._graph, nodes=nodes)
        return self._graph

    @property
    def destroyed(self) -> int:
        """How many of the nodes are gone."""
        return sum(mark() is None for mark in self._marks)

    def __str__(self) -> str:
        return str(self.now())

    __repr__ = __str__

    def _there(self) -> dict[int, Node]:
        """The nodes that a tensor still leads to, as they are now, by their number in the graph."""
        numbers = {id(mark): i for i, ref in enumerate(self._marks) if (mark := ref()) is not None}
        names = Names()
        names.learn_variables(user_frames(sys._getframe(1)))
        found: dict[int, Node] = {}
        walker = Walker(min(_MOST_NODES, room()))
        with DisableTorchFunction():
            for root in self._starts():
                if len(found) == len(numbers) or walker.room <= 0:
                    break
                index = walker.walk([root_node(root)])
                own = {}
                for each, i in index.items():
                    metadata: Any = each.metadata
                    number = numbers.get(id(metadata.get(self._key)))
                    if number is not None:
                        own[i] = number
                if own.values() - found.keys():
                    graph = picture(list(index), index, (), names=names)
                    found.update((number, graph.nodes[i]) for i, number in own.items())
        return found

    def _starts(self) -> Iterator[torch.Tensor]:
        """The roots, then all other tensors that have a graph."""
        yield from (root for ref in self._roots if (root := ref()) is not None)
        yield from tensors_with_graph()


def follow(*roots: torch.Tensor) -> Life:
    """Follow the graph of one or more tensors: which nodes are destroyed, and what is freed.

    Works with or without a watch, and keeps nothing alive: each node gets a mark that dies with it.

    Raises GradscopeError for what is no tensor with a graph, and for more than 20,000 nodes.

    Example::

        life = gradscope.follow(loss)
        loss.backward()
        print(life)     # nodes live on, their saved tensors are freed
        del loss
        print(life)     # nodes are destroyed
    """
    for place, root in enumerate(roots, 1):
        if not isinstance(root, torch.Tensor):
            raise GradscopeError(
                f"argument {place} is a {type(root).__name__}: follow a tensor that has a grad_fn"
            )
    graph = snapshot(*roots)
    if graph.not_looked_at or len(graph.nodes) > _MOST_NODES:
        raise GradscopeError(
            f"this graph is too large to follow: it has more than {_MOST_NODES:,} nodes"
        )
    return Life(roots, graph)


def _destroyed(node: Node) -> Node:
    saved = tuple(
        s if s.state.is_gone else replace(s, state=SavedState.DROPPED) for s in node.saved
    )
    return replace(node, state=NodeState.DESTROYED, saved=saved)


def _renewed(node: Node, now: Node) -> Node:
    """``node`` in its present state; what was freed is still told by name."""
    if now.state is NodeState.FREED and not now.saved:
        now = replace(now, saved=tuple(replace(s, state=SavedState.FREED) for s in node.saved))
    return replace(
        node, state=now.state, saved=now.saved, freed_by=now.freed_by, unneeded=node.unneeded
    )
