"""How graphs, findings and reports show themselves in a notebook: coloured text and pictures."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from gradscope.errors import GradscopeError
from gradscope.model import Finding, Findings, Graph, Hazards, Recording
from gradscope.model.printed import rich_forms
from gradscope.render.text.report import print_finding, print_findings, print_report
from gradscope.render.text.terminal import console_in_memory

_WIDTH = 100

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


@rich_forms.register(Findings)
@rich_forms.register(Hazards)
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
    html = coloured(lambda console: print_report(recording, console))
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
