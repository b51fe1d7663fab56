"""What stands in the box of a node, and in the box of many folded nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from gradscope.model import Node, NodeState, SavedState, SavedTensor
from gradscope.model.graph import activation_bytes
from gradscope.render.pictures.folding import Part
from gradscope.render.pictures.merging import Merged
from gradscope.render.pictures.picture import TIMES, Box, BoxKind, Row, one_line
from gradscope.render.theme import NODE_STATES, SAVED_STATES
from gradscope.units import common_module, counted, nbytes

_ROWS = 6
"""A box shows at most so many saved tensors, and so many leaves."""

_TELLING = (
    NodeState.STALE,
    NodeState.FREED,
    NodeState.RETAINED,
    NodeState.LIVE,
    NodeState.DESTROYED,
    NodeState.BUFFERLESS,
)
"""A box of many nodes has the first of these states that is in it."""


def node_box(number: int, merged: Merged, head: int, leaves: Sequence[int], *, sites: bool) -> Box:
    """Return the box of one node with its saved tensors and the leaves that are written into it."""
    node = merged.nodes[head]
    written = {merged.nodes[leaf].variable for leaf in leaves} - {None}
    # A parameter that is a leaf of this very box is named once, in the leaf's row.
    twice = [
        s
        for s in node.saved
        if s.is_parameter and s.source in written and s.state is SavedState.SAVED
    ]
    rows = _saved_rows([s for s in node.saved if s not in twice])
    for leaf in leaves[:_ROWS]:
        names = [s.name or "" for s in twice if s.source == merged.nodes[leaf].variable]
        rows.append(_leaf_row(merged, leaf, names[0] if names else ""))
    if len(leaves) > _ROWS:
        more = counted(len(leaves) - _ROWS, "more leaf", "more leaves")
        rows.append(Row(f"and {more}", muted=True))
    if sites and node.site is not None:
        rows.append(Row(one_line(f"{node.site.place} in {node.site.function}", 52), muted=True))
    if node.is_leaf:
        users = len(set(merged.sources[head]))
        note = f"used by {counted(users, 'node')}" if users > 1 else "leaf"
        rows.insert(0, Row(one_line(_kind_of(node))))
        title = one_line(node.variable or "leaf")
        return Box(number, BoxKind.LEAF, title, note=note, rows=tuple(rows))
    note = _state_note([node], node.state)
    caption = one_line(f"{node.module} · {node.module_class}") if node.module_class else ""
    title = one_line(node.name)
    return Box(number, BoxKind.NODE, title, node.state, note, caption=caption, rows=tuple(rows))


def fold_box(number: int, merged: Merged, part: Part, leaves: Sequence[int]) -> Box:
    """Return the box of many nodes.

    It shows how many they are, in which states, how many bytes, of which operations, and how to
    open it.
    """
    nodes = [merged.nodes[head] for head in part.heads]
    states = Counter(node.state for node in nodes)
    state = next(s for s in _TELLING if s in states)
    rows = [Row(_contents(nodes))]
    if len(states) > 1:
        words = [f"{states[s]:,} {NODE_STATES[s].word}" for s in _TELLING if states[s]]
        rows.append(Row(", ".join(words)))
    rows += _saved_total(nodes)
    if leaves:
        some = counted(len(set(leaves)), "leaf", "leaves")
        rows.append(Row(f"→ {some}: {_leaf_names(merged, leaves)}", muted=True))
    rows.append(Row(f"open: {open_key(part, nodes)}", muted=True))
    title, note = fold_title(part, nodes), _state_note(nodes, state)
    return Box(number, BoxKind.FOLD, title, state, note, rows=tuple(rows))


def fold_title(part: Part, nodes: Sequence[Node]) -> str:
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


def open_key(part: Part, nodes: Sequence[Node]) -> str:
    """Return the ``expand`` that opens it: a module, a root's name, a range of sequence numbers."""
    if part.why == "module":
        return part.title
    if part.why == "exclusive":
        return part.title.removeprefix("only ")
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
    shown = ", ".join(rest[:3]) + (f" and {len(rest) - 3} more" if len(rest) > 3 else "")
    return one_line(f"{stem}: {shown}" if stem else shown, 60)


def _contents(nodes: Sequence[Node]) -> str:
    names = Counter(re.sub(r"Backward\d*$", "", node.name) for node in nodes).most_common()
    shown = [f"{name} {TIMES}{number:,}" if number > 1 else name for name, number in names[:3]]
    more = ", …" if len(names) > 3 else ""
    return f"{counted(len(nodes), 'node')}: {one_line(', '.join(shown), 60)}{more}"


def held_and_freed(nodes: Iterable[Node]) -> tuple[list[SavedTensor], list[SavedTensor]]:
    """Return the saved activations that the nodes still hold, and those that are gone."""
    tensors = [s for node in nodes for s in node.saved if not s.is_parameter]
    return [s for s in tensors if not s.state.is_gone], [s for s in tensors if s.state.is_gone]


def _saved_total(nodes: Iterable[Node]) -> list[Row]:
    """Return one row for what is still held, one for what is gone."""
    states = (SavedState.SAVED, SavedState.FREED)
    return [
        Row(f"{counted(len(some), 'tensor')} {state}", nbytes(activation_bytes(some)), state)
        for some, state in zip(held_and_freed(nodes), states, strict=True)
        if some
    ]


def _saved_rows(saved: Sequence[SavedTensor]) -> list[Row]:
    rows = []
    for tensor in saved[:_ROWS]:
        word = SAVED_STATES[tensor.state].word
        note = word if tensor.state is not SavedState.SAVED else ""
        size = nbytes(tensor.nbytes)
        if tensor.is_parameter:
            size = f"= {one_line(tensor.source, 28)}" if tensor.source else "parameter"
        muted = tensor.is_parameter and tensor.state is SavedState.SAVED
        rows.append(Row(one_line(tensor.label, 44), f"{size}  {note}".strip(), tensor.state, muted))
    if len(saved) > _ROWS:
        rest = saved[_ROWS:]
        rows.append(Row(f"and {len(rest)} more", nbytes(activation_bytes(rest)), muted=True))
    return rows


def _leaf_row(merged: Merged, leaf: int, saved_as: str) -> Row:
    node = merged.nodes[leaf]
    users = len(set(merged.sources[leaf]))
    notes = [
        f"saved as {saved_as}" if saved_as else "",
        f"used {TIMES}{users}" if users > 1 else "",
    ]
    text = f"→ {one_line(node.variable or 'leaf', 36)}  {one_line(_kind_of(node), 30)}"
    return Row(text, ", ".join(filter(None, notes)), muted=True)


def _kind_of(leaf: Node) -> str:
    """Return dtype and shape of a leaf, which its label has after its name."""
    return (leaf.variable_label or "").removeprefix(leaf.variable or "").strip()


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
