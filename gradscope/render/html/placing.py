"""Places the nodes of a graph for the report: nested groups, and a rank and an order in each.

What a box measures depends on what the reader has opened, so pixels are left to the page; the part
that costs time and has to be the same on every machine is done here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isqrt

from gradscope.model import Graph, Node
from gradscope.render.pictures.compose import fold_title
from gradscope.render.pictures.folding import Fold, fold
from gradscope.render.pictures.merging import merge
from gradscope.render.pictures.options import DEFAULTS
from gradscope.render.pictures.picture import UNMARKED
from gradscope.units import common_length

Scope = tuple[tuple[str, int], ...]
"""Boxes, outermost first: a name, and a number, which differs for boxes of the same name."""

MAX_DEPTH = 12
ERA = "\0"
"""Begins the name of the box of all nodes built between two backward calls; no module has it."""

STRETCH = "\1"
"""Begins the name of the box of some neighbours out of a long row."""

LONG = 100
"""A level of more boxes than this is cut into as many stretches as each of them has boxes."""


def module_calls(nodes: Sequence[Node], built: Sequence[int]) -> list[Scope]:
    """Return each node's boxes; leaves, which no module call builds, get none.

    ``built`` are the others, in the order in which they were built.

    Nodes built one after another in the same module are one call of it. Gradients flow from newer
    nodes to older ones, so a call's nodes have no other node between them, which all nodes of a
    module called twice would have. The same holds for stretches.
    """
    eras = {node.built_after for node in nodes if not node.is_leaf}
    scopes: list[Scope] = [()] * len(nodes)
    calls: dict[tuple[str, ...], int] = {}
    open_calls: Scope = ()
    for node in map(nodes.__getitem__, built):
        names = [f"{ERA}{node.built_after}"] if len(eras) > 1 else []
        names += node.module.split(".")[:MAX_DEPTH] if node.module else []
        depth = common_length((names, [name for name, _ in open_calls]))
        scope = open_calls[:depth]
        for name in names[depth:]:
            path = (*(part for part, _ in scope), name)
            calls[path] = calls.get(path, 0) + 1
            scope = (*scope, (name, calls[path]))
        open_calls = scopes[node.index] = scope
    return scopes


def module_path(scope: Scope) -> str:
    """Return the qualified name of the module whose call ``scope`` is."""
    return ".".join(name for name, _ in scope if name[:1] not in (ERA, STRETCH))


def cut_long_levels(built: Sequence[int], scopes: list[Scope]) -> None:
    """Put stretches around neighbours wherever a box would hold too many others."""
    levels: dict[Scope, dict[Scope | int, None]] = {}
    for index in built:
        scope = scopes[index]
        for depth in range(len(scope)):
            levels.setdefault(scope[:depth], {})[scope[: depth + 1]] = None
        levels.setdefault(scope, {})[index] = None
    around: dict[Scope | int, Scope] = {}
    for level in levels.values():
        children = list(level)
        size = isqrt(len(children)) + 1
        for number, start in enumerate(range(0, len(children), size)):
            part = children[start : start + size]
            if len(children) > LONG:
                box = (STRETCH + _stretch_label(part), number)
                around.update(dict.fromkeys(part, (box,)))
    if not around:
        return
    for index in built:
        plain, cut = scopes[index], around.get(index, ())
        for depth in range(len(plain), 0, -1):
            cut = around.get(plain[:depth], ()) + plain[depth - 1 : depth] + cut
        scopes[index] = cut


def _stretch_label(children: list[Scope | int]) -> str:
    """Return first and last module, or one and how often it was called, or how many operations."""
    modules = [module_path(child) for child in children if not isinstance(child, int)]
    if not modules:
        return f"{len(children):,} operations"
    if modules[0] == modules[-1]:
        return f"{modules[0]} \u00d7{len(modules):,}"
    return f"{modules[0]} \u2013 {modules[-1]}"


class Folds:
    """The boxes of the picture, by which the page's are closed and opened at first."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        merged = merge([graph])
        self.nodes, self.order = merged.nodes, merged.order
        folded = fold(merged, DEFAULTS, UNMARKED)
        self._parts = folded.parts
        self.part_of = [-1] * len(graph.nodes)
        """Number of each node's box in the picture; -1 for a leaf."""
        for number, part in enumerate(folded.parts):
            for head in part.heads:
                self.part_of[head] = number
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


def _pieces(part: Fold) -> dict[int, int]:
    """Return in which of alike pieces each node is; nothing where they are single nodes."""
    size = len(part.heads) // part.times
    if part.why != "repeat" or size < 2 or size * part.times != len(part.heads):
        return {}
    return {head: place // size for place, head in enumerate(part.heads)}


ROOT = 0

Arrows = dict[int, list[int]]
"""From each box to those it points at; a group is written as ``~number``."""


@dataclass(slots=True)
class Group:
    """A box that holds others; group 0 is the graph.

    ``kind`` is ``module`` for a call of a module, ``built`` for all nodes built between two
    backward calls, and ``stretch`` for neighbours out of a long row. ``is_open``: at first its
    boxes are shown, as in the picture.
    """

    label: str
    path: str
    parent: int
    kind: str = "module"
    module_class: str | None = None
    rank: int = 0
    order: int = 0
    is_open: bool = True


@dataclass(slots=True)
class Placing:
    """Per node: its group, its rank and order in it, and the node it is drawn beside (-1: none)."""

    groups: list[Group]
    parent: list[int]
    rank: list[int] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    beside: list[int] = field(default_factory=list)


def place(graph: Graph) -> Placing:
    """Group, rank and order the nodes of ``graph`` so that gradients flow downwards."""
    count = len(graph.nodes)
    consumers: list[list[int]] = [[] for _ in range(count)]
    for edge in graph.edges:
        consumers[edge.target].append(edge.source)
    folds = Folds(graph)
    placing = _grouped(graph, consumers, folds)
    placing.beside = [_beside(node, consumers[node.index], placing.parent) for node in graph.nodes]
    placing.rank, placing.order = [0] * count, [0] * count
    children: list[list[int]] = [[] for _ in placing.groups]
    seen = {ROOT}
    for index in dict.fromkeys((*folds.order, *range(count))):
        if placing.beside[index] >= 0:
            continue
        group = placing.parent[index]
        children[group].append(index)
        while group not in seen:
            seen.add(group)
            children[placing.groups[group].parent].append(~group)
            group = placing.groups[group].parent
    arrows = _arrows_by_group(graph, placing)
    for group, items in enumerate(children):
        for row_number, row in enumerate(_rows(items, arrows[group])):
            for position, item in enumerate(row):
                if item < 0:
                    placing.groups[~item].rank, placing.groups[~item].order = row_number, position
                else:
                    placing.rank[item], placing.order[item] = row_number, position
    return placing


def _grouped(graph: Graph, consumers: list[list[int]], folds: Folds) -> Placing:
    """Put each node in its innermost group; a leaf, which no module call builds, with its users."""
    built = [node for node in reversed(folds.order) if not graph.nodes[node].is_leaf]
    scopes = module_calls(folds.nodes, built)
    folds.put_around(scopes)
    cut_long_levels(built, scopes)
    for node in graph.nodes:
        if node.is_leaf and consumers[node.index]:
            around = [scopes[consumer] for consumer in consumers[node.index]]
            scopes[node.index] = around[0][: common_length(around)]
    sizes: dict[Scope, int] = {}
    for scope in scopes:
        for depth in range(1, len(scope) + 1):
            sizes[scope[:depth]] = sizes.get(scope[:depth], 0) + 1
    classes = {node.module: node.module_class for node in graph.nodes if node.module}
    again = (s for s in sizes if s[-1][1] > 1 and s[-1][0][:1] not in (ERA, STRETCH))
    numbering = _Numbering(sizes, classes, repeated=set(map(module_path, again)))
    parent = [numbering.number(scope) for scope in scopes]
    shown: list[set[int]] = [set() for _ in numbering.groups]
    for number, part in zip(parent, folds.part_of, strict=True):
        while part >= 0 and number > ROOT:
            shown[number].add(part)
            number = numbering.groups[number].parent
    for group, parts in zip(numbering.groups[1:], shown[1:], strict=True):
        group.is_open = not folds.is_closed(parts)
    return Placing(numbering.groups, parent)


@dataclass(slots=True)
class _Numbering:
    """Makes the groups, each on first sight; ``repeated`` are paths of modules called again."""

    sizes: dict[Scope, int]
    classes: Mapping[str, str | None]
    repeated: set[str]
    groups: list[Group] = field(default_factory=lambda: [Group("", "", -1, "graph")])
    numbers: dict[Scope, int] = field(default_factory=lambda: {(): ROOT})

    def number(self, scope: Scope) -> int:
        """Return the group of ``scope``; leave out levels of one node, or of one group only."""
        for depth in range(1, len(scope) + 1):
            prefix = scope[:depth]
            if prefix in self.numbers:
                continue
            above, marker = self.numbers[prefix[:-1]], prefix[-1][0][:1]
            only_level = depth < len(scope) and self.sizes[scope[: depth + 1]] == self.sizes[prefix]
            if self.sizes[prefix] < 2 or (only_level and marker not in (ERA, STRETCH)):
                self.numbers[prefix] = above
            else:
                self.numbers[prefix] = len(self.groups)
                self.groups.append(self._group(prefix, above))
        return self.numbers[scope]

    def _group(self, scope: Scope, above: int) -> Group:
        name, call = scope[-1]
        path = module_path(scope)
        if name.startswith(ERA):
            after = int(name.removeprefix(ERA))
            moment = f"after backward call {after:,}" if after else "before the first backward call"
            return Group(f"built {moment}", "", above, "built")
        if name.startswith(STRETCH):
            return Group(name.removeprefix(STRETCH), path, above, "stretch")
        label = path.removeprefix(f"{self.groups[above].path}.")
        if path in self.repeated:
            label = f"{label} #{call:,}"
        return Group(label, path, above, "module", self.classes.get(path))


def _beside(node: Node, consumers: list[int], parent: list[int]) -> int:
    """Return the node that a leaf hangs on: its one consumer, if both are in the same group."""
    if not node.is_leaf or len(set(consumers)) != 1 or parent[consumers[0]] != parent[node.index]:
        return -1
    return consumers[0]


def _arrows_by_group(graph: Graph, placing: Placing) -> list[Arrows]:
    """Return for each group the arrows between the boxes right inside it."""
    groups = placing.groups
    depth = [0] * len(groups)
    for number, group in enumerate(groups[1:], start=1):
        depth[number] = depth[group.parent] + 1
    found: list[dict[int, dict[int, None]]] = [{} for _ in groups]
    for edge in graph.edges:
        if placing.beside[edge.target] >= 0:
            continue
        source, target = edge.source, edge.target
        above, below = placing.parent[source], placing.parent[target]
        while above != below:
            if depth[above] >= depth[below]:
                source, above = ~above, groups[above].parent
            else:
                target, below = ~below, groups[below].parent
        if source != target:
            found[above].setdefault(source, {})[target] = None
    return [{source: list(targets) for source, targets in arrows.items()} for arrows in found]


def _rows(items: list[int], arrows: Arrows) -> list[list[int]]:
    """Return the boxes by rank, each row ordered so that few arrows cross."""
    ranks = _longest_path(items, arrows)
    rows: list[list[int]] = [[] for _ in range(max(ranks.values(), default=-1) + 1)]
    for item in items:
        rows[ranks[item]].append(item)
    above: Arrows = {item: [] for item in items}
    for source, targets in arrows.items():
        for target in targets:
            above[target].append(source)
    middle: dict[int, float] = {}
    for row in rows:
        for item in row:
            near = [middle[source] for source in above[item] if source in middle]
            middle[item] = sum(near) / len(near) if near else 0.0
        row.sort(key=middle.__getitem__)
        for place, item in enumerate(row):
            middle[item] = place - (len(row) - 1) / 2
    return rows


def _longest_path(items: list[int], arrows: Arrows) -> dict[int, int]:
    """Rank each box one below the lowest box that points at it; boxes come newest first.

    Gradients flow from newer nodes to older ones. Arrows the other way, which groups that take
    turns can have, are passed over.
    """
    ranks = dict.fromkeys(items, 0)
    passed: set[int] = set()
    for item in items:
        passed.add(item)
        for target in arrows.get(item, ()):
            if target not in passed:
                ranks[target] = max(ranks[target], ranks[item] + 1)
    return ranks
