"""Several graphs seen as one, in an order in which every edge goes from an earlier to a later node."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from gradscope.model import Graph, Node, Root


@dataclass(frozen=True, slots=True)
class Merged:
    """The nodes of all graphs, each once.

    ``order`` lists the nodes by age, newest first. ``reach`` has for each node one bit per root that leads to it.
    """

    nodes: list[Node]
    targets: list[list[int]]
    sources: list[list[int]]
    roots: list[Root]
    order: list[int]
    reach: list[int]
    not_looked_at: int = 0

    def is_shared(self, node: int) -> bool:
        """True when more than one root leads to the node."""
        return self.reach[node].bit_count() > 1


def merge(graphs: Sequence[Graph]) -> Merged:
    """One node per node of the program: equal sequence number and name mean the same one; the latest look counts."""
    nodes: list[Node] = []
    roots: list[Root] = []
    known: dict[Hashable, int] = {}
    edges: dict[tuple[int, int, int], None] = {}
    for graph in graphs:
        place: list[int] = []
        for node in graph.nodes:
            key = _identity(node) if len(graphs) > 1 else None
            at = known.get(key, len(nodes)) if key is not None else len(nodes)
            if at == len(nodes):
                nodes.append(node)
                if key is not None:
                    known[key] = at
            else:
                nodes[at] = node
            place.append(at)
        for edge in graph.edges:
            edges.setdefault((place[edge.source], place[edge.target], edge.input_nr))
        for root in graph.roots:
            moved = Root(place[root.node], root.name, root.label)
            if moved not in roots:
                roots.append(moved)
    targets: list[list[int]] = [[] for _ in nodes]
    sources: list[list[int]] = [[] for _ in nodes]
    for source, target, _ in edges:
        targets[source].append(target)
        sources[target].append(source)
    order = _newest_first(nodes, targets, sources)
    reach = _reach(len(nodes), targets, roots, order)
    return Merged(nodes, targets, sources, roots, order, reach, sum(g.not_looked_at for g in graphs))


def _identity(node: Node) -> Hashable | None:
    """What makes a node of two graphs the same one; None when nothing does."""
    if node.sequence_nr is not None:
        return (node.sequence_nr, node.name)
    if node.is_leaf and node.variable is not None:
        return (node.variable, node.variable_label)
    return None


def _newest_first(nodes: list[Node], targets: list[list[int]], sources: list[list[int]]) -> list[int]:
    """Sequence numbers give the order at once, unless threads or a double backward mixed them."""
    # Leaves have no number and lead nowhere, so they may all come last.
    age = [float("inf") if node.sequence_nr is None else -float(node.sequence_nr) for node in nodes]
    if all(
        age[source] < age[target] or not targets[target] for source in range(len(nodes)) for target in targets[source]
    ):
        return sorted(range(len(nodes)), key=lambda n: (not targets[n] and bool(sources[n]), age[n], n))
    waiting = [len(above) for above in sources]
    ready = [(age[n], n) for n in range(len(nodes)) if not waiting[n]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for target in targets[node]:
            waiting[target] -= 1
            if not waiting[target]:
                heapq.heappush(ready, (age[target], target))
    return order


def _reach(count: int, targets: list[list[int]], roots: list[Root], order: list[int]) -> list[int]:
    reach = [0] * count
    for bit, root in enumerate(roots):
        reach[root.node] |= 1 << bit
    for node in order:
        for target in targets[node]:
            reach[target] |= reach[node]
    return reach
