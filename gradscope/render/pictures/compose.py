"""Turns graphs into a picture: merges, folds, and shows that as boxes, arrows and clusters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from gradscope.formatting import common_module, counted, listed, nbytes
from gradscope.model import Graph, Node, NodeState, SavedState, SavedTensor
from gradscope.model.graph import activation_bytes
from gradscope.render.pictures import (
    OLDER,
    SHARED,
    TIMES,
    UNMARKED,
    Arrow,
    Box,
    BoxRow,
    Cluster,
    Marking,
    Options,
    Picture,
    one_line,
)
from gradscope.render.pictures.folding import Fold, Folded, Merged, fold, merge
from gradscope.render.theme import NODE_STATES, SAVED_STATES

# Saved tensors, and leaves, that a box shows; further ones are counted. Most operations save one
# to three.
_ROWS = 6

_TELLING = list(map(NodeState, ("stale", "freed", "retained", "live", "destroyed", "bufferless")))
"""A box of many nodes has the first of these states that is in it."""


def node_box(number: int, merged: Merged, head: int, leaves: Sequence[int], *, sites: bool) -> Box:
    """Return the box of one node with its saved tensors and the leaves that are written into it."""
    node = merged.nodes[head]
    rows = _saved_rows(node.saved)
    rows += [_leaf_row(merged, leaf) for leaf in leaves[:_ROWS]]
    if len(leaves) > _ROWS:
        more = counted(len(leaves) - _ROWS, "more leaf", "more leaves")
        rows.append(BoxRow(f"and {more}", muted=True))
    if sites and node.site is not None:
        rows.append(BoxRow(one_line(f"{node.site.place} in {node.site.function}", 52), muted=True))
    if node.is_leaf:
        users = len(set(merged.sources[head]))
        note = f"used by {counted(users, 'node')}" if users > 1 else "leaf"
        rows.insert(0, BoxRow(one_line(node.leaf_kind)))
        return Box(number, one_line(node.variable or "leaf"), note=note, rows=tuple(rows))
    note = _state_note([node], node.state)
    caption = one_line(f"{node.module} · {node.module_class}") if node.module_class else ""
    return Box(number, one_line(node.name), node.state, note, caption=caption, rows=tuple(rows))


def fold_box(number: int, merged: Merged, part: Fold, leaves: Sequence[int]) -> Box:
    """Return the box of many nodes.

    It shows how many they are, in which states, how many bytes, of which operations, and how to
    open it.
    """
    nodes = [merged.nodes[head] for head in part.heads]
    states = Counter(node.state for node in nodes)
    state = next(s for s in _TELLING if s in states)
    rows = [BoxRow(_contents(nodes))]
    if len(states) > 1:
        words = [f"{states[s]:,} {NODE_STATES[s].word}" for s in _TELLING if states[s]]
        rows.append(BoxRow(", ".join(words)))
    rows += [
        BoxRow(f"{counted(number, 'tensor')} {state}", nbytes(size), state)
        for state, number, size in held_and_freed(nodes)
    ]
    if leaves:
        some = counted(len(set(leaves)), "leaf", "leaves")
        rows.append(BoxRow(f"→ {some}: {_leaf_names(merged, leaves)}", muted=True))
    rows.append(BoxRow(f"open: {open_key(part, nodes)}", muted=True))
    title, note = fold_title(part, nodes), _state_note(nodes, state)
    return Box(number, title, state, note, rows=tuple(rows), is_fold=True)


def fold_title(part: Fold, nodes: Sequence[Node]) -> str:
    """Return what the fold is, in one line."""
    common = common_module([node.module or "" for node in nodes])
    if part.why == "repeat":
        calls = [node.built_after for node in nodes]
        if min(calls) != max(calls):
            return f"built after calls {min(calls)} to {max(calls)}: {part.times:,} alike"
        names = sorted({node.name for node in nodes})
        size = len(nodes) // part.times
        each = names[0] if len(names) == 1 else counted(size, "node")
        what = _modules(nodes) or " · ".join(filter(None, (common, each)))
        return one_line(f"{what} {TIMES}{part.times:,}")
    if part.why == "module":
        classes = (n.module_class for n in nodes if n.module == part.title and n.module_class)
        return one_line(f"{part.title}  {next(classes, '')}".strip())
    if part.why == "exclusive":
        return one_line(part.title)
    return one_line(" · ".join(filter(None, (common, counted(len(nodes), "node")))))


def open_key(part: Fold, nodes: Sequence[Node]) -> str:
    """Return the ``focus`` that opens it: a module, or a range of sequence numbers."""
    if part.why == "module":
        return part.title
    numbers = [node.sequence_nr for node in nodes if node.sequence_nr is not None]
    return f"#{min(numbers)}-{max(numbers)}" if numbers else "--no-fold"


def _modules(nodes: Sequence[Node]) -> str:
    """Return ``layers.0 … layers.4`` when the nodes are the calls of numbered modules."""
    numbered: dict[str, set[int]] = {}
    for node in nodes:
        found = re.match(r"(.*?)(\d+)(?:\.|$)", node.module or "")
        if not found:
            return ""
        numbered.setdefault(found[1], set()).add(int(found[2]))
    ((stem, numbers), *others) = numbered.items()
    if others or len(numbers) == 1:
        return ""
    return f"{stem}{min(numbers)} … {stem}{max(numbers)}"


def _leaf_names(merged: Merged, leaves: Sequence[int]) -> str:
    """Return the leaves' names, what they have in common once: ``fc1: bias, weight``."""
    names = sorted({merged.nodes[leaf].variable or "leaf" for leaf in leaves})
    stem = common_module([name.rpartition(".")[0] for name in names])
    rest = [name.removeprefix(stem + ".") for name in names] if stem else names
    return one_line(f"{stem}: {listed(rest)}" if stem else listed(rest), 60)


def _contents(nodes: Sequence[Node]) -> str:
    names = Counter(re.sub(r"Backward\d*$", "", node.name) for node in nodes).most_common()
    shown = [f"{name} {TIMES}{number:,}" if number > 1 else name for name, number in names[:3]]
    more = ", …" if len(names) > 3 else ""
    return f"{counted(len(nodes), 'node')}: {one_line(', '.join(shown), 60)}{more}"


def held_and_freed(nodes: Iterable[Node]) -> list[tuple[SavedState, int, int]]:
    """Return number and bytes of the saved activations that the nodes still hold, and of those
    that are gone; nothing of which there is none.
    """
    tensors = [s for node in nodes for s in node.saved if not s.is_parameter]
    some = {
        SavedState.SAVED: [s for s in tensors if not s.state.is_gone],
        SavedState.FREED: [s for s in tensors if s.state.is_gone],
    }
    return [(state, len(those), activation_bytes(those)) for state, those in some.items() if those]


def _saved_rows(saved: Sequence[SavedTensor]) -> list[BoxRow]:
    rows = []
    for tensor in saved[:_ROWS]:
        note = "" if tensor.state is SavedState.SAVED else SAVED_STATES[tensor.state].word
        size = f"view of {nbytes(tensor.nbytes)}" if tensor.is_view else nbytes(tensor.nbytes)
        if tensor.is_parameter:
            size = f"= {one_line(tensor.source, 28)}" if tensor.source else "parameter"
        muted = tensor.is_parameter and tensor.state is SavedState.SAVED
        told = f"{size}  {note}".strip()
        rows.append(BoxRow(one_line(tensor.label, 44), told, tensor.state, muted))
    if len(saved) > _ROWS:
        rest = saved[_ROWS:]
        rows.append(BoxRow(f"and {len(rest)} more", nbytes(activation_bytes(rest)), muted=True))
    return rows


def _leaf_row(merged: Merged, leaf: int) -> BoxRow:
    node = merged.nodes[leaf]
    users = len(set(merged.sources[leaf]))
    text = f"→ {one_line(node.variable or 'leaf', 36)}  {one_line(node.leaf_kind, 30)}"
    return BoxRow(text, f"used {TIMES}{users}" if users > 1 else "", muted=True)


def _state_note(nodes: Sequence[Node], state: NodeState) -> str:
    """Return the state in words, with the calls that freed the nodes."""
    word = NODE_STATES[state].word
    freed = [node.freed_by for node in nodes if node.state is NodeState.FREED]
    calls = sorted({call for call in freed if call is not None})
    if state is not NodeState.FREED or not calls:
        return word
    if len(calls) == 1:
        return f"{word} by call {calls[0]}"
    return f"{word} by calls {calls[0]} to {calls[-1]}"


_FRAMES = 12  # with more generations than this, frames would be all one sees


def compose(graphs: Sequence[Graph], options: Options, marks: Marking = UNMARKED) -> Picture:
    """Return the picture of one graph, or of several in which equal nodes are drawn once."""
    merged = merge(graphs)
    marks = marks._replace(highlight=tuple(merged.of_last[node] for node in marks.highlight))
    folded = fold(merged, options, marks)
    clusters, cluster_of = _clusters(merged, folded)
    boxes = []
    box_of: dict[int, int] = {}
    for number, part in enumerate(folded.parts):
        leaves = [leaf for head in part.heads for leaf in folded.inlined.get(head, ())]
        if len(part.heads) == 1:
            box = node_box(number, merged, part.heads[0], leaves, sites=options.sites)
        else:
            box = fold_box(number, merged, part, leaves)
        boxes.append(_marked(box._replace(cluster=cluster_of[number]), merged, part, marks))
        box_of.update(dict.fromkeys(part.heads, number))
    hidden = len(merged.nodes) - sum(len(part.heads) == 1 for part in folded.parts)
    notes = []
    if merged.not_looked_at:
        missed = counted(merged.not_looked_at, "edge")
        notes.append(f"{missed} not followed: the graph is too deep to touch safely")
    totals = _totals(merged.nodes)
    if hidden:
        totals.append(f"{counted(hidden, 'node')} folded")
    subtitle = " · ".join(filter(None, (*totals, marks.moment)))
    arrows = _arrows(merged, folded, box_of)
    return Picture(_title(merged), subtitle, tuple(boxes), arrows, clusters, tuple(notes))


def _title(merged: Merged) -> str:
    names = [one_line(root.name or merged.nodes[root.node].name, 24) for root in merged.roots]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"Backward graph of {', '.join(names[:4]) or 'nothing'}{more}"


def _totals(nodes: Sequence[Node]) -> list[str]:
    """Return the number of nodes, and what became of the activations that they saved."""
    sizes = [f"{nbytes(size)} {state}" for state, _, size in held_and_freed(nodes)]
    return [counted(len(nodes), "node"), *sizes]


def _marked(box: Box, merged: Merged, part: Fold, marks: Marking) -> Box:
    """Write on the box which roots start here, and that a call fails or has a finding here."""
    starts = [root for root in merged.roots if root.node in part.heads]
    if starts:
        names = ", ".join(one_line(f"{r.name or 'root'} {r.label}".strip(), 40) for r in starts[:3])
        box = box._replace(root=names + (f" and {len(starts) - 3} more" if len(starts) > 3 else ""))
    marked = [node for node in marks.highlight if node in part.heads]
    if marked:
        stops = marks.stops and marked[0] == marks.highlight[0]
        box = box._replace(alarm="backward stops here" if stops else "part of the finding")
    return box


def _arrows(merged: Merged, folded: Folded, box_of: dict[int, int]) -> tuple[Arrow, ...]:
    counts: Counter[tuple[int, int]] = Counter()
    enters: dict[tuple[int, int], str] = {}
    for source, box in box_of.items():
        for target in merged.targets[source]:
            pair = box, box_of.get(target, box)
            counts[pair] += 1
            enters[pair] = _entered(merged, folded, source, target) or enters.get(pair, "")
    return tuple(
        Arrow(start, end, enters[start, end], number)
        for (start, end), number in sorted(counts.items())
        if start != end
    )


def _entered(merged: Merged, folded: Folded, source: int, target: int) -> str:
    """Return into which part an edge leads that the reader should see; empty for any other."""
    start, end = merged.nodes[source], merged.nodes[target]
    if end.is_leaf:
        return ""
    if folded.generations and start.built_after != end.built_after:
        return OLDER
    return SHARED if merged.is_shared(target) and not merged.is_shared(source) else ""


def _clusters(merged: Merged, folded: Folded) -> tuple[tuple[Cluster, ...], list[int | None]]:
    """Return the frames, and the innermost one of each part.

    There is one per generation, in it one for what several roots share, in it one for the sample
    of a repeat.
    """
    framed = folded.generations and len({_ages(merged, p) for p in folded.parts}) <= _FRAMES
    times = {p.sample: p.times for p in folded.parts if p.why == "repeat" and p.sample is not None}
    inside: dict[tuple[tuple[str, int], ...], list[Node]] = {}
    paths = []
    for part in folded.parts:
        nodes = [merged.nodes[head] for head in part.heads]
        path: tuple[tuple[str, int], ...] = ()
        first, last = _ages(merged, part)
        if framed and first == last:
            built = f"after backward call {first}" if first else "before backward call 1"
            path += ((f"built {built}", first),)
        if len(merged.roots) > 1 and all(merged.is_shared(head) for head in part.heads):
            path += ((SHARED, 0),)
        if part.sample in times and part.why != "repeat":
            path += ((f"1 of {times[part.sample] + 1:,} alike", part.sample),)
        if nodes[0].is_leaf and len(nodes) == 1:
            path = ()
        for depth in range(1, len(path) + 1):
            inside.setdefault(path[:depth], []).extend(nodes)
        paths.append(path)
    names = [one_line(root.name or f"root {n}", 20) for n, root in enumerate(merged.roots, 1)]
    who = " and ".join(names) if len(names) < 3 else f"several of {len(names)} roots"
    numbers = {path: number for number, path in enumerate(inside)}
    clusters = []
    for path, number in numbers.items():
        title, is_shared = path[-1][0], path[-1][0] == SHARED
        if is_shared:
            title = f"SHARED by {who}: {_shared_state(inside[path])}"
        clusters.append(Cluster(number, title, numbers.get(path[:-1]), is_shared))
    return tuple(clusters), [numbers.get(path) for path in paths]


def _ages(merged: Merged, part: Fold) -> tuple[int, int]:
    """Return from which generation to which a part goes."""
    ages = [merged.nodes[head].built_after for head in part.heads]
    return min(ages), max(ages)


def _shared_state(nodes: list[Node]) -> str:
    """Return the number of nodes and what became of their saved tensors."""
    parts = _totals(nodes)
    if len(parts) == 1:
        any_freed = any(node.state is NodeState.FREED for node in nodes)
        parts.append("freed" if any_freed else "nothing saved: harmless")
    return ", ".join(parts)
