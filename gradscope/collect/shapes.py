"""The shapes of backward graphs: graphs of one shape have the same call, kinds of nodes and
places.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gradscope.model import BackwardCall, Graph
from gradscope.program.sites import Place

_MOST = 1_000
_MOST_NODES = 1_000_000  # in all remembered signatures
_MOST_PICTURED_NODES = 200_000

Signature = tuple[
    Place | None,
    int,
    int,
    tuple[type, ...],
    tuple[Place | None, ...],
    tuple[int, ...],
    tuple[bool, ...] | None,
    int,
]
"""The call's place; bytes saved; edges left; the kind of every node; where each was made; which
were freed; which will run; what the call asks of the engine.
"""


@dataclass(eq=False, slots=True)
class Shape:
    """Graphs with one signature. ``number`` stands for the signature where a short key is
    wanted.
    """

    number: int
    signature: Signature
    graph: Graph | None = None
    """The picture of one of them."""
    returned: int | None = None
    """Bytes whose memory came back when one of them was freed."""
    record: BackwardCall | None = None
    """The record of the last call that met one."""
    recognizable: bool | None = None
    """Whether a bare walk tells that a graph has this shape; None until that was tried."""
    elsewhere: dict[int, int] = field(default_factory=dict)
    """Which nodes threads of the engine have built: the upper bits of their numbers."""
    intervals: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """What the ledger counted since the call before, by the number of nodes that had been built
    since.
    """

    @property
    def kinds(self) -> tuple[type, ...]:
        """The types of the nodes, in depth-first order."""
        return self.signature[3]

    @property
    def places(self) -> tuple[Place | None, ...]:
        """Where they were made."""
        return self.signature[4]


NO_SHAPE = Shape(0, (None, 0, 0, (), (), (), None, 0))


class Shapes:
    """All shapes that were met; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._shapes: dict[Signature, Shape] = {}
        self._met = 0
        self._nodes = 0
        self._pictured_nodes = 0

    def __iter__(self) -> Iterator[Shape]:
        return iter(self._shapes.values())

    def meet(self, signature: Signature) -> Shape:
        """The shape with this signature, made new if there is none."""
        shape = self._shapes.get(signature)
        if shape is None:
            self._met += 1
            self._nodes += len(signature[3])
            while self._shapes and (len(self._shapes) >= _MOST or self._nodes > _MOST_NODES):
                oldest = next(iter(self._shapes))
                self._nodes -= len(oldest[3])
                del self._shapes[oldest]
            shape = self._shapes[signature] = Shape(self._met, signature)
        return shape

    def keep_picture(self, shape: Shape, graph: Graph) -> None:
        """Remember a picture, and forget all others once there are too many nodes in them."""
        self._pictured_nodes += len(graph.nodes)
        if self._pictured_nodes > _MOST_PICTURED_NODES:
            for other in self:
                other.graph = None
            self._pictured_nodes = len(graph.nodes)
        shape.graph = graph
