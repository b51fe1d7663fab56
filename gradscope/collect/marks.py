"""Marks on the nodes of backward graphs: a mark lives in ``node.metadata`` and dies with its node."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import Node

from gradscope.collect.shapes import NO_SHAPE, Shape

if TYPE_CHECKING:
    from gradscope.collect.ledger import Packed
    from gradscope.collect.steady import Repeat
    from gradscope.model import BackwardCall, Finding, Graph
    from gradscope.program.sites import Place

KEY = "gradscope"
"""Under which ``node.metadata`` holds our mark."""


OPAQUE = ("fn",)
"""What CopySlices saved: the node of the in-place operation itself, which it drops when it is freed and nobody can see."""


class Census:
    """Counts the marked nodes that live and those that were destroyed."""

    __slots__ = ("alive", "destroyed")

    def __init__(self) -> None:
        self.alive = 0
        self.destroyed = 0


@dataclass(frozen=True, slots=True)
class Stale:
    """A saved tensor that was modified in place since: the tensor, its version then, and its name where we know it."""

    tensor: torch.Tensor
    version: int
    name: str | None = None


class Call:
    """A backward call while it runs, and what later calls need to know of it."""

    __slots__ = (
        "calls_first",
        "completed",
        "exact",
        "fields",
        "findings",
        "freed_bytes",
        "freed_tensors",
        "keep",
        "number",
        "open",
        "parent",
        "place",
        "plain",
        "record",
        "repeat",
        "returned_bytes",
        "roots",
        "sequence_nr",
        "shape",
        "steps",
        "thread",
        "unhooked",
    )

    def __init__(self, number: int, place: Place | None, keep: bool) -> None:
        self.number = number
        self.place = place
        self.keep = keep
        self.open = True
        self.completed = False
        self.exact = True
        """Ask of every freed tensor whether its memory returned; left out for graphs that were met before."""
        self.parent: Call | None = None
        self.roots: tuple[int, ...] = ()
        self.sequence_nr = 0
        self.steps = 0
        self.calls_first: set[str] = set()
        self.freed_tensors = self.freed_bytes = self.returned_bytes = 0
        self.shape: Shape = NO_SHAPE
        self.repeat: Repeat | None = None
        """What the look at a graph without hooks has recognized, while the call runs."""
        self.plain = False
        """No flags, nothing around it and nothing wrong with its graph, all of which was built since the call before."""
        self.thread = get_ident()
        self.unhooked = (0, 0)
        """Tensors and bytes that its graph saved while the hooks were lifted."""
        self.findings: list[Finding] = []
        self.fields: dict[str, Any] = {}
        self.record: BackwardCall | None = None


class Weight:
    """Counts the nodes of a graph of which only the root is marked."""

    __slots__ = ("_census", "_nodes")
    KEY = "gradscope.graph"

    def __init__(self, census: Census, nodes: int) -> None:
        self._census = census
        self._nodes = nodes
        census.alive += nodes

    def __del__(self) -> None:
        self._census.alive -= self._nodes
        self._census.destroyed += self._nodes


class Token:
    """What a watch knows of one node, for as long as the node lives.

    ``call`` is the last backward call that ran the node, ``freed_by`` the one in which the graph let go of what the node saved.
    ``packs`` are the saved tensors that our hooks saw, ``unseen`` the names of those that they did not see (wrapped
    Python scalars, or all of them without hooks). ``graph`` and ``index`` tell where the node was first pictured,
    ``generation`` is the number of the last backward call that had run when the node was built; ``probed`` nodes are checked by
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
    module: tuple[str, str] | None = None
    packs: Sequence[weakref.ref[Packed]] = ()
    unseen: tuple[str, ...] = ()
    probed: bool = False
    graph: Graph | None = None
    index: int = 0
    unhooked: tuple[tuple[int, int], ...] = ()
    """Address and bytes of what the node saved while our hooks were lifted."""

    def __del__(self) -> None:
        self.census.alive -= 1
        self.census.destroyed += 1

    @property
    def has_buffers(self) -> bool:
        """True when the node saved something, so that it can be freed."""
        return bool(self.packs or self.unseen)


class LeafToken(Token):
    """The mark on the node of a leaf, which counts for nothing: graphs share it, and torch gives it no number."""

    def __del__(self) -> None:
        pass


BEFORE_WATCH = Call(0, None, keep=False)
"""Stands for a backward call that ran before the watch began."""


def token_of(node: Node) -> Token | None:
    """The mark on a node, if a watch has met it."""
    metadata: Any = node.metadata  # a property, though its stub says a method
    mark = metadata.get(KEY)
    return mark if isinstance(mark, Token) else None
