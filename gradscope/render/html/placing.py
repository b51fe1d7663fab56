"""Places the nodes of a graph for the report: nested groups, and a rank and an order in each.

What a box measures depends on what the reader has opened, so pixels are left to the page; the part
that costs time and has to be the same on every machine is done here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from gradscope.formatting import common_length
from gradscope.model import Graph
from gradscope.render.pictures import DEFAULTS, UNMARKED
from gradscope.render.pictures.compose import fold_title
from gradscope.render.pictures.folding import Fold, Merged, fold, merge


class Level(NamedTuple):
    """A box around nodes: its name, a number, which differs for boxes of the same name, and of
    which kind of ``Group`` it is.
    """

    name: str
    number: int
    kind: str = "module"


Nesting: TypeAlias = tuple[Level, ...]
"""The boxes around a node, outermost first."""

MAX_DEPTH = 12  # nested boxes, each with a margin; deeper modules share the innermost one


def module_calls(merged: Merged, built: Sequence[int]) -> list[Nesting]:
    """Return each node's boxes; leaves, which no module call builds, get none.

    ``built`` are the others, in the order in which they were built.

    Nodes built one after another in the same module are one call of it. Gradients flow from newer
    nodes to older ones, so a call's nodes have no other node between them, which all nodes of a
    module called twice would have.
    """
    eras = {merged.nodes[index].built_after for index in built}
    nestings: list[Nesting] = [()] * len(merged.nodes)
    calls: Counter[tuple[str, ...]] = Counter()
    open_calls: Nesting = ()
    for index in built:
        node = merged.nodes[index]
        after = f"after backward call {node.built_after:,}"
        when = after if node.built_after else "before the first backward call"
        era = [f"built {when}"] if len(eras) > 1 else []
        names = era + (node.module.split(".")[:MAX_DEPTH] if node.module else [])
        depth = common_length((names, [level.name for level in open_calls]))
        nesting = open_calls[:depth]
        for name in names[depth:]:
            path = (*(level.name for level in nesting), name)
            calls[path] += 1
            kind = "built" if name in era else "module"
            nesting = (*nesting, Level(name, calls[path], kind))
        open_calls = nestings[index] = nesting
    return nestings


def module_path(nesting: Nesting) -> str:
    """Return the qualified name of the module whose call ``nesting`` is."""
    return ".".join(level.name for level in nesting if level.kind == "module")


def _put_folds_around(nestings: list[Nesting], merged: Merged, folds: Sequence[Fold]) -> None:
    """Put a box around nodes that share one in the picture, where no module call is that box.

    In one of alike pieces each piece has a box of its own.
    """
    sizes = _sizes(nestings)
    for number, part in enumerate(folds):
        inside = [head for head in part.heads if not merged.nodes[head].is_leaf]
        outer = common_length([nestings[node] for node in inside])
        if len(part.heads) < 2 or not inside or len(inside) == sizes[nestings[inside[0]][:outer]]:
            continue
        title = fold_title(part, [merged.nodes[head] for head in part.heads])
        size, uneven = divmod(len(part.heads), part.times)
        are_alike = part.why == "repeat" and size > 1 and not uneven
        for place, node in enumerate(part.heads):
            if not merged.nodes[node].is_leaf:
                boxes = [Level(title, number, "stretch")]
                if are_alike:
                    boxes.append(Level(f"1 of {part.times:,}", place // size, "stretch"))
                around, within = nestings[node][:outer], nestings[node][outer:]
                nestings[node] = (*around, *boxes, *within)


def _sizes(nestings: Sequence[Nesting]) -> Counter[Nesting]:
    """Return how many nodes are in each box, in the order of their first sight."""
    return Counter(each[:depth] for each in nestings for depth in range(1, len(each) + 1))


ROOT = 0  # the group of all

Arrows: TypeAlias = dict[int, dict[int, None]]
"""From each box to those it points at; a group is written as ``~number``."""


@dataclass(slots=True)
class Group:
    """A box that holds others; group 0 is the graph.

    ``kind`` is ``module`` for a call of a module, ``built`` for all nodes built between two
    backward calls, and ``stretch`` for neighbours that share a box in the picture. ``is_open``: at
    first its boxes are shown, as in the picture.
    """

    label: str
    path: str
    parent: int
    kind: str
    module_class: str | None = None
    rank: int = 0
    order: int = 0
    is_open: bool = True


@dataclass(frozen=True, slots=True)
class Placing:
    """Per node: its group, its rank and order in it, and the node it is drawn beside (-1: none)."""

    groups: list[Group]
    parent: list[int]
    rank: list[int]
    order: list[int]
    beside: list[int]


def place(graph: Graph) -> Placing:
    """Group, rank and order the nodes of ``graph`` so that gradients flow downwards."""
    merged = merge([graph])
    groups, parent = _grouped(merged, fold(merged, DEFAULTS, UNMARKED).parts)
    count = len(parent)
    beside = [_beside(index, merged, parent) for index in range(count)]
    placing = Placing(groups, parent, [0] * count, [0] * count, beside)
    children: list[dict[int, None]] = [{} for _ in groups]
    for index in (*merged.order, *range(count)):
        item, group = index, parent[index]
        while beside[index] < 0 and group >= ROOT:
            children[group][item] = None
            item, group = ~group, groups[group].parent
    arrows = _arrows_by_group(merged, placing)
    for group, items in enumerate(children):
        for row_number, row in enumerate(_rows(list(items), arrows[group])):
            for position, item in enumerate(row):
                if item < 0:
                    groups[~item].rank, groups[~item].order = row_number, position
                else:
                    placing.rank[item], placing.order[item] = row_number, position
    return placing


def _grouped(merged: Merged, folds: Sequence[Fold]) -> tuple[list[Group], list[int]]:
    """Return the groups, and the innermost one of each node; of a leaf, which no module call
    builds, that of its users. Closed are at first those that are one box of the picture, or in it.
    """
    built = [node for node in reversed(merged.order) if not merged.nodes[node].is_leaf]
    nestings = module_calls(merged, built)
    _put_folds_around(nestings, merged, folds)
    for leaf, users in enumerate(merged.sources):
        if merged.nodes[leaf].is_leaf and users:
            around = [nestings[user] for user in users]
            nestings[leaf] = around[0][: common_length(around)]
    groups, numbers = _groups_of(nestings, merged)
    parent = [numbers[nesting] for nesting in nestings]
    shown: list[set[int]] = [set() for _ in groups]
    for number, part in enumerate(folds):
        for node in part.heads:
            group = ROOT if merged.nodes[node].is_leaf else parent[node]
            while group > ROOT:
                shown[group].add(number)
                group = groups[group].parent
    for group_of, parts in zip(groups, shown, strict=True):
        group_of.is_open = len(parts) != 1 or len(folds[min(parts)].heads) < 2
    return groups, parent


def _groups_of(
    nestings: Sequence[Nesting], merged: Merged
) -> tuple[list[Group], dict[Nesting, int]]:
    """Return the groups of all boxes, and their numbers; a box of one node, or around one box only,
    is none.
    """
    sizes = _sizes(nestings)
    around_one = {box[:-1] for box, size in sizes.items() if size == sizes[box[:-1]]}
    modules = [box for box in sizes if box[-1].kind == "module"]
    called_again = {module_path(box) for box in modules if box[-1].number > 1}
    classes = {node.module: node.module_class for node in merged.nodes if node.module_class}
    groups = [Group("", "", -1, "graph")]
    numbers: dict[Nesting, int] = {(): ROOT}
    for box, size in sizes.items():
        (name, call, kind), path, above = box[-1], module_path(box), numbers[box[:-1]]
        is_module = kind == "module"
        numbers[box] = above
        if size > 1 and not (is_module and box in around_one):
            numbers[box] = len(groups)
            if is_module:
                name = path.removeprefix(f"{groups[above].path}.")
                name += f" #{call:,}" if path in called_again else ""
            groups.append(Group(name, path, above, kind, classes.get(path) if is_module else None))
    return groups, numbers


def _beside(leaf: int, merged: Merged, parent: list[int]) -> int:
    """Return the node that a leaf hangs on: its one consumer, if both are in the same group."""
    users = set(merged.sources[leaf])
    if not merged.nodes[leaf].is_leaf or len(users) != 1:
        return -1
    user = users.pop()
    return user if parent[user] == parent[leaf] else -1


def _arrows_by_group(merged: Merged, placing: Placing) -> list[Arrows]:
    """Return for each group the arrows between the boxes right inside it."""
    groups = placing.groups
    depth = [0] * len(groups)
    for number, group in enumerate(groups[1:], start=1):
        depth[number] = depth[group.parent] + 1
    found: list[Arrows] = [{} for _ in groups]
    for start, ends in enumerate(merged.targets):
        for end in ends:
            if placing.beside[end] >= 0:
                continue
            source, target, above, below = start, end, placing.parent[start], placing.parent[end]
            while above != below:
                if depth[above] >= depth[below]:
                    source, above = ~above, groups[above].parent
                else:
                    target, below = ~below, groups[below].parent
            if source != target:
                found[above].setdefault(source, {})[target] = None
    return found


def _rows(items: list[int], arrows: Arrows) -> list[list[int]]:
    """Return the boxes by rank, each row ordered so that few arrows cross."""
    ranks = _longest_path(items, arrows)
    rows: list[list[int]] = [[] for _ in range(max(ranks.values(), default=-1) + 1)]
    for item in items:
        rows[ranks[item]].append(item)
    above: dict[int, list[int]] = {item: [] for item in items}
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
