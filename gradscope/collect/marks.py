"""Defines what gradscope leaves in the program's graphs: a NodeMark on each node, and a Packed in
place of each saved tensor.

Each lives exactly as long as what it stands for, so its destruction is an event.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch.autograd.graph import Node

from gradscope.collect.calls import Call
from gradscope.model import Graph
from gradscope.program.sites import Place, Route
from gradscope.program.tensors import is_leaf, version_of
from gradscope.torch_private import CALL, carried, hidden_from_compiler


class Census:
    """Counts the marked nodes that live and those that were destroyed; of both, how many were built
    ``before`` the watch.
    """

    __slots__ = ("alive", "before", "destroyed", "graphs", "kept_bytes", "kept_tensors")

    def __init__(self) -> None:
        self.alive = self.before = 0
        self.destroyed = 0
        self.graphs = 0
        """Graphs that live of which only the root is marked."""
        self.kept_tensors = self.kept_bytes = 0
        """About what those of them have saved that their last call has kept."""


class GraphMark:
    """Counts the nodes of a graph of which only the root is marked, and what a call left in it."""

    __slots__ = ("_census", "_kept", "_nodes")
    KEY = "gradscope.graph"

    def __init__(self, census: Census, nodes: int) -> None:
        self._census = census
        self._nodes = nodes
        self._kept = (0, 0)
        census.alive += nodes
        census.graphs += 1

    def leave_to_marks(self) -> None:
        """Count the nodes no more: each has a mark of its own now."""
        self._census.alive -= self._nodes
        self._nodes = 0

    def keep(self, tensors: int, nbytes: int) -> None:
        """Record how many saved tensors and bytes a call left in the graph."""
        self._census.kept_tensors += tensors - self._kept[0]
        self._census.kept_bytes += nbytes - self._kept[1]
        self._kept = tensors, nbytes

    @hidden_from_compiler
    def __del__(self) -> None:
        census = self._census
        census.alive -= self._nodes
        census.graphs -= 1
        census.destroyed += self._nodes
        self.keep(0, 0)


KEY = "gradscope"
"""The key of our mark in ``node.metadata``."""

# Instead of a sequence number, which is never negative: it is not looked up yet.
UNKNOWN = -2

UNTIED = -1
"""Instead of a sequence number: the node must be asked what it saved."""

OPAQUE = ("fn",)
"""What CopySlices saved: the node of the in-place operation itself, which it drops when it is
freed, unseen.
"""


@dataclass(frozen=True, slots=True)
class Stale:
    """A saved tensor that was modified in place since: the tensor, its version then, and its name
    where we know it.
    """

    tensor: torch.Tensor
    version: int
    name: str | None = None


class Keeper(Protocol):
    """Keeps the account of saved tensors."""

    def let_go(self, packed: Packed) -> None:
        """Book that the graph let go of a saved tensor."""


class Packed:
    """What our pack hook returns. Only torch's ``SavedTensor`` holds it, so ``__del__`` runs when
    the graph lets go.

    ``tensor`` is the saved tensor itself where torch would keep it as well (``original``), else a
    detached alias: it shares storage and version counter, and makes no reference cycle through the
    node that the tensor came from. ``theirs`` is what the program's own hooks made of it, with
    their unpack hook, and then there is no ``tensor``. ``by_function`` is told by the frame of
    ``Function.apply``, so never in torch 2.15, where it has none.
    """

    # Most saved tensors differ from these in few points; what is not set costs nothing.
    ledger: Keeper
    tensor: torch.Tensor | None = None
    original: bool = True
    output: tuple[str, int] | None = None
    was_leaf: bool = False
    by_function: bool = False
    version: int = 0
    place: Place | None = None
    route: Route | None = None
    module: tuple[str, str] | None = None
    within: tuple[Place, ...] = ()
    differentiates: tuple[str, Place | None] | None = None
    sequence_nr: int = UNKNOWN
    thread: int = 0
    storage: int = 0
    nbytes: int = 0
    mark: NodeMark | None = None
    theirs: tuple[Any, Callable[[Any], torch.Tensor]] | None = None

    @hidden_from_compiler
    def __del__(self) -> None:
        self.ledger.let_go(self)

    @property
    def is_stale(self) -> bool:
        """Whether the tensor was modified in place since it was saved."""
        return self.tensor is not None and version_of(self.tensor) != self.version

    @property
    def is_detached(self) -> bool:
        """Whether the very tensor that was saved has been detached in place since."""
        return (
            self.original and not self.was_leaf and self.tensor is not None and is_leaf(self.tensor)
        )


Packs: TypeAlias = Sequence[weakref.ref[Packed]]


class NodeMark:
    """What a watch knows of one node, for as long as the node lives.

    ``call`` is the last backward call that ran the node, ``freed_by`` the one in which the graph
    let go of what the node saved. ``packs`` are the saved tensors that our hooks saw, ``unseen``
    the names of those that they did not see (wrapped Python scalars, or all of them without hooks).
    ``sequence_nr`` is torch's with the thread in it, see ``generations.OTHER``. ``graph`` and
    ``index`` tell where the node was first pictured, ``generation`` is the number of
    the last backward call that had run when the node was built; ``probed`` nodes are checked by
    asking torch, as our hooks did not see what they saved.
    """

    # Most nodes differ from these in few points; what is not set costs nothing.
    census: Census
    call: Call | None = None
    freed_by: Call | None = None
    sequence_nr: int
    generation: int
    is_function: bool = False
    place: Place | None = None
    route: Route | None = None
    module: tuple[str, str] | None = None
    differentiates: tuple[str, Place | None] | None = None
    packs: Packs = ()
    unseen: tuple[str, ...] = ()
    probed: bool = False
    graph: Graph | None = None
    index: int = 0

    @hidden_from_compiler
    def __del__(self) -> None:
        self.census.alive -= 1
        self.census.destroyed += 1

    @property
    def has_buffers(self) -> bool:
        """Whether the node saved something, so that it can be freed."""
        return bool(self.packs or self.unseen)

    @property
    def is_run_elsewhere(self) -> bool:
        """Whether a call runs the node now that this thread does not: torch may free what it saved
        just while that is read.
        """
        call, here = self.call, carried(CALL)
        return call is not None and call.open and not (here is not None and here.is_in(call))


class LeafMark(NodeMark):
    """The mark on the node of a leaf. It is not counted, because graphs share such nodes and torch
    does not number them.
    """

    @hidden_from_compiler
    def __del__(self) -> None:
        pass


def are_made() -> bool:
    """Return whether any node may have a mark: each watch makes its own class of them."""
    return len(NodeMark.__subclasses__()) > 1


def mark_of(node: Node) -> NodeMark | None:
    """Return the mark on a node, if a watch has met it."""
    metadata: Any = node.metadata  # a property, though its stub says a method
    mark = metadata.get(KEY)
    return mark if isinstance(mark, NodeMark) else None
