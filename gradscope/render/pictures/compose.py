"""Turns graphs into a picture: merges, folds, and shows the result as boxes, links and groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gradscope.model import Graph, Node, NodeState
from gradscope.model.graph import activation_bytes
from gradscope.render.pictures.boxes import fold_box, held_and_freed, node_box
from gradscope.render.pictures.folding import Folded, Part, fold
from gradscope.render.pictures.merging import Merged, merge
from gradscope.render.pictures.options import Options
from gradscope.render.pictures.picture import (
    UNMARKED,
    Box,
    Group,
    GroupKind,
    Link,
    LinkKind,
    Marks,
    Picture,
    one_line,
)
from gradscope.units import counted, nbytes

_FRAMES = 12
"""With more generations than this, frames would be all one sees."""


def compose(graphs: Sequence[Graph], options: Options, marks: Marks = UNMARKED) -> Picture:
    """Return the picture of one graph, or of several in which equal nodes are drawn once."""
    merged = merge(graphs)
    marks = _in_merged(merged, marks)
    folded = fold(merged, options, marks)
    groups, group_of = _groups(merged, folded)
    boxes = []
    box_of: dict[int, int] = {}
    for number, part in enumerate(folded.parts):
        leaves = [leaf for head in part.heads for leaf in folded.inlined.get(head, ())]
        if len(part.heads) == 1:
            box = node_box(number, merged, part.heads[0], leaves, sites=options.sites)
        else:
            box = fold_box(number, merged, part, leaves)
        boxes.append(_marked(replace(box, group=group_of[number]), merged, part, marks))
        box_of.update(dict.fromkeys(part.heads, number))
    hidden = len(merged.nodes) - sum(len(part.heads) == 1 for part in folded.parts)
    notes = []
    if merged.not_looked_at:
        missed = counted(merged.not_looked_at, "edge")
        notes.append(f"{missed} not followed: the graph is too deep to touch safely")
    subtitle = " · ".join(filter(None, (_totals(merged, hidden), marks.moment)))
    links = _links(merged, folded, box_of)
    return Picture(_title(merged), subtitle, tuple(boxes), links, groups, tuple(notes))


def _in_merged(merged: Merged, marks: Marks) -> Marks:
    """Return the marks with the places that the last graph's nodes have in the whole."""
    failing = None if marks.failing is None else merged.of_last[marks.failing]
    return replace(
        marks, failing=failing, highlight=tuple(merged.of_last[node] for node in marks.highlight)
    )


def _title(merged: Merged) -> str:
    names = [one_line(root.name or merged.nodes[root.node].name, 24) for root in merged.roots]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"Backward graph of {', '.join(names[:4]) or 'nothing'}{more}"


def _totals(merged: Merged, hidden: int) -> str:
    held, freed = held_and_freed(merged.nodes)
    parts = [counted(len(merged.nodes), "node"), f"{nbytes(activation_bytes(held))} saved"]
    if freed:
        parts.append(f"{nbytes(activation_bytes(freed))} freed")
    if hidden:
        parts.append(f"{counted(hidden, 'node')} folded")
    return " · ".join(parts)


def _marked(box: Box, merged: Merged, part: Part, marks: Marks) -> Box:
    """Write on the box which roots start here, and that a call fails or has a finding here."""
    starts = [root for root in merged.roots if root.node in part.heads]
    if starts:
        names = ", ".join(one_line(f"{r.name or 'root'} {r.label}".strip(), 40) for r in starts[:3])
        box = replace(box, root=names + (f" and {len(starts) - 3} more" if len(starts) > 3 else ""))
    if marks.failing in part.heads:
        box = replace(box, alarm="backward stops here")
    elif set(marks.highlight).intersection(part.heads):
        box = replace(box, alarm="part of the finding")
    return box


def _links(merged: Merged, folded: Folded, box_of: dict[int, int]) -> tuple[Link, ...]:
    counts: Counter[tuple[int, int]] = Counter()
    kinds: dict[tuple[int, int], LinkKind] = {}
    for source, targets in enumerate(merged.targets):
        start = source
        while start in folded.absorbed:
            start = folded.absorbed[start]
        if start not in box_of:
            continue
        for target in targets:
            if target not in box_of or box_of[target] == box_of[start]:
                continue
            pair = (box_of[start], box_of[target])
            counts[pair] += 1
            kind = _kind(merged, folded, start, target)
            if kind is not LinkKind.PLAIN:
                kinds[pair] = kind
    return tuple(
        Link(*pair, kinds.get(pair, LinkKind.PLAIN), number)
        for pair, number in sorted(counts.items())
    )


def _kind(merged: Merged, folded: Folded, source: int, target: int) -> LinkKind:
    if merged.nodes[target].is_leaf:
        return LinkKind.PLAIN
    if folded.generations and merged.nodes[source].built_after != merged.nodes[target].built_after:
        return LinkKind.CARRIED
    if merged.is_shared(target) and not merged.is_shared(source):
        return LinkKind.BOUNDARY
    return LinkKind.PLAIN


def _groups(merged: Merged, folded: Folded) -> tuple[tuple[Group, ...], list[int | None]]:
    """Return the frames, and the innermost one of each part.

    There is one per generation, in it one for what several roots share, in it one for the sample
    of a repeat.
    """
    framed = folded.generations and len({_ages(merged, p) for p in folded.parts}) <= _FRAMES
    times = {p.sample: p.times for p in folded.parts if p.why == "repeat" and p.sample is not None}
    groups: list[Group] = []
    known: dict[tuple[object, ...], int] = {}
    inside: list[list[Node]] = []
    of: list[int | None] = []
    for part in folded.parts:
        nodes = [merged.nodes[head] for head in part.heads]
        frames: list[tuple[GroupKind, int, str]] = []
        first, last = _ages(merged, part)
        if framed and first == last:
            built = f"after backward call {first}" if first else "before backward call 1"
            frames.append((GroupKind.ITERATION, first, f"built {built}"))
        if len(merged.roots) > 1 and all(merged.is_shared(head) for head in part.heads):
            frames.append((GroupKind.SHARED, 0, ""))
        if part.sample in times and part.why != "repeat":
            alike = f"1 of {times[part.sample] + 1:,} alike"
            frames.append((GroupKind.REPEAT, part.sample, alike))
        if nodes[0].is_leaf and len(nodes) == 1:
            frames = []
        group: int | None = None
        for kind, key, title in frames:
            at = known.setdefault((kind, group, key), len(groups))
            if at == len(groups):
                groups.append(Group(at, kind, title, group))
                inside.append([])
            inside[at] += nodes
            group = at
        of.append(group)
    names = [one_line(root.name or f"root {n}", 20) for n, root in enumerate(merged.roots, 1)]
    who = " and ".join(names) if len(names) < 3 else f"several of {len(names)} roots"
    shared = f"SHARED by {who}: "
    return tuple(
        replace(g, title=shared + _shared_state(inside[g.id])) if g.kind is GroupKind.SHARED else g
        for g in groups
    ), of


def _ages(merged: Merged, part: Part) -> tuple[int, int]:
    """Return from which generation to which a part goes."""
    ages = [merged.nodes[head].built_after for head in part.heads]
    return min(ages), max(ages)


def _shared_state(nodes: list[Node]) -> str:
    """Return the number of nodes and what became of their saved tensors."""
    parts = [counted(len(nodes), "node")]
    held, freed = held_and_freed(nodes)
    if held:
        parts.append(f"{nbytes(activation_bytes(held))} saved")
    if freed:
        parts.append(f"{nbytes(activation_bytes(freed))} freed")
    if not held and not freed:
        any_freed = any(node.state is NodeState.FREED for node in nodes)
        parts.append("freed" if any_freed else "nothing saved: harmless")
    return ", ".join(parts)
