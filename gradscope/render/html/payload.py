"""Turns a recording into the data that the page draws: plain JSON values, with source lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import astuple, fields, replace
from typing import Any

from gradscope.model import (
    BackwardCall,
    Edit,
    Fix,
    Graph,
    Header,
    Process,
    Recording,
    Related,
    Sample,
    Severity,
    Site,
    Suppression,
)
from gradscope.render.html.placing import place
from gradscope.render.lifetimes import by_process, lifetimes, run_end
from gradscope.render.memory import Branch, Kind, Largest, by, largest, name_of, tree
from gradscope.units import counted

MAX_NODES = 25_000
MAX_SAMPLES = 1_000
MAX_LINE = 240
CONTEXT_LINES = 2

Json = Any
"""What the json module takes; Python's types cannot express it."""

_NAMES = {"site": "at", "backward_call": "call"}
_LEFT_OUT = {Header: {"schema", "cwd", "code"}}
_NOUNS = {
    Severity.ERROR: ("error",),
    Severity.WARNING: ("warning",),
    Severity.ADVICE: ("piece of advice", "pieces of advice"),
}


class Table(dict[Any, int]):
    """Numbers equal values from 0, in the order of their first sight; None is -1."""

    def __missing__(self, value: Any) -> int:
        if value is None:
            return -1
        return self.setdefault(value, len(self))


class Sources:
    """The program's lines, as they were when it ran."""

    def __init__(self, sources: dict[str, str]) -> None:
        self._texts = sources
        self._lines: dict[str, list[str]] = {}

    def line(self, file: str, number: int) -> str:
        """Return line ``number`` (1-based) of ``file``; empty where it is not known."""
        if file not in self._lines:
            self._lines[file] = self._texts.get(file, "").splitlines()
        lines = self._lines[file]
        return lines[number - 1][:MAX_LINE] if 0 < number <= len(lines) else ""

    def site(self, site: Site) -> list[Json]:
        """Return the fields of a site, and its line of text."""
        return [*astuple(site), self.line(site.file, site.line)]

    def snippet(self, site: Site) -> Json:
        """Return a site with the lines around it."""
        first = max(1, site.line - CONTEXT_LINES)
        last = max(site.line, site.end_line) + CONTEXT_LINES
        near = [(number, self.line(site.file, number)) for number in range(first, last + 1)]
        lines = [row for row in near if row[1] or row[0] == site.line]
        return {"site": self.site(site), "lines": lines if any(text for _, text in lines) else []}


def page_data(recording: Recording, embedded: Iterable[int]) -> dict[str, Json]:
    """Return everything but the graphs; ``embedded`` names those that the page brings along."""
    sources = Sources(recording.sources)
    return {
        "header": _object(recording.header, sources),
        "outcome": _object(recording.outcome, sources),
        "verdict": verdict(recording),
        "summary": _object(recording.summary, sources),
        "findings": [_object(finding, sources) for finding in recording.findings],
        "callColumns": [_key(f.name) for f in fields(BackwardCall)],
        "tracks": [_track(*part, sources) for part in by_process(recording)],
        "graphs": {str(number): len(graph.nodes) for number, graph in recording.graphs.items()},
        "embedded": sorted(embedded),
        "largest": _largest(recording, sources),
        "flames": flames(recording, sources.line),
        "processes": [_process(process) for process in recording.processes],
    }


def _track(process: Process, own: Recording, sources: Sources) -> dict[str, Json]:
    """Return the timeline of one process."""
    # A row of one call has no last number.
    calls = [replace(c, last_number=max(c.number, c.last_number)) for c in own.calls]
    return {
        "name": process.name,
        "backwardCalls": own.summary.backward_calls,
        "peak": own.summary.peak_saved_bytes,
        "end": run_end(own),
        "calls": [_row(call, sources) for call in calls],
        "bars": [astuple(bar)[1:] for bar in lifetimes(own)],
        "samples": [astuple(sample) for sample in thinned(own.timeline)],
    }


def _process(process: Process) -> list[Json]:
    s = process.summary
    figures = [s.backward_calls, s.saved_bytes, s.peak_saved_bytes, process.findings]
    outcome = process.outcome
    ended = outcome.exception or ("" if outcome.finished else outcome.unfinished)
    return [process.name, *figures, ended, process.differs]


def _key(name: str) -> str:
    """Return a field's name as JavaScript spells it: ``graph_nodes`` is ``graphNodes``."""
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _object(value: Any, sources: Sources) -> dict[str, Json]:
    """Return one of the model's dataclasses as an object; its sites bring the lines around them."""
    left_out = _LEFT_OUT.get(type(value), ())
    names = [field.name for field in fields(value) if field.name not in left_out]
    return {_NAMES.get(n, _key(n)): _plain(getattr(value, n), sources) for n in names}


def _plain(value: Any, sources: Sources) -> Json:
    match value:
        case Site():
            return sources.snippet(value)
        case Edit():
            before = [sources.line(value.file, number) for number in value.lines]
            return [value.file, value.line, "\n".join(before), value.replacement, value.last]
        case tuple():
            return [_plain(part, sources) for part in value]
        case Related() | Fix() | Suppression():
            return _object(value, sources)
    return value


def _row(call: BackwardCall, sources: Sources) -> list[Json]:
    """Return the fields alone, in order; a site is one line, and roots are rows too."""
    shown: dict[str, Json] = {field.name: getattr(call, field.name) for field in fields(call)}
    shown["site"] = sources.site(call.site) if call.site else None
    shown["roots"] = [astuple(root) for root in call.roots]
    return list(shown.values())


def verdict(recording: Recording) -> dict[str, str]:
    """Return the one thing to know about the run: how bad it is, and a sentence."""
    summary, outcome = recording.summary, recording.outcome
    detail = ""
    if not outcome.finished:
        how = outcome.unfinished[:1].upper() + outcome.unfinished[1:]
        detail = f"{how}; this is what had been seen by then."
    elif outcome.exception:
        detail = f"The program ended with {outcome.exception}"
    standing = [finding for finding in recording.findings if finding.counts]
    counts = {s: sum(f.severity is s for f in standing) for s in Severity}
    found = [counted(number, *_NOUNS[severity]) for severity, number in counts.items() if number]
    level = next((severity.value for severity in Severity if counts[severity]), "unfinished")
    if found:
        headline = (" and " if len(found) < 3 else ", ").join(found)
    elif not outcome.finished:
        headline = "No finding so far"
    elif outcome.exception:
        headline = "No finding about graphs"
    elif not summary.backward_calls:
        headline = "No backward call was seen"
        detail = "The program ran to its end without backward() or autograd.grad()."
    else:
        level, headline = "clean", "No problem found"
        calls = counted(summary.backward_calls, "backward call")
        detail = f"{calls}, and nothing seen that will crash or leak."
    return {"level": level, "headline": headline, "detail": detail}


def thinned(samples: tuple[Sample, ...]) -> list[Sample]:
    """Return about ``MAX_SAMPLES`` points that keep every visible low and peak of the curve."""
    if len(samples) <= MAX_SAMPLES:
        return list(samples)
    step = -(-len(samples) * 2 // MAX_SAMPLES)
    kept: set[int] = {0, len(samples) - 1}
    for start in range(0, len(samples), step):
        part = range(start, min(start + step, len(samples)))
        heights = {i: samples[i].live_bytes + samples[i].held_bytes for i in part}
        kept |= {min(heights, key=heights.__getitem__), max(heights, key=heights.__getitem__)}
    return [samples[index] for index in sorted(kept)]


def _largest(recording: Recording, sources: Sources, limit: int = 25) -> list[Json]:
    """Return the saved activations that weigh most, each storage of a graph once."""
    found: dict[tuple[int, int], tuple[int, int, int, int]] = {}
    for number, graph in recording.graphs.items():
        for node in graph.nodes:
            for place_in_node, saved in enumerate(node.saved):
                if not saved.is_parameter and saved.nbytes:
                    found.setdefault(
                        (number, saved.storage), (-saved.nbytes, number, node.index, place_in_node)
                    )
    rows = []
    for _, number, index, place_in_node in sorted(found.values())[:limit]:
        node = recording.graphs[number].nodes[index]
        saved = node.saved[place_in_node]
        at = saved.site or node.site
        site = sources.site(at) if at else None
        what = [node.name, saved.label, saved.nbytes, saved.state, node.module, site]
        rows.append([number, index, *what])
    return rows


def graph_data(graph: Graph, sources: dict[str, str]) -> dict[str, Json]:
    """Return one graph by columns, cut to the first ``MAX_NODES`` nodes that its roots reach."""
    total = len(graph.nodes)
    if total > MAX_NODES:
        graph = Graph(
            graph.nodes[:MAX_NODES],
            tuple(e for e in graph.edges if e.source < MAX_NODES and e.target < MAX_NODES),
            tuple(root for root in graph.roots if root.node < MAX_NODES),
            graph.not_looked_at,
        )
    placing, lines = place(graph), Sources(sources)
    names, sites, kinds, modules, states = Table(), Table(), Table(), Table(), Table()
    nodes = graph.nodes
    saved = [tensor for node in nodes for tensor in node.saved]
    columns: dict[str, Json] = {
        "total": total,
        "notLookedAt": graph.not_looked_at,
        "roots": [astuple(root) for root in graph.roots],
        "groups": [astuple(group) for group in placing.groups],
        "parent": placing.parent,
        "rank": placing.rank,
        "order": placing.order,
        "beside": placing.beside,
        "name": [names[n.name] for n in nodes],
        "state": [states[n.state.value] for n in nodes],
        "seq": [n.sequence_nr for n in nodes],
        "site": [sites[n.site] for n in nodes],
        "module": [modules[n.module] for n in nodes],
        "variable": [n.variable for n in nodes],
        "variableLabel": [n.variable_label for n in nodes],
        "differentiates": [names[n.differentiates] for n in nodes],
        "freedBy": [n.freed_by for n in nodes],
        "builtAfter": [n.built_after for n in nodes],
        "willRun": [int(n.will_run) for n in nodes],
        "savedCount": [len(n.saved) for n in nodes],
        "savedName": [names[s.name] for s in saved],
        "savedKind": [kinds[f"{s.dtype}[{', '.join(map(str, s.shape))}]"] for s in saved],
        "savedDevice": [names[s.device] for s in saved],
        "savedBytes": [s.nbytes for s in saved],
        "savedStorage": [s.storage for s in saved],
        "savedVersion": [s.version for s in saved],
        "savedState": [states[s.state.value] for s in saved],
        "savedParameter": [int(s.is_parameter) for s in saved],
        "savedSource": [names[s.source] for s in saved],
        "savedSite": [sites[s.site] for s in saved],
        "edgeSource": [e.source for e in graph.edges],
        "edgeStep": [e.target - e.source for e in graph.edges],
        "edgeInput": [e.input_nr for e in graph.edges],
    }
    columns["sites"] = [lines.site(site) for site in sites]
    columns["names"], columns["kinds"] = list(names), list(kinds)
    columns["modules"], columns["states"] = list(modules), list(states)
    return columns


def flames(recording: Recording, line: Callable[[str, int], str]) -> dict[str, Json] | None:
    """Return trees and rows for each kind; ``line`` gives the text of a line of a file."""
    graph = largest(recording)
    if graph is None or not graph.saved:
        return None

    def branch(one: Branch) -> Json:
        step = one.step
        parts = [branch(part) for part in one.parts.values()]
        text = line(step.file, step.line).strip() if step.file else ""
        return [step.kind, step.name, step.place, text, one.nbytes, one.alone, parts]

    call = graph.call
    return {
        "call": call.number,
        "last": max(call.number, call.last_number),
        "process": call.process,
        "nbytes": graph.nbytes,
        "alone": graph.alone,
        "classes": {one.module: one.module_class for one in graph.saved if one.module},
        "trees": {kind: branch(tree(kind, graph.saved)) for kind in Kind},
        "rows": {kind: _rows(kind, graph) for kind in Kind},
    }


def _rows(kind: Kind, graph: Largest) -> list[Json]:
    sums = by(lambda one: name_of(kind, one), graph.saved)
    return [[name, *size] for name, size in sums.items()]
