"""`compare`: the nodes and edges that stayed, came and went between two snapshots of a graph."""

from __future__ import annotations

from collections import Counter

from gradscope.model import Graph
from gradscope.model.graph import Change, Changes

_Identity = tuple[object, ...]


def compare(before: Graph, after: Graph) -> Changes:
    """Return the nodes and edges that two graphs share, and those that only one of them has.

    ``before`` and ``after`` are what :func:`gradscope.snapshot` returned, of the same tensor at two
    moments or of two tensors. Nodes are matched by torch's sequence number, so both graphs must
    have been built in one thread; the nodes of leaves are matched by the leaf's name.
    """
    old_keys, new_keys = _identities(before), _identities(after)
    old = dict(zip(old_keys, before.nodes, strict=True))
    new = dict(zip(new_keys, after.nodes, strict=True))
    old_edges, new_edges = _edges(before, old_keys), _edges(after, new_keys)
    changes = []
    for what, nodes in (
        ("stayed", [key for key in new if key in old]),
        ("added", [key for key in new if key not in old]),
        ("gone", [key for key in old if key not in new]),
    ):
        for key in nodes:
            was, now = old_edges.get(key, {}), new_edges.get(key, {})
            edges = [("stayed" if target in was else "added", name) for target, name in now.items()]
            edges += [("gone", name) for target, name in was.items() if target not in now]
            changes.append(Change(what, new.get(key) or old[key], tuple(edges)))
    return Changes(changes)


def _identities(graph: Graph) -> list[_Identity]:
    """Return what each node is matched by; leaves of one label and no name are numbered."""
    met: Counter[_Identity] = Counter()
    found: list[_Identity] = []
    for node in graph.nodes:
        key = (node.name, node.sequence_nr, node.variable, node.variable_label)
        found.append((*key, met[key]))
        met[key] += 1
    return found


def _edges(graph: Graph, keys: list[_Identity]) -> dict[_Identity, dict[_Identity, str]]:
    """Return the nodes that follow each node, with their names."""
    found: dict[_Identity, dict[_Identity, str]] = {}
    for edge in graph.edges:
        target = graph.nodes[edge.target]
        name = f"{target.name} of {target.variable}" if target.variable else target.name
        found.setdefault(keys[edge.source], {})[keys[edge.target]] = name
    return found
