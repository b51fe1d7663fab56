"""Finds the user's tensors whose graphs lead into what a backward call is about to free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType

import torch
from torch.autograd.graph import Node

from gradscope.collect.calls import Call
from gradscope.collect.look import Look
from gradscope.collect.walk import Walker, dependencies_last, reachable
from gradscope.detect.node_facts import will_free
from gradscope.model import BackwardCall
from gradscope.model.paths import Path
from gradscope.program.reach import Budget, named_tensors
from gradscope.program.tensors import held_node, leaves_of

BUDGET = Budget(max_objects=4_000, max_seconds=0.01, max_depth=10, max_items=64)
_MOST_NODES = 2_000  # that may be touched in one look
_MOST_TENSORS = 64


@dataclass(slots=True, eq=False)
class Held:
    """A tensor of the user's, all its names, and what it leads to; lives no longer than the look.

    ``own`` is the place in the look of its node, ``freed`` are the places of the nodes that will be
    freed, the nearest first.
    """

    tensor: torch.Tensor
    paths: list[Path] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    own: int | None = None


def tensors_of(frames: Sequence[FrameType]) -> list[Held]:
    """Return the tensors with a graph that variables lead to, those with short names first."""
    found = named_tensors(frames, BUDGET)
    return [Held(tensor, paths) for tensor, paths in found[:_MOST_TENSORS]]


def may_be_shared(call: Call, look: Look, record: BackwardCall) -> bool:
    """Return whether a call of the program frees what it runs, and nothing in it is broken."""
    return not (call.keep or record.create_graph or look.freed or look.stale)


class Freeing:
    """Which nodes of a look its call will free, and from which nodes these can be reached."""

    def __init__(self, look: Look) -> None:
        self.look = look
        self.frees = [will_free(look, i) for i in range(len(look.nodes))]
        self._below = list(self.frees)
        for i in dependencies_last(look.targets):
            self._below[i] = self._below[i] or any(self._below[j] for j in look.targets[i])
        self._walker = Walker(_MOST_NODES)

    def trace(self, held: Held) -> bool:
        """Fill in what the tensor leads to; return whether any of it will be freed."""
        start = held_node(held.tensor)
        if start is None:
            return False
        held.own = self.look.index.get(start)
        met = self._met_from(start)
        held.freed = [i for i in reachable(self.look.targets, met) if self.frees[i]]
        return bool(held.freed)

    def _met_from(self, start: Node) -> list[int]:
        """The nodes of the look that a walk from ``start`` meets and that lead to what is freed."""
        index = self.look.index
        walked = self._walker.walk([start], enter=lambda node: node not in index)
        return [i for node in walked if (i := index.get(node)) is not None and self._below[i]]

    def lost(self, roots: Sequence[int], cut: int | None) -> list[torch.Tensor]:
        """Return the leaves that the roots would not lead to if their graph were cut off at
        ``cut``; all their leaves without a cut.
        """
        kept = set() if cut is None else set(reachable(self.look.targets, roots, cut={cut}))
        lost = (i for i in reachable(self.look.targets, roots) if i not in kept)
        return leaves_of(self.look.nodes[i] for i in lost)

    def comes_to(self, held: Held, tensor: torch.Tensor) -> bool:
        """Return whether a way from the held tensor to another runs a node that will be freed."""
        behind = (target for i in held.freed for target in self.look.targets[i])
        found = reachable(self.look.targets, behind)
        node = held_node(tensor)
        if node is not None:
            return self.look.index.get(node) in found
        return any(leaf is tensor for leaf in leaves_of(self.look.nodes[i] for i in found))

    def leaves(self, held: Held) -> list[torch.Tensor]:
        """Return the leaves that the part about to be freed leads to."""
        return leaves_of(self.look.nodes[i] for i in reachable(self.look.targets, held.freed))


def is_root_of(record: BackwardCall, look: Look, held: Held, name: str) -> bool:
    """Return whether a call starts at the tensor held under a name, and nowhere else.

    Compiled code is one node, whatever it returns: there the names tell the results apart.
    """
    root = record.roots[0] if len(record.roots) == 1 else None
    if root is None or held.own is None or held.own != root.node:
        return False
    is_compiled = held.own in look.compiled
    return not is_compiled or root.name in (None, name)
