"""Finds the boxes of each node: calls of modules, and stretches of neighbours in long levels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gradscope.model import Graph, Node
from gradscope.render.pictures.boxes import fold_title
from gradscope.render.pictures.folding import Part, fold
from gradscope.render.pictures.merging import merge
from gradscope.render.pictures.options import DEFAULTS
from gradscope.render.pictures.picture import UNMARKED
from gradscope.render.prefixes import common_length

Scope = tuple[tuple[str, int], ...]
"""Boxes, outermost first: a name, and a number, which differs for boxes of the same name."""

MAX_DEPTH = 12
ERA = "\0"
"""Begins the name of the box of all nodes built between two backward calls; no module has it."""

STRETCH = "\1"
"""Begins the name of the box of some neighbours out of a long row."""

LONG = 100
"""A level of more boxes than this is cut into stretches,"""
PARTS = 30
"""about so many,"""
LEAST = 20
"""each of at least so many boxes."""


def module_calls(graph: Graph) -> list[Scope]:
    """Return each node's boxes; leaves, which no module call builds, get none.

    Nodes built one after another in the same module are one call of it. Gradients flow from newer
    nodes to older ones, so a call's nodes have no other node between them, which all nodes of a
    module called twice would have. The same holds for stretches.
    """
    nodes = graph.nodes
    eras = {node.built_after for node in nodes if not node.is_leaf}
    built = _by_age(graph)
    scopes: list[Scope] = [()] * len(nodes)
    calls: dict[tuple[str, ...], int] = {}
    open_calls: Scope = ()
    for node, module in zip(built, _modules(built, graph), strict=True):
        names = [f"{ERA}{node.built_after}"] if len(eras) > 1 else []
        names += module[:MAX_DEPTH]
        depth = common_length((names, [name for name, _ in open_calls]))
        scope = open_calls[:depth]
        for name in names[depth:]:
            path = (*(part for part, _ in scope), name)
            calls[path] = calls.get(path, 0) + 1
            scope = (*scope, (name, calls[path]))
        open_calls = scopes[node.index] = scope
    return scopes


def _by_age(graph: Graph) -> list[Node]:
    built = [node for node in graph.nodes if not node.is_leaf]
    built.sort(
        key=lambda node: (node.built_after, -1 if node.sequence_nr is None else node.sequence_nr)
    )
    return built


def _modules(built: Sequence[Node], graph: Graph) -> list[list[str]]:
    """Return the module of each node in ``built``, guessed where it is not known.

    Modules are seen when a tensor is saved. A node that saved nothing and leads to leaves only (a
    weight's transpose) prepares what is built next; any other was built in what the nodes before
    and after it have in common.
    """
    inner = {edge.source for edge in graph.edges if not graph.nodes[edge.target].is_leaf}
    known = [
        node.module.split(".") if node.module else [] if node.saved else None for node in built
    ]
    following: list[list[str]] = []
    after: list[str] = []
    for module in reversed(known):
        following.append(after)
        after = after if module is None else module
    before: list[str] = []
    modules: list[list[str]] = []
    for node, module, after in zip(built, known, reversed(following), strict=True):
        if module is not None:
            before = module
        elif node.index not in inner:
            module = after
        else:
            module = before[: common_length((before, after))]
        modules.append(module)
    return modules


def module_path(scope: Scope) -> str:
    """Return the qualified name of the module whose call ``scope`` is."""
    return ".".join(name for name, _ in scope if name[:1] not in (ERA, STRETCH))


def cut_long_levels(graph: Graph, scopes: list[Scope]) -> None:
    """Put stretches around neighbours wherever a box would hold too many others."""
    built = [node.index for node in _by_age(graph)]
    levels: dict[Scope, dict[Scope | int, None]] = {}
    for index in built:
        scope = scopes[index]
        for depth in range(len(scope)):
            levels.setdefault(scope[:depth], {})[scope[: depth + 1]] = None
        levels.setdefault(scope, {})[index] = None
    around: dict[Scope | int, Scope] = {}
    for children in levels.values():
        _cut(list(children), (), around)
    if not around:
        return
    for index in built:
        plain, cut = scopes[index], around.get(index, ())
        for depth in range(len(plain), 0, -1):
            cut = around.get(plain[:depth], ()) + plain[depth - 1 : depth] + cut
        scopes[index] = cut


def _cut(children: list[Scope | int], outer: Scope, around: dict[Scope | int, Scope]) -> None:
    if len(children) <= LONG:
        if outer:
            around.update(dict.fromkeys(children, outer))
        return
    size = max(LEAST, -(-len(children) // PARTS))
    for number, start in enumerate(range(0, len(children), size)):
        part = children[start : start + size]
        _cut(part, (*outer, (STRETCH + _stretch_label(part), number)), around)


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
