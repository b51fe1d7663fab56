"""Folds the graph of the page as the picture does: what shares a box there shares one here."""

from __future__ import annotations

from collections import Counter

from gradscope.model import Graph
from gradscope.render.html.scopes import STRETCH, Scope
from gradscope.render.pictures.boxes import fold_title
from gradscope.render.pictures.folding import Part, fold
from gradscope.render.pictures.merging import merge
from gradscope.render.pictures.options import DEFAULTS
from gradscope.render.pictures.picture import UNMARKED
from gradscope.render.prefixes import common_length


class Folds:
    """The boxes of the picture, by which the page's are closed and opened at first."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        folded = fold(merge([graph]), DEFAULTS, UNMARKED)
        self._parts = folded.parts
        self.part_of = [-1] * len(graph.nodes)
        """Number of each node's box in the picture; -1 for a leaf."""
        for number, part in enumerate(folded.parts):
            for head in part.heads:
                self.part_of[head] = number
        for node, into in folded.absorbed.items():
            while into in folded.absorbed:
                into = folded.absorbed[into]
            self.part_of[node] = self.part_of[into]
        for one in graph.nodes:
            if one.is_leaf:
                self.part_of[one.index] = -1

    def is_closed(self, parts: set[int]) -> bool:
        """Return whether a group with nodes of these boxes is one box of the picture, or in it."""
        return len(parts) == 1 and len(self._parts[next(iter(parts))].heads) > 1

    def put_around(self, scopes: list[Scope]) -> None:
        """Put a box around nodes that share one in the picture, where no module call is that box.

        In one of alike pieces each piece has a box of its own.
        """
        members: dict[int, list[int]] = {}
        sizes: Counter[Scope] = Counter()
        for node, number in enumerate(self.part_of):
            if number >= 0:
                members.setdefault(number, []).append(node)
                sizes.update(scopes[node][:depth] for depth in range(1, len(scopes[node]) + 1))
        for number, inside in members.items():
            part = self._parts[number]
            outer = scopes[inside[0]][: common_length([scopes[node] for node in inside])]
            if len(part.heads) < 2 or len(inside) == sizes[outer]:
                continue
            box = (STRETCH + fold_title(part, [self._graph.nodes[h] for h in part.heads]), number)
            piece_of = _pieces(part)
            for node in inside:
                piece = piece_of.get(node)
                piece_box = () if piece is None else ((f"{STRETCH}1 of {part.times:,}", piece),)
                scopes[node] = (*outer, box, *piece_box, *scopes[node][len(outer) :])


def _pieces(part: Part) -> dict[int, int]:
    """Return in which of alike pieces each node is; nothing where they are single nodes."""
    size = len(part.heads) // part.times
    if part.why != "repeat" or size < 2 or size * part.times != len(part.heads):
        return {}
    return {head: place // size for place, head in enumerate(part.heads)}
