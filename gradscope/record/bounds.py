"""Keeps recordings small: similar calls share a row, the memory curve keeps its envelope."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import replace
from hashlib import blake2b
from operator import attrgetter
from typing import Any

from gradscope.model import FIGURES, BackwardCall, Graph, Sample, Site
from gradscope.record import codec
from gradscope.record.file import pack

ROWS = 2_000
"""Most rows of calls, without the one more for each kind of call at each site."""

ROWS_AT_SITE = 200
"""Most of these rows for one kind of call at one site."""

NEAR = 64
"""Similar calls at most this far apart are of one loop: calls that fit into an iteration."""

RUNS = 1_998
"""The memory curve has fewer runs of samples, with two points each: less than 4,000."""

_ALIKE = attrgetter(
    "kind", "site", "retain_graph", "create_graph", "inputs", "graph", "nodes", "nodes_run",
    "saved_tensors", "saved_bytes", "freed_tensors", "freed_bytes", "returned_bytes",
    "retained_bytes", "thread", "exception",
)  # fmt: skip
"""What two calls must have in common to share a row, beside the names of their roots."""

_figures = attrgetter(*FIGURES)
GRAPHS_AT_SITE = 200
"""Most graphs stored for one call site: enough to see a growing graph grow."""

NODES_AT_SITE = 100_000
"""Most nodes of the graphs of a site: large graphs take long to write."""

GRAPH_BYTES = 32 << 20
"""Most bytes of all stored graphs, compressed."""

SIGNATURES = 10_000
"""Most signatures remembered; a graph of a further one is compared by its content."""

_IN_GRAPH, _IN_NODE, _IN_SAVED = (
    {name: at for at, name in enumerate(codec.LAYOUT[kind])}
    for kind in ("Graph", "Node", "SavedTensor")
)


class Row:
    """Calls folded into one row; ``gap`` is the distance of the last two numbers."""

    __slots__ = (
        *("count", "ended", "figures", "first"),
        *("gap", "index", "last_number", "live_bytes"),
    )

    def __init__(self, index: int, call: BackwardCall) -> None:
        self.index = index
        self.first = call
        self.ended, self.live_bytes = call.ended, call.live_bytes
        self.count = call.count
        self.last_number = call.last_number or call.number
        self.gap = 0
        self.figures: tuple[int, ...] = _figures(call)

    def goes_on_with(self, number: int) -> bool:
        """Return whether a call of this number is the next turn of the same loop."""
        gap = number - self.last_number
        return gap <= NEAR or gap == self.gap or self.gap == 0

    def add(
        self, number: int, ended: float, live_bytes: int, figures: tuple[int, ...], count: int = 1
    ) -> None:
        """Add a call like those in it, or some that are folded already."""
        self.gap = number - self.last_number
        self.last_number = number
        self.ended, self.live_bytes = ended, live_bytes
        self.count += count
        if figures != self.figures:
            self.figures = tuple(map(max, figures, self.figures))

    def folded(self) -> BackwardCall:
        """Return the record of the row."""
        figures: dict[str, Any] = dict(zip(FIGURES, self.figures, strict=True))
        return replace(
            self.first,
            **figures,
            live_bytes=self.live_bytes,
            ended=self.ended,
            count=self.count,
            last_number=self.last_number,
        )


class CallFolder:
    """Backward calls, similar ones folded into rows.

    A row has ``started`` of its first call, ``ended`` and ``live_bytes`` of its last, and the
    largest sizes seen. Once a site has its share of rows, a call that matches none goes to one row
    for all such calls of its kind there; ``mixed`` counts them. ``changed`` are the indices of the
    rows that have changed since they were taken.
    """

    def __init__(self) -> None:
        self.mixed = 0
        self._rows: list[Row] = []
        self._latest: dict[object, Row] = {}
        self._rows_at: Counter[object] = Counter()
        self.changed: set[int] = set()

    def add(self, call: BackwardCall) -> Row:
        """Add one call, or calls that are folded already; return their row."""
        alike = (*_ALIKE(call), call.parent is None, *[root.name for root in call.roots])
        row = self._latest.get(alike)
        if row is None or not row.goes_on_with(call.number):
            place = (call.kind, call.site)
            if self._rows_at[place] < ROWS_AT_SITE and len(self._rows) < ROWS:
                self._rows_at[place] += 1
                return self._start(alike, call)
            if row is None:
                self.mixed += call.count
                rest = (*place, call.exception is None)
                row = self._latest.get(rest)
                if row is None:
                    return self._start(rest, replace(call, graph=None))
        row.add(call.number, call.ended, call.live_bytes, _figures(call), call.count)
        row.last_number = call.last_number or call.number
        self.changed.add(row.index)
        return row

    def _start(self, key: object, call: BackwardCall) -> Row:
        row = self._latest[key] = Row(len(self._rows), call)
        self._rows.append(row)
        self.changed.add(row.index)
        return row

    def take_changed(self) -> Iterator[tuple[int, BackwardCall]]:
        """Return the rows that changed since the last time, each with its index."""
        changed, self.changed = self.changed, set()
        return ((index, self._rows[index].folded()) for index in sorted(changed))


class Curve:
    """The memory curve in bounded size: the lowest and highest sample of each run, and the last.

    All runs are equally long. When there are too many, neighbours are joined, and runs are twice as
    long from then on.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Sample, ...]] = []
        self._length = 1
        self._open: tuple[Sample, ...] = ()
        self._in_open = 0
        self._last: Sample | None = None
        self._changed_from = 0
        self._written = 0

    def add(self, sample: Sample) -> None:
        """Add the next sample."""
        self._last = sample
        self._open = _envelope(*self._open, sample)
        self._in_open += 1
        if self._in_open == self._length:
            self._runs.append(self._open)
            self._open, self._in_open = (), 0
            if len(self._runs) == RUNS:
                self._join()

    def _join(self) -> None:
        halves = iter(self._runs)
        self._runs = [
            _envelope(*first, *second) for first, second in zip(halves, halves, strict=True)
        ]
        self._length *= 2
        self._changed_from = 0

    def take_changed(self) -> Iterator[tuple[int, Sample | None]]:
        """Return the points that changed since the last time, by place; None for a gone one."""
        tail = self._open
        newest = self._open or (self._runs[-1] if self._runs else ())
        if self._last is not None and self._last not in newest:
            tail = (*tail, self._last)
        runs = [*self._runs[self._changed_from :], tail]
        first = 2 * self._changed_from
        points = {
            first + 2 * at + i: point for at, run in enumerate(runs) for i, point in enumerate(run)
        }
        gone = {place: None for place in range(first, self._written) if place not in points}
        self._changed_from = len(self._runs)
        self._written = max(points, default=-1) + 1
        return iter((points | gone).items())


def _envelope(*samples: Sample) -> tuple[Sample, ...]:
    """Return the lowest and the highest sample, in the order of time."""
    low, high = min(samples, key=_level), max(samples, key=_level)
    if low is high:
        return (low,)
    return (low, high) if low.time <= high.time else (high, low)


def _level(sample: Sample) -> tuple[int, int]:
    return sample.live_bytes, sample.held_bytes


class Graphs:
    """Numbers the graphs that are worth storing; ``refused`` counts those that found no room."""

    def __init__(self) -> None:
        self.refused = 0
        self._numbers: dict[Hashable, int] = {}
        self._contents: dict[bytes, int] = {}
        self._nodes_at: Counter[Site | None] = Counter()
        self._bytes = 0

    def known(self, signature: Hashable, site: Site | None) -> int | None:
        """Return the number of a signature's graph, None for an unknown one, 0 without room."""
        number = self._numbers.get(signature)
        if number is None and (self._nodes_at[site] >= NODES_AT_SITE or self._bytes >= GRAPH_BYTES):
            self.refused += 1
            return 0
        return number

    def add(self, signature: Hashable, graph: Graph, site: Site | None) -> tuple[int, bytes | None]:
        """Return the number of a graph, and what to store if it is a new one."""
        plain = codec.plain(graph)
        text = codec.dump_plain(plain)
        content = _content(plain)
        packed = None
        number = self._contents.get(content)
        if number is None:
            number = self._contents[content] = len(self._contents) + 1
            packed = pack(text)
            self._nodes_at[site] += max(len(graph.nodes), NODES_AT_SITE // GRAPHS_AT_SITE)
            self._bytes += len(packed)
        if len(self._numbers) < SIGNATURES:
            self._numbers[signature] = number
        return number, packed


def _content(plain: Any) -> bytes:
    """Return a digest of all of a graph but when it was built; ``plain`` is changed on the way."""
    nodes = plain[_IN_GRAPH["nodes"]]
    newest = max((node[_IN_NODE["built_after"]] for node in nodes), default=0)
    for node in nodes:
        node[_IN_NODE["sequence_nr"]] = None
        node[_IN_NODE["built_after"]] = node[_IN_NODE["built_after"]] == newest
        node[_IN_NODE["freed_by"]] = node[_IN_NODE["freed_by"]] is None
        for saved in node[_IN_NODE["saved"]]:
            saved[_IN_SAVED["version"]] = None
    return blake2b(codec.dump_plain(plain).encode(), digest_size=16).digest()
