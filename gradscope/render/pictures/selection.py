"""Chooses which graphs of a recording belong in one picture, and as of which moment."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradscope.errors import GradscopeError
from gradscope.model import (
    BackwardCall,
    Certainty,
    Finding,
    Graph,
    Node,
    NodeState,
    Recording,
    SavedState,
)
from gradscope.render.pictures.folding import COMFORTABLE
from gradscope.render.pictures.picture import Marking
from gradscope.units import counted, listed

MOST_CALLS = 4
"""More graphs than these in one picture show less, not more."""

_MOST_MARKED = 8
"""Of more nodes than these only the first is marked, or the marks would be all one sees."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Graphs for one picture, oldest first; the last one is that of the call asked for.

    ``focus`` is what to look at where the user does not say.
    """

    graphs: tuple[Graph, ...]
    marks: Marking
    focus: str | None = None


def select(recording: Recording, call: int | None = None, *, of_finding: bool = False) -> Selection:
    """Select the graph that backward call ``call`` met, and earlier ones that share nodes with it.

    Without a number it is the call of the gravest finding, or else the last one. ``of_finding``
    asks for a finding's. The earlier graphs are as they are at that moment. Raises GradscopeError
    where there is no such call, graph or finding.
    """
    finding = _finding(recording, call)
    if of_finding and finding is None:
        where = "the recording" if call is None else f"call {call}"
        raise GradscopeError(
            f"{where} has no finding that speaks of a graph; leave the focus on it out"
        )
    if call is None and finding is not None:
        call = finding.backward_call
    row = _row(recording, call)
    if row.graph not in recording.graphs:
        number = row.number if call is None else call
        raise GradscopeError(
            f"the graph of backward call {number} is not in the recording; {_stored(recording)}"
        )
    whole = recording.graphs[row.graph]
    earlier = _earlier(recording, row, whole)
    shown = [_after(graph, by) for by, graph in earlier] + [whole]
    if earlier:
        rows = [*(by for by, _ in earlier), row]
        shown = [_roots_named(graph, by.number) for graph, by in zip(shown, rows, strict=True)]
    marked: tuple[int, ...] = ()
    stops = False
    if finding is not None:
        marked = tuple(node for node in finding.graph_nodes if node < len(whole.nodes))
        marked = marked if len(marked) <= _MOST_MARKED else marked[:1]
        stops = finding.certainty is not Certainty.PREDICTED and not finding.missed
    large = len(set.union(*map(_identities, shown))) > COMFORTABLE
    return Selection(
        tuple(shown),
        Marking(marked, stops, _moment(row, call)),
        focus="finding" if marked and large else None,
    )


def _finding(recording: Recording, call: int | None) -> Finding | None:
    """Return the gravest finding that is not suppressed, about nodes of a stored graph; of call
    ``call``, if given.
    """
    asked = (f for f in recording.findings if call in (None, f.backward_call) and not f.suppression)
    usable = (f for f in asked if f.graph in recording.graphs and f.graph_nodes)
    return min(usable, key=lambda f: f.severity.rank, default=None)


def _row(recording: Recording, call: int | None) -> BackwardCall:
    """Return the row of a call, or that of the last one whose graph is there."""
    rows = recording.calls
    if not rows:
        raise GradscopeError("no backward call was made, so there is no graph to draw")
    if call is None:
        return max(rows, key=lambda row: (row.graph in recording.graphs, row.last_number))
    around = [row for row in rows if row.includes(call)]
    if not around:
        calls = counted(max(row.last_number for row in rows), "call")
        raise GradscopeError(f"there is no backward call {call} in the recording: it has {calls}")
    # Rows of calls that take turns overlap: the one whose turn it was comes in even steps.
    return max(around, key=lambda row: (row.number == call, _in_step(row, call), row.number))


def _in_step(row: BackwardCall, call: int) -> bool:
    step, uneven = divmod(row.last_number - row.number, max(row.count - 1, 1))
    return not uneven and step > 0 and (call - row.number) % step == 0


def _stored(recording: Recording) -> str:
    """Return which calls can be drawn instead, as text."""
    numbers = sorted(row.number for row in recording.calls if row.graph in recording.graphs)
    if not numbers:
        return "it has none at all"
    return f"draw one of calls {listed(map('{:,}'.format, numbers), 5)}"


def _moment(row: BackwardCall, call: int | None) -> str:
    """Return when the graph looked so: ``as backward call 2 found it (train.py:42)``."""
    number = row.number if call is None else call
    place = "" if row.site is None else f" ({row.site.place})"
    alike = ""
    if number != row.number:
        alike = f", as alike call {row.number:,} did"
    elif row.count > 1:
        alike = f", the first of {row.count:,} alike"
    kind = "autograd.grad" if row.kind == "grad" else "backward"
    return f"as {kind} call {number:,} found it{place}{alike}"


def _earlier(
    recording: Recording, row: BackwardCall, whole: Graph
) -> list[tuple[BackwardCall, Graph]]:
    """Return the last calls before this one whose graphs share a node with its graph ``whole``.

    Those that freed such a node come before others. A graph is stored at its first sight, so
    sequence numbers can be compared only between calls that were the first to meet their graphs.
    """
    first: dict[int, BackwardCall] = {}
    for other in sorted(recording.calls, key=lambda call: call.number):
        if other.graph is not None:
            first.setdefault(other.graph, other)
    if row not in first.values():
        return []
    before = {
        other.number: (other, recording.graphs[number])
        for number, other in first.items()
        if number in recording.graphs and other.thread == row.thread and other.number < row.number
    }
    own = _identities(whole)
    sharing = [number for number, (_, graph) in before.items() if own & _identities(graph)]
    freed_by = {node.freed_by for node in whole.nodes}
    chosen = sorted(sharing, key=lambda number: (number in freed_by, number))[-MOST_CALLS + 1 :]
    return [before[number] for number in sorted(chosen)]


def _identities(graph: Graph) -> set[tuple[int, str]]:
    return {(node.sequence_nr, node.name) for node in graph.nodes if node.sequence_nr is not None}


def _after(graph: Graph, call: BackwardCall) -> Graph:
    """Return the graph that ``call`` met, as the call left it."""
    if call.exception is not None:
        return graph
    nodes = tuple(_left(node, call.number, call.retain_graph) for node in graph.nodes)
    return replace(graph, nodes=nodes)


def _left(node: Node, call: int, kept: bool) -> Node:
    if not (node.will_run and node.state.is_whole):
        return node
    if kept:
        return replace(node, state=NodeState.RETAINED)
    gone = tuple(replace(tensor, state=SavedState.FREED) for tensor in node.saved)
    return replace(node, state=NodeState.FREED, saved=gone, freed_by=call)


def _roots_named(graph: Graph, call: int) -> Graph:
    """Name the call in the names of its graph's roots, as many a loop calls them all ``loss``."""
    roots = tuple(
        replace(root, name=f"{root.name} (call {call:,})" if root.name else f"call {call:,}")
        for root in graph.roots
    )
    return replace(graph, roots=roots)
