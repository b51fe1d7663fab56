"""What changed between two looks at backward graphs: nodes and edges that stayed, came and went."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gradscope.model import Graph, Node
from gradscope.model.listing import Listing

_Identity = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One node, and whether it ``stayed``, was ``added`` or is ``gone``; ``edges`` are those that leave it, by the same words."""

    what: str
    node: Node
    edges: tuple[tuple[str, str], ...] = ()


class Changes(Listing[Change]):
    """The nodes of two graphs, those that stayed first; print it to read it."""

    __slots__ = ()

    def __str__(self) -> str:
        from gradscope.render.text.printed import changes_text  # loaded only by whoever prints

        return changes_text(self)

    __repr__ = __str__

    @property
    def stayed(self) -> tuple[Node, ...]:
        """Nodes of both graphs, as they are in the later one."""
        return tuple(change.node for change in self if change.what == "stayed")

    @property
    def added(self) -> tuple[Node, ...]:
        """Nodes of the later graph only."""
        return tuple(change.node for change in self if change.what == "added")

    @property
    def gone(self) -> tuple[Node, ...]:
        """Nodes of the earlier graph only. The later one does not lead to them; :func:`gradscope.follow` tells whether they live."""
        return tuple(change.node for change in self if change.what == "gone")


def compare(before: Graph, after: Graph) -> Changes:
    """Which nodes and edges two graphs have in common, which only the later has, which only the earlier.

    ``before`` and ``after`` are what :func:`gradscope.snapshot` gave, of the same tensor at two moments or of two tensors. A node is
    known again by torch's sequence number, so both must have been built in one thread; a leaf's node by the leaf's name.
    """
    old_keys, new_keys = _identities(before), _identities(after)
    old, new = (
        dict(zip(old_keys, before.nodes, strict=True)),
        dict(zip(new_keys, after.nodes, strict=True)),
    )
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
    """What each node is known by; leaves without a name by which of the alike it is."""
    met: Counter[_Identity] = Counter()
    found: list[_Identity] = []
    for node in graph.nodes:
        key = (node.name, node.sequence_nr, node.variable, node.variable_label)
        found.append((*key, met[key]))
        met[key] += 1
    return found


def _edges(graph: Graph, keys: list[_Identity]) -> dict[_Identity, dict[_Identity, str]]:
    """For each node the nodes that follow it, with what to call them."""
    found: dict[_Identity, dict[_Identity, str]] = {}
    for edge in graph.edges:
        target = graph.nodes[edge.target]
        found.setdefault(keys[edge.source], {})[keys[edge.target]] = _name(target)
    return found


def _name(node: Node) -> str:
    return f"{node.name} of {node.variable}" if node.variable else node.name
