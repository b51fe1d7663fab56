"""Keeps the graphs of a recording few: similar ones once, and so many for each call site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from hashlib import blake2b
from typing import Any

from gradscope.model import Graph, Site
from gradscope.record import codec
from gradscope.record.file import pack

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
