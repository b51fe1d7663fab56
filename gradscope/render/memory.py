"""What the largest graph of a run saved, by module, line and operation; and what grows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from gradscope.model import BackwardCall, Graph, Node, Recording, SavedTensor, Site, Trend, outlook

NO_MODULE, NO_LINE = "(no module)", "(unknown line)"
K = TypeVar("K", str, tuple[Any, ...])


class GroupBy(StrEnum):
    """The keys that bytes are grouped by."""

    MODULE = "module"
    LINE = "line"
    OPERATION = "operation"


class Storage(NamedTuple):
    """One storage that a graph saved, and the node that saved it first: most often what made it.

    ``source`` names the variable or buffer of the program that is known to hold it too.
    """

    node: Node
    tensor: SavedTensor
    source: str

    @property
    def site(self) -> Site | None:
        """Where it was saved."""
        return self.tensor.site or self.node.site


class Largest(NamedTuple):
    """The backward call whose graph held most when the call began, and what that was."""

    call: BackwardCall
    saved: tuple[Storage, ...]

    @property
    def nbytes(self) -> int:
        """All bytes."""
        return sum(one.tensor.nbytes for one in self.saved)

    @property
    def alone(self) -> int | None:
        """The bytes that nothing but the graph held; None where that was not recorded."""
        if all(one.tensor.alone is None for one in self.saved):
            return None
        return sum(one.tensor.nbytes for one in self.saved if one.tensor.alone)


def largest(recording: Recording) -> Largest | None:
    """Return the call with the largest graph, of several the first; None where no graph was
    recorded.
    """
    drawn = [call for call in recording.calls if call.graph in recording.graphs]
    call = max(drawn, key=lambda call: call.saved_bytes, default=None)
    if call is None or call.graph is None:
        return None
    return Largest(call, tuple(_saved(recording.graphs[call.graph])))


def _saved(graph: Graph) -> Iterable[Storage]:
    first: dict[int, tuple[Node, SavedTensor]] = {}
    sources: dict[int, str] = {}
    for node in sorted(graph.nodes, key=lambda node: (node.sequence_nr is None, node.sequence_nr)):
        for tensor in node.saved:
            if not tensor.is_parameter and tensor.nbytes and not tensor.state.is_gone:
                first.setdefault(tensor.storage, (node, tensor))
                if tensor.source:
                    sources.setdefault(tensor.storage, tensor.source)
    return (Storage(*both, sources.get(number, "")) for number, both in first.items())


def trends(recording: Recording) -> list[Trend]:
    """Return what grows, the fastest first."""
    found = [one.trend for one in recording.findings if one.counts and one.trend is not None]
    return sorted((one for one in found if one.grown > 0), key=lambda one: -one.each)


def growing(recording: Recording) -> str:
    """Return how much all that grows adds, and when memory is full, as far as that is known."""
    return ": ".join(filter(None, outlook(trends(recording))))


class Size(NamedTuple):
    """Bytes that the graph saved, and how many of them nothing but the graph held."""

    nbytes: int
    alone: int


def by(key: Callable[[Storage], K], saved: Iterable[Storage]) -> dict[K, Size]:
    """Return the sizes for each key, the most first."""
    sums: dict[K, Size] = {}
    for one in saved:
        nbytes, alone = sums.get(key(one), (0, 0))
        size = one.tensor.nbytes
        sums[key(one)] = Size(nbytes + size, alone + size * bool(one.tensor.alone))
    return dict(sorted(sums.items(), key=lambda item: (-item[1].nbytes, item[0])))


def name_of(kind: GroupBy, one: Storage, place_of: Callable[[Site], str]) -> str:
    """Return the name of the row to which a saved storage belongs."""
    match kind:
        case GroupBy.MODULE:
            return " ".join(filter(None, (one.node.module, one.node.module_class))) or NO_MODULE
        case GroupBy.LINE:
            return place_of(one.site) if one.site else NO_LINE
        case GroupBy.OPERATION:
            return one.node.name
