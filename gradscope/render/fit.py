"""Says what a step takes by the number of samples in it, and so how many of them fit in a size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from gradscope.model import BackwardCall, Graph, Recording, SavedTensor
from gradscope.render.memory import largest
from gradscope.rules.gs401 import Checkpoint, Memory, checkpoint
from gradscope.units import common_module

# By how much the ratio of two sizes may differ from that of the samples: what a library takes to
# work in is rounded up.
_ABOUT = 0.05
_MOST = 1 << 40  # samples: what would fit more often takes next to nothing


class Fit(NamedTuple):
    """The bytes of a step: its graph has ``fixed`` ones and so many for ``each`` sample, and there
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
        """Return the bytes of a step with so many samples."""
        graph = (self.fixed + self.each * samples) * (1 - self.share * spares)
        return round(graph) + sum(self.beside.values())

    def most(self, size: int, *, spares: bool = False) -> int:
        """Return how many samples fit in so many bytes; less than 1 where nothing does."""
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
