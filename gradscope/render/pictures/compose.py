"""Turns graphs into a picture: merges, folds, and says in boxes, links and groups what is seen."""

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
        group = group_of[number]
        if len(part.heads) == 1:
            box = node_box(number, merged, part.heads[0], leaves, sites=options.sites, group=group)
        else:
            box = fold_box(number, merged, part, leaves, group=group)
        boxes.append(_marked(box, merged, part, marks))
        box_of.update(dict.fromkeys(part.heads, number))
    links = _links(merged, folded, box_of)
    hidden = len(merged.nodes) - sum(len(part.heads) == 1 for part in folded.parts)
    notes = [*folded.notes]
    if merged.not_looked_at:
        notes.append(
            f"{counted(merged.not_looked_at, 'edge')} not followed: the graph is too deep to touch safely"
        )
    subtitle = " · ".join(filter(None, (_totals(merged, hidden), marks.moment)))
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
    """Say on the box which roots start here, and that a call would fail or has a finding here."""
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
        start = _top(source, folded.absorbed)
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
        Link(s, t, kinds.get((s, t), LinkKind.PLAIN), n) for (s, t), n in sorted(counts.items())
    )


def _top(node: int, absorbed: dict[int, int]) -> int:
    while node in absorbed:
        node = absorbed[node]
    return node


def _kind(merged: Merged, folded: Folded, source: int, target: int) -> LinkKind:
    if merged.nodes[target].is_leaf:
        return LinkKind.PLAIN
    if folded.generations and merged.nodes[source].built_after != merged.nodes[target].built_after:
        return LinkKind.CARRIED
    if merged.is_shared(target) and not merged.is_shared(source):
        return LinkKind.BOUNDARY
    return LinkKind.PLAIN


def _groups(merged: Merged, folded: Folded) -> tuple[tuple[Group, ...], list[int | None]]:
    """Frames: one per generation, in it one for what several roots share, in it one for the sample of a repeat."""
    groups: list[Group] = []
    known: dict[tuple[object, ...], int] = {}
    inside: dict[int, list[Node]] = {}
    shared_exists = len(merged.roots) > 1
    framed = folded.generations and len({_age(merged, part) for part in folded.parts}) <= _FRAMES
    times: dict[int | None, int] = {
        part.sample: part.times
        for part in folded.parts
        if part.why == "repeat" and part.sample is not None
    }

    def frame(kind: GroupKind, parent: int | None, *key: object) -> int:
        full = (kind, parent, *key)
        if full not in known:
            known[full] = len(groups)
            groups.append(Group(len(groups), kind, "", parent))
        return known[full]

    of: list[int | None] = []
    for part in folded.parts:
        group: int | None = None
        first = merged.nodes[part.heads[0]]
        if first.is_leaf and len(part.heads) == 1:
            of.append(None)
            continue
        if framed and isinstance(age := _age(merged, part), int):
            group = frame(GroupKind.ITERATION, group, age)
        if shared_exists and all(merged.is_shared(head) for head in part.heads):
            group = frame(GroupKind.SHARED, group)
        if part.sample in times and part.why != "repeat":
            group = frame(GroupKind.REPEAT, group, part.sample)
        of.append(group)
        at = group
        while at is not None:
            inside.setdefault(at, []).extend(merged.nodes[head] for head in part.heads)
            at = groups[at].parent
    titled = [
        replace(g, title=_frame_title(g, key, merged, inside[g.id], times))
        for key, g in zip(known, groups, strict=True)
    ]
    return tuple(titled), of


def _age(merged: Merged, part: Part) -> int | tuple[int, int]:
    """The generation of a part, or from which to which it goes."""
    ages = [merged.nodes[head].built_after for head in part.heads]
    return ages[0] if min(ages) == max(ages) else (min(ages), max(ages))


def _frame_title(
    group: Group,
    key: tuple[object, ...],
    merged: Merged,
    nodes: list[Node],
    times: dict[int | None, int],
) -> str:
    if group.kind is GroupKind.ITERATION:
        call = nodes[0].built_after
        return f"built after backward call {call}" if call else "built before backward call 1"
    if group.kind is GroupKind.REPEAT:
        sample = key[-1]
        return f"1 of {times[sample] + 1:,} alike" if isinstance(sample, int) else ""
    names = [one_line(root.name or f"root {n}", 20) for n, root in enumerate(merged.roots, 1)]
    who = " and ".join(names) if len(names) < 3 else f"several of {len(names)} roots"
    return f"SHARED by {who}: {_shared_state(nodes)}"


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
