"""The interactive report: one self-contained HTML file that needs no network.

It is made of a template, styles, scripts and data, under a strict policy. The data is the recording
as plain JSON values, with source lines; of the timeline it has the bars: when each graph was built,
run and freed.
"""

from __future__ import annotations

import base64
import hashlib
import html
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import lru_cache
from importlib.resources import files
from string import Template
from typing import Any

from gradscope.formatting import counted, escaped, line_at, lines_of
from gradscope.model import (
    Edge,
    Edit,
    Graph,
    Header,
    Node,
    NodeState,
    Process,
    Recording,
    SavedTensor,
    Severity,
    Site,
    Training,
)
from gradscope.render import theme
from gradscope.render.html.placing import place
from gradscope.render.machine import dumped, keys, plain
from gradscope.render.memory import Largest, Storage, by, growing, largest
from gradscope.render.text.report import tally
from gradscope.render.text.tables import Words
from gradscope.render.wording import PROOFS, SAFETIES, failures, nothing_found

LAST = ("canvas.js", "report.js")
"""Scripts that use others at once: a class of another file, and all that makes the page."""

ASSETS = files("gradscope.render.html")
# Bytes of all graphs together, so that a page opens at once and can be mailed; what does not fit
# is left out with a note.
GRAPH_BUDGET = 1_500_000
LEAST = 8  # bytes of a node at least: a graph that does not fit even so is not laid out


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
    """Return words, symbols and line styles of the states, and the words for fixes; the style sheet
    has the colours.
    """
    told, styles = ("word", "symbol", "dash", "meaning"), _all_looks().items()
    looks = {key: {name: getattr(look, name) for name in told} for key, look in styles}
    return {"looks": looks, "nodeStates": list(NodeState), "safeties": SAFETIES, "proofs": PROOFS}


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


_WHOLE = ("header", "outcome", "summary", "findings")
"""The parts of a recording that are on the page as they are."""

MAX_LARGEST = 25  # saved tensors of the largest graph that are listed, those of most bytes
MAX_LINE = 240  # characters of a source line: generated code has lines of thousands
CONTEXT_LINES = 2  # above and below a line that is shown


_LEFT_OUT = {
    Header: {"cwd", "code"},
    Process: {"timeline", "clock", "pid", "script"},
    Training: {"table"},
    Node: {"index", "saved", "module_class", "unneeded"},
    SavedTensor: {"alone", "within"},
}

_split = lru_cache(maxsize=64)(lines_of)  # for all graphs of a page once


class Sites:
    """Numbers the places of the program, with the lines around them as they were when it ran."""

    def __init__(self, sources: dict[str, str], around: int) -> None:
        self._sources = sources
        self._around = around
        self._numbers: dict[Site, int] = {}

    def number(self, site: Site | None) -> int:
        """Return the number of a site, from 0 in the order of their first sight; -1 for none."""
        return -1 if site is None else self._numbers.setdefault(site, len(self._numbers))

    def line(self, file: str, number: int) -> str:
        """Return line ``number`` (1-based) of ``file``; empty where it is not known."""
        return line_at(_split(self._sources.get(file, "")), number)[:MAX_LINE]

    def plain(self, value: Any) -> Any:
        """Return a value of the model as the page reads it: its sites as numbers."""
        return plain(value, _LEFT_OUT, self._shown)

    def _shown(self, value: Any) -> Any:
        match value:
            case Site():
                return self.number(value)
            case Edit(file=file, lines=lines):
                before = "\n".join(self.line(file, number) for number in lines)
                return {**asdict(value), "before": before}
        return value

    def all(self) -> list[Any]:
        """Return the sites in the order of their numbers, each with the lines around it."""
        return [{**asdict(site), "lines": self._near(site)} for site in self._numbers]

    def _near(self, site: Site) -> list[tuple[int, str]]:
        first = max(1, site.line - self._around)
        last = max(site.line, site.end_line) + self._around if self._around else site.line
        near = [(number, self.line(site.file, number)) for number in range(first, last + 1)]
        lines = [row for row in near if row[1] or row[0] == site.line]
        return lines if any(text for _, text in lines) else []


def page_data(recording: Recording, embedded: Iterable[int]) -> dict[str, Any]:
    """Return everything but the graphs; ``embedded`` names those that the page brings along."""
    sites = Sites(recording.sources, CONTEXT_LINES)
    graph = largest(recording)
    return {
        **{name: sites.plain(getattr(recording, name)) for name in _WHOLE},
        "verdict": verdict(recording),
        "failures": [
            {"exception": exception, "where": where, **sites.plain(failure)}
            for failure, where, exception in failures(recording)
        ],
        "trains": _trains(recording, sites),
        "tracks": [_track(*part, sites) for part in by_process(recording)],
        "graphs": {str(number): len(graph.nodes) for number, graph in recording.graphs.items()},
        "embedded": sorted(embedded),
        "largest": _heaviest(graph, sites) if graph else [],
        "flames": flames(graph, sites) if graph and graph.saved else None,
        "processes": [
            {**sites.plain(one), "unfinished": one.outcome.unfinished}
            for one in recording.processes
        ],
        "growing": growing(recording),
        "sites": sites.all(),
    }


def _trains(recording: Recording, sites: Sites) -> dict[str, Any] | None:
    """Return who trains what, in words."""
    table = recording.summary.training.table
    if table is None:
        return None
    words = Words(recording, table)
    rows = [
        {
            **sites.plain(row),
            "sizes": words.sizes(row),
            "fine": row.is_fine,
            "cells": [{**sites.plain(cell), "words": words.of(cell, row)} for cell in row.cells],
        }
        for row in table.rows
    ]
    about = {name: getattr(words, name) for name in ("title", "losses", "command", "states")}
    calls = [sites.number(loss.site) for loss in table.losses]
    return {**about, "rows": rows, "calls": calls}


def _track(name: str, own: Recording, sites: Sites) -> dict[str, Any]:
    """Return the timeline of one process."""
    return {
        "name": name,
        "backward_calls": own.summary.backward_calls,
        "peak": own.summary.peak_saved_bytes,
        "end": run_end(own),
        "calls": sites.plain(own.calls),
        "bars": sites.plain(lifetimes(own)),
        "samples": [astuple(sample) for sample in own.timeline],
    }


def verdict(recording: Recording) -> dict[str, str]:
    """Return the one thing to know about the run: how bad it is, and a sentence."""
    calls, outcome = recording.summary.backward_calls, recording.outcome
    standing = {finding.severity for finding in recording.findings if finding.counts}
    nothing, rest, is_well = nothing_found(recording, counted(calls, "backward call"))
    level = "clean" if calls and is_well else "unfinished"
    level = next((severity.value for severity in Severity if severity in standing), level)
    raised = outcome.exception and f"The program ended with {outcome.exception}"
    words = ", ".join(tally(recording.findings))
    found = f"in {counted(calls, 'backward call')}"
    if failures(recording):  # each has a card of its own
        level, raised = Severity.ERROR.value, None
        rest = f"{words} {found}" if words else rest[2:].capitalize()
    elif words:
        nothing, rest = words, found
    elif not calls:
        nothing, rest = "no backward call was seen", ""
    ended = raised if outcome.finished else outcome.unfinished[:1].upper() + outcome.unfinished[1:]
    about = rest.lstrip("; ")
    detail = (
        f"{about[:1].upper()}{about[1:]}. {ended}"
        if ended and not words and about
        else ended or about
    )
    return {"level": level, "headline": nothing[:1].upper() + nothing[1:], "detail": detail}


def graph_data(graph: Graph, sources: dict[str, str]) -> dict[str, Any]:
    """Return one graph by columns."""
    sites = Sites(sources, 0)
    return {
        "not_looked_at": graph.not_looked_at,
        "roots": sites.plain(graph.roots),
        "placing": sites.plain(place(graph)),
        "node": _columns(Node, graph.nodes, sites),
        "saved_count": [len(node.saved) for node in graph.nodes],
        "saved": _columns(SavedTensor, [one for node in graph.nodes for one in node.saved], sites),
        "edge": _columns(Edge, graph.edges, sites),
        "sites": sites.all(),
    }


def _columns(kind: type, things: Sequence[Any], sites: Sites) -> dict[str, list[Any]]:
    """Return each field's values, which pack better than objects: equal ones follow each other."""
    return {
        key: [sites.plain(getattr(one, name)) for one in things]
        for key, name in keys(kind, _LEFT_OUT).items()
    }


def flames(graph: Largest, sites: Sites) -> dict[str, Any]:
    """Return what the largest graph saved, of which the page makes trees and tables."""

    def key(one: Storage) -> tuple[str, str, tuple[int, ...], str]:
        node, lines = one.node, [one.site, *one.tensor.within]
        return node.module or "", node.module_class or "", (*map(sites.number, lines),), node.name

    sums = by(key, graph.saved)
    call = graph.call
    return {
        "call": call.number,
        "last": call.last_number,
        "process": call.process,
        "nbytes": graph.nbytes,
        "alone": graph.alone,
        "saved": [(*names, *size) for names, size in sums.items()],
    }


def _heaviest(graph: Largest, sites: Sites) -> list[Any]:
    """Return the saved tensors of the largest graph that weigh most."""
    heaviest = sorted(graph.saved, key=lambda one: -one.tensor.nbytes)
    return [
        {
            "graph": graph.call.graph,
            "node": one.node.index,
            "name": one.node.name,
            "label": one.tensor.label,
            "nbytes": one.tensor.nbytes,
            "state": one.tensor.state,
            "location": sites.number(one.site),
        }
        for one in heaviest[:MAX_LARGEST]
    ]


MAX_LANES = 12  # rows of bars for graphs alive at the same time; further bars overlap


@dataclass(frozen=True, slots=True)
class Bar:
    """The life of one call's graph, in seconds since the run began.

    The graph is built from ``built`` to ``started`` and run until ``ended``; its saved tensors are
    held until ``kept`` (None: the call freed them). torch does not show that of one graph: it is
    the first moment at which all graphs together held less.
    """

    lane: int
    built: float
    started: float
    ended: float
    kept: float | None


def by_process(recording: Recording) -> Iterator[tuple[str, Recording]]:
    """Yield the name of each process and what it did alone; that of a recording of one is empty."""
    if not recording.processes:
        yield "", recording
    for process in recording.processes:
        own = {name: getattr(process, name) for name in ("outcome", "summary", "timeline")}
        header = replace(recording.header, clock=process.clock)
        calls = tuple(call for call in recording.calls if call.process == process.name)
        yield process.name, replace(recording, header=header, calls=calls, **own)


def run_end(recording: Recording) -> float:
    """Return the last moment that the recording knows of, in seconds since the run began."""
    moments = [0.0, *(call.ended for call in recording.calls)]
    moments += [sample.time for sample in recording.timeline]
    if recording.outcome.ended:
        began = recording.header.clock or recording.header.started
        moments.append(recording.outcome.ended - began)
    return max(moments)


def lifetimes(recording: Recording) -> tuple[Bar, ...]:
    """Return one bar for each row of calls, packed into as few lanes as keep them apart."""
    end = run_end(recording)
    ends = sorted(call.ended for call in recording.calls)
    lane_ends: list[float] = []
    lane_of: dict[int | None, int] = {}
    bars: list[Bar] = []
    for row, call in enumerate(recording.calls):
        ended, kept = call.ended, None
        if call.count > 1:
            ended = _folded_until(recording, row, end)
        elif call.retained_bytes:
            kept = _kept_until(recording, row, end)
        built, lane = call.started, lane_of.get(call.graph)
        if lane is None or call.graph is None:
            if call.count == 1 and call.parent is None:  # built since the call before ended
                before = bisect_right(ends, built)
                built = ends[before - 1] if before else 0.0
            lane = lane_of[call.graph] = _free_lane(lane_ends, built)
        lane_ends[lane] = max(lane_ends[lane], ended, kept or 0.0)
        bars.append(Bar(lane, built, call.started, ended, kept))
    return tuple(bars)


def _folded_until(recording: Recording, row: int, end: float) -> float:
    """Return when the first call started that came after the last of a folded row's calls."""
    last = recording.calls[row].last_number
    starts = (later.started for later in recording.calls[row + 1 :] if later.number > last)
    return max(recording.calls[row].ended, min(starts, default=end))


def _free_lane(lane_ends: list[float], start: float) -> int:
    """Return the first lane that is free at ``start``, or free soonest if there are too many."""
    if len(lane_ends) < MAX_LANES and all(end > start for end in lane_ends):
        lane_ends.append(start)
    free = (lane for lane, end in enumerate(lane_ends) if end <= start)
    return next(free, lane_ends.index(min(lane_ends)))


def _kept_until(recording: Recording, row: int, end: float) -> float:
    """Return when the saved tensors that a call retained are run again, or known to be gone."""
    call = recording.calls[row]
    later = recording.calls[row + 1 :] if call.graph is not None else ()
    again = (other.started for other in later if other.graph == call.graph)
    samples = recording.timeline
    after = samples[bisect_right(samples, call.ended, key=lambda sample: sample.time) :]
    less = (sample.time for sample in after if sample.live_bytes < call.retained_bytes)
    return min(end, next(again, end), next(less, end))
