"""Finds the user's tensors whose graphs lead into the nodes that a backward call is about to free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType

import torch
from torch.autograd.graph import Node

from gradscope.collect.look import Look
from gradscope.collect.walk import Walker, dependencies_last, edges_of, reachable
from gradscope.program.paths import Path
from gradscope.program.reach import Budget, visit
from gradscope.program.tensors import node_of

BUDGET = Budget(max_objects=4_000, max_seconds=0.01, max_depth=10, max_items=64)
_MOST_NODES = (
    2_000  # that may be touched in one look: a Node that Python has seen is destroyed by recursion
)
_MOST_TENSORS = 64


@dataclass(slots=True)
class Held:
    """A tensor of the user's, all its names, and what it leads to; lives no longer than the look.

    ``freed`` are the places in the look of the nodes that will be freed, the nearest first; ``root`` is True when the tensor's own
    node is one that will run.
    """

    tensor: torch.Tensor
    paths: list[Path] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    root: bool = False
    own: int | None = None


def tensors_of(frames: Sequence[FrameType]) -> list[Held]:
    """The tensors with a graph that the user's variables hold, those with short names first."""
    by_id: dict[int, Held] = {}

    def found(path: Path, tensor: torch.Tensor) -> None:
        held = by_id.get(id(tensor))
        if held is None:
            held = by_id[id(tensor)] = Held(tensor)
        held.paths.append(path)

    visit(frames, BUDGET, found)
    return list(by_id.values())[:_MOST_TENSORS]


class Freeing:
    """Which nodes of a look its call will free, and from which of its nodes these can be reached."""

    def __init__(self, look: Look) -> None:
        self.look = look
        self._edges = edges_of(look.nodes, look.index)
        self.frees = [token.has_buffers and look.will_run(i) for i, token in enumerate(look.tokens)]
        self._below = list(self.frees)
        for i in dependencies_last(self._edges):
            self._below[i] = self._below[i] or any(
                self._below[edge.target] for edge in self._edges[i]
            )
        self._walker = Walker(_MOST_NODES)

    def trace(self, held: Held) -> bool:
        """Fill in what the tensor leads to; True if it leads to a node that will be freed."""
        start = node_of(held.tensor)
        if start is None:
            return False
        held.own = self.look.index.get(start)
        held.root = held.own is not None and self.look.will_run(held.own)
        met = self._met_from(start)
        held.freed = [i for i in reachable(self._edges, met) if self.frees[i]]
        return bool(held.freed)

    def _met_from(self, start: Node) -> list[int]:
        """The nodes of the look at which a walk from ``start`` arrives, if they lead to what will be freed."""
        index = self.look.index
        walked = self._walker.walk([start], enter=lambda node: node not in index)
        return [i for node in walked if (i := index.get(node)) is not None and self._below[i]]

    def has_leaf_without(self, roots: Sequence[int], cut: int) -> bool:
        """Whether the roots would still lead to a leaf if their graph were cut off at the node ``cut``."""
        below = reachable(self._edges, roots, cut=cut)
        return any(hasattr(self.look.nodes[i], "variable") for i in below)

    def leaves(self, held: Held) -> list[torch.Tensor]:
        """The leaves that the part about to be freed leads to."""
        below = (self.look.nodes[i] for i in reachable(self._edges, held.freed))
        leaves = (getattr(node, "variable", None) for node in below)
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
