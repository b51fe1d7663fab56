"""Prints graphs, findings, backward calls and reports: as plain text, or in a notebook as coloured
text and pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from gradscope.errors import GradscopeError
from gradscope.formatting import counted, escaped, gathered, nbytes
from gradscope.model import (
    BackwardCall,
    Finding,
    Findings,
    Graph,
    Hazards,
    Node,
    NodeState,
    Recording,
    SavedState,
    SavedTensor,
    SavedTensors,
    Site,
    Summary,
)
from gradscope.model.graph import Changes, rich_forms, text_of
from gradscope.render.text import console_in_memory, written_on
from gradscope.render.text.report import print_finding, print_findings, print_report
from gradscope.render.text.tables import as_code
from gradscope.render.theme import NODE_STATES, SAVED_STATES
from gradscope.render.wording import lives

_WIDTH = 100  # characters of a line in a notebook, which scrolls what is longer
_MOST_NODES = 200  # rows of a graph that is printed: more are not read, and ``draw`` folds them


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return cells in columns as wide as they must be; leave out a column without a cell."""
    lines = [header, *([escaped(cell) for cell in row] for row in rows)]
    used = [i for i in range(len(header)) if any(line[i] for line in lines[1:])]
    widths = [max(len(line[i]) for line in lines) for i in used]
    return "\n".join(
        "  ".join(f"{line[i]:<{width}}" for i, width in zip(used, widths, strict=True)).rstrip()
        for line in lines
    )


@text_of.register
def graph_text(graph: Graph) -> str:
    """Return a headline, then a line for each node and each of its further saved tensors."""
    roots = {root.node: root.name or "root" for root in graph.roots}
    leaving = gathered(graph.edges, lambda edge: edge.source)
    rows = []
    for node in graph.nodes[:_MOST_NODES]:
        first, *rest = _saved_cells(node) or [""]
        ahead = " ".join(dict.fromkeys(f"[{edge.target}]" for edge in leaving.get(node.index, ())))
        arrow = f"→ {ahead}" if ahead else ""
        root, number, where = roots.get(node.index, ""), f"[{node.index}]", _where(node.site)
        made = where, node.differentiates, node.module or ""
        rows.append((root, number, node.name, _state(node), first, arrow, *made))
        rows += [("", "", "", "", saved, "", "", "", "") for saved in rest]
    header = "", "", "node", "state", "saved", "next", "made at", "differentiates", "module"
    lines = [table(header, rows)]
    if len(graph.nodes) > _MOST_NODES:
        lines.append(f"… and {counted(len(graph.nodes) - _MOST_NODES, 'more node')}")
    if graph.not_looked_at:
        lines.append(f"not looked at: what is behind {counted(graph.not_looked_at, 'more edge')}")
    return escaped("\n".join([_headline(graph), *lines]), keep="\n")


def _headline(graph: Graph) -> str:
    """Return ``backward graph of loss f32[]: 5 nodes (2 freed); it holds 128 B of ...``."""
    of = ", ".join(f"{root.name or ''} {root.label}".strip() for root in graph.roots)
    states = [node.state for node in graph.nodes]
    told = [state for state in NodeState if state in states and state is not NodeState.BUFFERLESS]
    counts = [f"{states.count(state)} {NODE_STATES[state].word}" for state in told]
    nodes = counted(len(states), "node") + (f" ({', '.join(counts)})" if counts else "")
    held = f"it holds {nbytes(graph.saved_bytes)} of saved tensors"
    if not counts:
        held = "it saved nothing: backward may run any number of times"
    return f"backward graph{' of ' if of else ''}{of}: {nodes}; {held}"


def _where(site: Site | None) -> str:
    return site.place if site else ""


def _state(node: Node) -> str:
    if node.is_leaf:
        return NODE_STATES[node.state].word if node.state is NodeState.DESTROYED else "leaf"
    by = f" by call {node.freed_by}" if node.freed_by and node.state is NodeState.FREED else ""
    return NODE_STATES[node.state].word + by


def _saved_cells(node: Node) -> list[str]:
    if node.is_leaf:
        return [f"gradient goes to {node.variable or 'a leaf'} {node.leaf_kind}"]
    cells = [saved_text(saved) for saved in node.saved]
    return cells + ([f"(not needed: {', '.join(node.unneeded)})"] if node.unneeded else [])


def saved_text(saved: SavedTensor) -> str:
    """Return ``self f32[8, 32]  1 KiB``, the name of a leaf, and the state if not just saved."""
    size = nbytes(saved.nbytes)
    if saved.is_parameter:
        size = f"= {saved.source}, a leaf" if saved.source else "a leaf"
    state = "" if saved.state is SavedState.SAVED else SAVED_STATES[saved.state].word
    return "  ".join(filter(None, (saved.label, size, state)))


@text_of.register
def saved_tensors_text(pairs: SavedTensors) -> str:
    """Return a line for each saved tensor: its node, what it is, its bytes and its state."""
    if not pairs:
        return pairs.nothing
    rows = []
    for node, saved in pairs:
        size = f"{nbytes(saved.nbytes)}{' (a leaf)' if saved.is_parameter else ''}"
        state, source = SAVED_STATES[saved.state].word, saved.source or ""
        rows.append((node, saved.label, size, state, source, _where(saved.site)))
    return table(("node", "saved", "bytes", "state", "variable", "made at"), rows)


@text_of.register
def changes_text(changes: Changes) -> str:
    """Return counts, then a line for each node with the edges that leave it."""
    rows = []
    signs = {"stayed": "=", "added": "+", "gone": "-"}
    for change in changes:
        node = change.node
        name = f"{node.name} of {node.variable}" if node.variable else node.name
        arrows = ", ".join(f"{signs[what]}> {target}" for what, target in change.edges)
        what = f"{signs[change.what]} {change.what}"
        rows.append((what, name, _state(node), arrows, _where(node.site)))
    counts = [
        f"{word} {counted(sum(c.what == word for c in changes), 'node')} and "
        f"{counted(sum(what == word for c in changes for what, _ in c.edges), 'edge')}"
        for word in signs
    ]
    return "; ".join(counts) + "\n" + table(("", "node", "state", "edges", "made at"), rows)


@text_of.register
def finding_text(finding: Finding) -> str:
    """Return a finding as the report shows it."""
    return written(lambda console: print_finding(finding, console))


@text_of.register
def findings_text(findings: Findings) -> str:
    """Return findings as the report shows them, one after the other; suppressed ones counted."""
    return written(lambda console: print_findings(findings, console)) or "no finding"


@text_of.register
def report_text(recording: Recording) -> str:
    """Return the whole report."""
    return written(lambda console: print_report(recording, console, verbose=True))


def written(*prints: Callable[[Console], object], width: int = _WIDTH) -> str:
    """Return what functions print on a console."""
    console = console_in_memory(width)
    for print_on in prints:
        print_on(console)
    return written_on(console).strip("\n")


@text_of.register
def call_text(call: BackwardCall) -> str:
    """Return a backward call in one line: nodes built, destroyed, run; bytes freed, retained."""
    site = f"  {_where(call.site)}" if call.site else ""
    number = f"call {call.number}"
    if call.count > 1:
        number = f"calls {call.number} to {call.last_number}"
    raised = f"  raised {call.exception.partition(':')[0]}" if call.exception else ""
    return escaped(
        f"{number}  {as_code(call)}{site}  built {call.nodes_built:,}"
        f"  destroyed {call.nodes_destroyed:,}  run {call.nodes_run:,}"
        f"  freed {call.freed_tensors:,} ({nbytes(call.freed_bytes)})"
        f"  retained {nbytes(call.retained_bytes)}{raised}"
    )


@text_of.register
def summary_text(summary: Summary) -> str:
    """Return the totals, a line each for nodes, saved tensors and bytes."""
    s, about = summary, "" if summary.exact else "about "
    peak = f"{nbytes(s.peak_saved_bytes)} at the peak"
    dropped = f", {s.dropped_tensors:,} dropped with their graph" if s.dropped_tensors else ""
    return (
        f"nodes          {lives(s)}\n"
        f"saved tensors  {about}{s.saved_tensors:,} saved, "
        f"{s.freed_tensors:,} freed by backward{dropped}\n"
        f"held           {about}{nbytes(s.live_bytes)} now, {peak}"
    )


_BLOCK = (
    '<pre style="white-space:pre;overflow-x:auto;line-height:1.3;margin:0;'
    "font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace\">{code}</pre>"
)
_MEDIUM = [(96, 96, 96), (200, 75, 35), (20, 140, 95), (165, 115, 0)]
_MEDIUM += [(35, 125, 190), (180, 80, 140), (20, 135, 150), (128, 128, 128)]
_THEME = TerminalTheme((255, 255, 255), (0, 0, 0), _MEDIUM, _MEDIUM)
"""Tones that can be read on a light page and on a dark one; other text has the page's colour."""


def coloured(print_on: Callable[[Console], object]) -> str:
    """Return as HTML what a function prints on a console."""
    options = {"record": True, "force_terminal": True, "_environ": {}}
    console = console_in_memory(_WIDTH, color_system="truecolor", **options)
    print_on(console)
    html = console.export_html(theme=_THEME, code_format="{code}", inline_styles=True)
    return _BLOCK.format(code=html.strip("\n"))


@rich_forms.register
def _finding(finding: Finding) -> dict[str, str]:
    return {"text/html": coloured(lambda console: print_finding(finding, console))}


@rich_forms.register
def _findings(findings: Findings | Hazards) -> dict[str, str]:
    if not findings:
        return {}
    return {"text/html": coloured(lambda console: print_findings(findings, console))}


@rich_forms.register
def _graph(graph: Graph) -> dict[str, str]:
    svg = _drawn(graph)
    return {"image/svg+xml": svg} if svg else {}  # there is no node: the text says so


@rich_forms.register
def _report(recording: Recording) -> dict[str, str]:
    html = coloured(lambda console: print_report(recording, console, verbose=True))
    return {"text/html": html + _picture_of(recording)}


def _picture_of(recording: Recording) -> str:
    """Return the graph of the gravest finding, to be opened below the report."""
    has_graph = any(finding.graph is not None for finding in recording.findings)
    svg = _drawn(recording) if has_graph else ""
    summary = "the backward graph of the gravest finding"
    return svg and f"<details><summary>{summary}</summary>{svg[svg.index('<svg') :]}</details>"


def _drawn(what: Graph | Recording) -> str:
    """Return a picture as SVG; empty if there is nothing to draw."""
    # Drawing is loaded only when something is drawn.
    from gradscope.render.pictures.draw import draw_graphs, draw_recording

    try:
        drawn = draw_graphs([what], None) if isinstance(what, Graph) else draw_recording(what)
        return drawn.content.decode()
    except GradscopeError:
        return ""
