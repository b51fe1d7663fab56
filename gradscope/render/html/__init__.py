"""The interactive report: one self-contained HTML file that needs no network.

It is made of a template, styles, scripts and data, under a strict policy.
"""

from __future__ import annotations

import base64
import hashlib
import html
import zlib
from importlib.resources import files
from string import Template
from typing import Any

from gradscope.model import NodeState, Recording
from gradscope.render import theme
from gradscope.render.html.payload import graph_data, page_data
from gradscope.render.machine import dumped
from gradscope.units import escaped

LAST = ("canvas.js", "report.js")
"""Scripts that use others at once: a class of another file, and all that makes the page."""

ASSETS = files("gradscope.render.html")
GRAPH_BUDGET = 1_500_000
"""Bytes that all graphs together may take; what does not fit is left out with a note."""
LEAST = 8
"""Bytes that a node takes at least."""


def to_html(recording: Recording) -> str:
    """Return the whole page. The same recording gives the same text."""
    graphs: list[str] = []
    embedded: list[int] = []
    room = GRAPH_BUDGET
    for number in _by_interest(recording):
        graph = recording.graphs[number]
        if LEAST * len(graph.nodes) > room:
            continue
        block = _data_block(f"graph-{number}", graph_data(graph, recording.sources))
        if len(block) <= room:
            room -= len(block)
            graphs.append(block)
            embedded.append(number)
    data = _data_block("report-data", page_data(recording, embedded))
    style = "\n".join((_state_colours(), _asset("report.css"), _asset("flames.css")))
    names = [file.name for file in ASSETS.iterdir() if file.name.endswith(".js")]
    names = [*sorted(set(names).difference(LAST)), *LAST]
    script = '"use strict";\n(() => {\n' + "\n".join(map(_asset, names)) + "})();\n"
    parts = {
        "policy": f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        "title": _text(f"{recording.header.script or 'gradscope'} · gradscope"),
        "style": style,
        "script": script,
        "data": "\n".join((_data_block("theme-data", _looks()), data, *graphs)),
    }
    # What is put in is not read again: a program's text that looks like a place holder stays text.
    return Template(_asset("report.html")).substitute(parts)


def _by_interest(recording: Recording) -> list[int]:
    """Return the numbers of the graphs, those first that a finding is about."""
    about = [finding.graph for finding in recording.findings]
    numbers = [number for number in about if number is not None and number in recording.graphs]
    return list(dict.fromkeys(numbers + list(recording.graphs)))


def _data_block(name: str, value: Any) -> str:
    """Return a script element that holds ``value``, deflated: nothing in it can end the element."""
    packed = zlib.compress(dumped(value, separators=(",", ":")).encode("ascii"), 9)
    text = base64.b64encode(packed).decode("ascii")
    return f'<script type="text/plain" id="{name}">{text}</script>'


def _all_looks() -> dict[str, theme.Style]:
    tables = (theme.SAVED_STATES, theme.NODE_STATES, theme.SEVERITIES, theme.CELL_STATES)
    return {key.value: look for table in tables for key, look in table.items()}


def _looks() -> dict[str, Any]:
    """Return words, symbols and line styles of the states; the style sheet has their colours."""
    told, styles = ("word", "symbol", "dash", "meaning"), _all_looks().items()
    looks = {key: {name: getattr(look, name) for name in told} for key, look in styles}
    return {"looks": looks, "nodeStates": [state.value for state in NodeState]}


def _state_colours() -> str:
    """Return the colours as custom properties for both page backgrounds; paper is always light."""

    def properties(name: str, page: theme.Page) -> str:
        values: dict[str, str] = page._asdict()
        for key, look in _all_looks().items():
            tone: theme.Tone = getattr(look, name)
            values |= {f"{key}-ink": tone.ink, f"{key}-fill": tone.fill}
        return "".join(f"--{name}:{value};" for name, value in values.items())

    light, dark = properties("light", theme.LIGHT), properties("dark", theme.DARK)
    return f":root{{{light}}}\n@media screen{{:root[data-theme=dark]{{{dark}}}}}\n"


def _asset(name: str) -> str:
    return (ASSETS / name).read_text("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _text(text: str) -> str:
    """Return HTML text in plain ASCII, whatever is in it."""
    return html.escape(escaped(text)).encode("ascii", "xmlcharrefreplace").decode("ascii")
