"""Merges graphs into one, in an order in which every edge goes from an earlier to a later node."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from gradscope.model import Graph, Node, Root
from gradscope.units import common_module, followers_last


class Merged(NamedTuple):
    """The nodes of all graphs, each once.

    ``order`` lists the nodes by age, newest first. ``reach`` has for each node one bit per root
    that leads to it. ``of_last`` has for each node of the last graph its place here. Storages are
    numbered across all graphs.
    """

    nodes: list[Node]
    targets: list[list[int]]
    sources: list[list[int]]
    roots: list[Root]
    order: list[int]
    reach: list[int]
    of_last: list[int]
    not_looked_at: int = 0

    def is_shared(self, node: int) -> bool:
        """Return True when more than one root leads to the node."""
        return self.reach[node].bit_count() > 1


def merge(graphs: Sequence[Graph]) -> Merged:
    """Return one node per node of the program, as the latest look saw it.

    Nodes of two graphs with equal sequence number and name are the same one.
    """
    nodes: list[Node] = []
    roots: list[Root] = []
    known: dict[Hashable, int] = {}
    edges: dict[tuple[int, int, int], None] = {}
    place: list[int] = []
    several = len(graphs) > 1
    freed_by = {node.freed_by for graph in graphs for node in graph.nodes} - {None}
    plain = (graph.nodes for graph in graphs)
    renumbered = _renumbered(graphs) if several or len(freed_by) > 1 else plain
    for graph, own in zip(graphs, renumbered, strict=True):
        place = []
        for node in own:
            key = _identity(node) if several else None
            at = len(nodes) if key is None else known.setdefault(key, len(nodes))
            nodes[at : at + 1] = [node if node.index == at else replace(node, index=at)]
            place.append(at)
        for edge in graph.edges:
            edges.setdefault((place[edge.source], place[edge.target], edge.input_nr))
        for root in graph.roots:
            moved = replace(root, node=place[root.node])
            if moved not in roots:
                roots.append(moved)
    targets: list[list[int]] = [[] for _ in nodes]
    sources: list[list[int]] = [[] for _ in nodes]
    for source, target, _ in edges:
        targets[source].append(target)
        sources[target].append(source)
    order = _newest_first(nodes, targets, sources)
    nodes = _with_modules(nodes, targets, order)
    reach = _reach(targets, roots, order)
    missed = sum(graph.not_looked_at for graph in graphs)
    return Merged(nodes, targets, sources, roots, order, reach, place, missed)


def _with_modules(nodes: list[Node], targets: list[list[int]], order: list[int]) -> list[Node]:
    """Give nodes that saved nothing the module of those built around them.

    Nothing but their age is known of them. One that leads to leaves only (a weight's transpose)
    prepares what is built next; any other was built in what the nodes before and after it have in
    common. Such nodes have no module class.
    """
    aged = [nodes[at] for at in reversed(order) if not nodes[at].is_leaf]
    unknown = {n.index for n in aged if n.module is None and n.site is None and not n.saved}
    following: dict[int, str] = {}
    after = before = ""
    for node in reversed(aged):
        following[node.index] = after
        after = after if node.index in unknown else node.module or ""
    filled = list(nodes)
    for node in aged:
        if node.index not in unknown:
            before = node.module or ""
            continue
        module, leads_to = following[node.index], targets[node.index]
        if not leads_to or not all(nodes[target].is_leaf for target in leads_to):
            module = common_module((before, module))
        filled[node.index] = replace(node, module=module or None)
    return filled


def _renumbered(graphs: Sequence[Graph]) -> Iterator[Sequence[Node]]:
    """Yield the nodes of each graph with storages numbered across all; each graph numbers its own.

    A storage that is still held has the numbers of the graph it was seen in, a freed one those of
    the call that freed it. A node that an earlier graph had too shows which storages are the same.
    """
    numbers: dict[Hashable, int] = {}
    held: dict[Hashable, int] = {}
    for which, graph in enumerate(graphs):
        for node in graph.nodes:
            for at, tensor in enumerate(node.saved):
                known = held.get((_identity(node), at))
                if known is not None and not tensor.state.is_gone:
                    numbers[which, tensor.storage] = known
        nodes = []
        for node in graph.nodes:
            saved = []
            for at, tensor in enumerate(node.saved):
                of = ("freed", node.freed_by) if tensor.state.is_gone else which
                number = numbers.setdefault((of, tensor.storage), len(numbers) + 1)
                saved.append(replace(tensor, storage=number))
                if of == which and _identity(node) is not None:
                    held[_identity(node), at] = number
            nodes.append(replace(node, saved=tuple(saved)) if saved else node)
        yield nodes


def _identity(node: Node) -> Hashable | None:
    """Return what makes a node of two graphs the same one; None when nothing does."""
    if node.sequence_nr is not None:
        return (node.sequence_nr, node.name)
    if node.is_leaf and node.variable is not None:
        return (node.variable, node.variable_label)
    return None


def _newest_first(
    nodes: list[Node], targets: list[list[int]], sources: list[list[int]]
) -> list[int]:
    """Order by sequence number as far as edges allow: threads and double backward mix those up."""

    def age(place: int) -> tuple[bool, float, int]:
        # What leads nowhere, as a leaf, may come last.
        number = nodes[place].sequence_nr
        last = not targets[place] and bool(sources[place])
        return last, float("inf") if number is None else -number, place

    return followers_last(targets, age)


def _reach(targets: list[list[int]], roots: list[Root], order: list[int]) -> list[int]:
    reach = [0] * len(targets)
    for bit, root in enumerate(roots):
        reach[root.node] |= 1 << bit
    for node in order:
        for target in targets[node]:
            reach[target] |= reach[node]
    return reach
