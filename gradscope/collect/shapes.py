"""The shapes of backward graphs, and the habits of the calls that met them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple

from gradscope.model import BackwardCall, Graph
from gradscope.program.sites import Place

_MOST = 1_000
_MOST_NODES = 1_000_000  # in all remembered signatures
_MOST_PICTURED_NODES = 200_000


class Signature(NamedTuple):
    """What graphs of one shape have in common: the call's place and what it asks of the engine,
    bytes saved, edges left; of the nodes in depth-first order the types, where each was made, which
    were freed, and which will run.
    """

    place: Place | None = None
    asked: int = 0
    nbytes: int = 0
    left: int = 0
    kinds: tuple[type, ...] = ()
    places: tuple[Place | None, ...] = ()
    freed: tuple[int, ...] = ()
    runs: tuple[bool, ...] | None = None


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


NO_SHAPE = Shape(0, Signature())


class Shapes:
    """All shapes that were met; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._shapes: dict[Signature, Shape] = {}
        self._met = 0
        self._nodes = 0
        self._pictured_nodes = 0

    def meet(self, signature: Signature) -> Shape:
        """The shape with this signature, made new if there is none."""
        shape = self._shapes.get(signature)
        if shape is None:
            self._met += 1
            self._nodes += len(signature.kinds)
            while self._shapes and (len(self._shapes) >= _MOST or self._nodes > _MOST_NODES):
                oldest = next(iter(self._shapes))
                self._nodes -= len(oldest.kinds)
                del self._shapes[oldest]
            shape = self._shapes[signature] = Shape(self._met, signature)
        return shape

    def keep_picture(self, shape: Shape, graph: Graph) -> None:
        """Remember a picture, and forget all others once there are too many nodes in them."""
        self._pictured_nodes += len(graph.nodes)
        if self._pictured_nodes > _MOST_PICTURED_NODES:
            for other in self._shapes.values():
                other.graph = None
            self._pictured_nodes = len(graph.nodes)
        shape.graph = graph


_MEASURED = 4  # calls of which is found out, tensor by tensor, what memory came back
_MUCH_MEASURED = 1_000  # tensors in them: fewer calls are enough

HabitKey = tuple[Place | None, int, bool]
"""The call's place, what it asks of the engine, and whether it runs within another."""


Reads = tuple[tuple[str, str, str, int | None], ...]
"""What to read of a node, as ``gradscope.collect.nodes.Kind`` has it."""


class Habit:
    """The calls of one kind at one place: which kinds of nodes their graphs have, and what is
    counted with such a call.
    """

    def __init__(self) -> None:
        self.reads: dict[type, Reads] = {}
        """What to read of each kind of node that was met."""
        self.shape: Shape | None = None
        """The shape of the last graph that was looked at in full."""
        self.ended = 0
        """The sequence number at which the last call ended."""
        self.extra = 0
        """How many nodes at the most were built before a call that its graph has not."""
        self.alive = (0, 0)
        """How many saved tensors and nodes of other graphs lived at the most after a call."""
        self.scale: tuple[float, float] | None = None
        """Tensors and bytes that the hooks counted, of each that a bare walk reads."""
        self._size: Sequence[int] = (0, 0)
        self._counts: Sequence[int] = (0,) * 7
        self._measured = self._measured_tensors = 0
        self._returned = (0, 0)  # bytes whose memory came back, and bytes freed

    def bounds(self, tensors: int, nodes: int) -> bool:
        """Return whether no more saved tensors and other graphs' nodes are alive than after earlier
        calls.
        """
        most_tensors, most_nodes = self.alive
        self.alive = (max(tensors, most_tensors), max(nodes, most_nodes))
        return tensors <= most_tensors and nodes <= most_nodes

    def scaled(self, tensors: int, nbytes: int) -> tuple[int, int]:
        """Return what the hooks would have counted of what a bare walk has read."""
        of_tensors, of_bytes = self.scale or (1.0, 1.0)
        return round(tensors * of_tensors), round(nbytes * of_bytes)

    def watch(self, size: tuple[int, int], counts: Sequence[int]) -> None:
        """Note what the ledger has counted from one call to the end of the next, whose graph had so
        many saved tensors and bytes.
        """
        self._size = tuple(map(add, self._size, size))
        self._counts = tuple(map(add, self._counts, counts))

    def expected(self, size: tuple[int, int]) -> tuple[int, ...]:
        """Return what the ledger would count with a call on a graph of this size: per tensor and
        byte, as much as with those that were watched.
        """
        tensors, nbytes = size
        of_tensors, of_bytes = self._size[0] or 1, self._size[1] or 1
        saved, saved_bytes, freed, freed_bytes, returned, dropped, dropped_bytes = self._counts
        return (
            *(tensors * saved // of_tensors, nbytes * saved_bytes // of_bytes),
            *(tensors * freed // of_tensors, nbytes * freed_bytes // of_bytes),
            nbytes * returned // of_bytes,
            *(tensors * dropped // of_tensors, nbytes * dropped_bytes // of_bytes),
        )

    def returned_by(self, shape: Shape, freed: int) -> int:
        """Return how much memory comes back where a graph of this shape is freed."""
        back, of = self._returned
        return min(freed * back // (of or 1) if shape.returned is None else shape.returned, freed)

    @property
    def is_measured(self) -> bool:
        """Whether enough is known of what memory comes back."""
        return self._measured >= _MEASURED or self._measured_tensors >= _MUCH_MEASURED

    def measure(self, returned: int, freed: int, tensors: int) -> None:
        """Note how many bytes came back of those that a call has freed, with so many tensors."""
        self._measured += 1
        self._measured_tensors += tensors
        self._returned = (self._returned[0] + returned, self._returned[1] + freed)
