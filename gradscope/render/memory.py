"""What the largest graph of a run saved, by module, line and operation; what grows; and how many
samples fit in a size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from gradscope.formatting import common_module
from gradscope.model import BackwardCall, Graph, Node, Recording, SavedTensor, Site, Trend, outlook
from gradscope.rules.gs401 import Checkpoint, Memory, checkpoint

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


# how many samples fit

# By how much the ratio of two sizes may differ from that of the samples: what a library takes to
# work in is rounded up.
_ABOUT = 0.05
_MOST = 1 << 40  # samples: what would fit more often takes next to nothing


class Fit(NamedTuple):
    """The bytes of a step: its graph has ``fixed`` ones and more for ``each`` sample, and there
    are others ``beside`` it.

    ``seen`` are the calls that this is known of, each with its samples; of a single one it is
    ``guessed`` which dimension they are. ``spared`` is what to run under checkpoints, which spares
    this ``share`` of the graph's bytes and runs so many nodes ``again``.
    """

    seen: tuple[tuple[BackwardCall, int], ...]
    fixed: float
    each: float
    beside: dict[str, int]
    spared: Checkpoint | None
    share: float
    again: int

    def nbytes(self, samples: int, *, spares: bool = False) -> int:
        """Return the bytes of a step with that many samples."""
        graph = (self.fixed + self.each * samples) * (1 - self.share * spares)
        return round(graph) + sum(self.beside.values())

    def most(self, size: int, *, spares: bool = False) -> int:
        """Return how many samples fit in that many bytes; less than 1 if none does."""
        each = self.each * (1 - self.share * spares)
        most = int(min(_MOST, (size - self.nbytes(0, spares=spares)) / each))
        return most - (self.nbytes(most, spares=spares) > size)  # both are rounded


def fit(recording: Recording) -> Fit | None:
    """Return what the largest graph takes, by that and the smallest one which differs from it only
    in how many samples it has; by itself where there is no such one.
    """
    found = largest(recording)
    graph = None if found is None else recording.graphs.get(found.call.graph or 0)
    if found is None or graph is None or not (samples := _guessed(graph)):
        return None
    seen: tuple[tuple[BackwardCall, int], ...] = ((found.call, samples),)
    each = _growing(graph, samples) / samples
    names = [(node.name, len(node.saved)) for node in graph.nodes]
    for call in sorted(recording.calls, key=lambda call: call.saved_bytes):
        other = recording.graphs.get(call.graph or 0)
        if other is None or (call.process, len(other.nodes)) != (found.call.process, len(names)):
            continue
        alike = [(node.name, len(node.saved)) for node in other.nodes] == names
        if alike and (both := _samples(other, graph)) is not None:
            seen = (call, both[0]), (found.call, both[1])
            each = (graph.saved_bytes - other.saved_bytes) / (both[1] - both[0])
            break
    if each <= 0:
        return None
    beside = dict(recording.summary.training.nbytes)
    if (others := recording.summary.peak_saved_bytes - graph.saved_bytes) > 0:
        beside["other graphs"] = others
    spared = checkpoint([*_weighed(graph)])
    inside = [node for node in graph.nodes if spared and node.module and spared.has(node.module)]
    share = spared.nbytes / graph.saved_bytes if spared else 0.0
    fixed = max(0.0, graph.saved_bytes - each * seen[-1][1])
    return Fit(seen, fixed, each, beside, spared, share, len(inside))


def _activations(graph: Graph) -> Iterator[SavedTensor]:
    return (one for node in graph.nodes for one in node.saved if not one.is_parameter)


def _samples(small: Graph, large: Graph) -> tuple[int, int] | None:
    """Return how many samples two graphs have: the smallest of the dimensions in which they differ,
    if all others differ by the same factor.
    """
    pairs = set[tuple[int, int]]()
    for one, other in zip(_activations(small), _activations(large), strict=False):
        if len(one.shape) != len(other.shape):
            return None
        pairs.update(pair for pair in zip(one.shape, other.shape, strict=True) if len({*pair}) > 1)
    if not pairs or min(pairs)[0] < 1:
        return None
    least, most = min(pairs)
    alike = all(abs(b * least - a * most) <= _ABOUT * b * least for a, b in pairs)
    return (least, most) if alike and least < most else None


def _guessed(graph: Graph) -> int:
    """Return the dimension that is most likely that of the samples: one that most bytes of what the
    program's own variables hold have, and then most that were saved have as their first one.
    """
    named, first = Counter[int](), Counter[int]()
    for one in _activations(graph):
        if one.shape:
            first[one.shape[0]] += one.nbytes
            for size in {*one.shape} if one.source else ():
                named[size] += one.nbytes
    return max((size for size in first if size > 1), key=lambda n: (named[n], first[n]), default=0)


def _growing(graph: Graph, samples: int) -> int:
    """Return the bytes of what has the samples as a dimension, or in its first one."""
    grown = {
        one.storage: one.nbytes
        for one in _activations(graph)
        if one.shape and (samples in one.shape or not one.shape[0] % samples)
    }
    return sum(grown.values())


def _weighed(graph: Graph) -> Iterator[Memory]:
    """Yield each storage that nothing but the graph holds, and the module that all nodes which have
    saved it were built in.
    """
    found: dict[int, Memory] = {}
    for node in sorted(graph.nodes, key=lambda node: node.sequence_nr or 0):
        for one in node.saved:
            if one.is_parameter or not one.nbytes or one.alone is False:
                continue
            module = node.module or ""
            if known := found.get(one.storage):
                known.module = common_module((known.module, module))
            else:
                about = node.sequence_nr or 0, one.nbytes, node.name, module
                found[one.storage] = Memory(*about, one.site, 0)
    yield from found.values()
