"""The JSON report: the model's own fields, so that a field added there is in the report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradscope.model import SCHEMA, Finding, Process, Recording, Root, Site
from gradscope.render.memory import Kind, by, largest, name_of
from gradscope.render.plain import dumped, plain

ELSEWHERE = {Finding: {"graph", "graph_nodes"}, Root: {"node"}, Process: {"timeline"}}
"""Graphs and memory curves of a recording, and what points into them, are no part of the report."""


def to_json(recording: Recording) -> str:
    """Return the whole report as one JSON object, in ASCII, so that no encoding can spoil it."""
    header, outcome = recording.header, recording.outcome
    report = {
        "schema": SCHEMA,
        "gradscope": header.gradscope,
        "torch": header.torch,
        "script": {
            "path": header.script,
            "argv": header.argv,
            "exit_status": outcome.exit_status,
            "exception": outcome.exception,
            "finished": outcome.finished,
            "running": outcome.running,
        },
        "summary": plain(recording.summary, ELSEWHERE, _complete),
        "findings": plain(recording.findings, ELSEWHERE, _complete),
        "calls": plain(recording.calls, ELSEWHERE, _complete),
        "processes": plain(recording.processes, ELSEWHERE, _complete),
        "memory": _memory(recording),
    }
    return dumped(report, indent=2) + "\n"


def memory_to_json(recording: Recording) -> str:
    """Return what the largest graph saved as one JSON object; ``null`` if no graph is there."""
    return dumped(_memory(recording), indent=2) + "\n"


def _memory(recording: Recording) -> dict[str, Any] | None:
    graph = largest(recording)
    if graph is None:
        return None

    def rows(kind: Kind) -> list[dict[str, Any]]:
        sums = by(lambda one: name_of(kind, one, lambda site: site.full_place), graph.saved)
        return [{"name": name, **sizes(size.nbytes, size.alone)} for name, size in sums.items()]

    def sizes(saved: int, alone: int | None) -> dict[str, int | None]:
        return {"saved_bytes": saved, "alone_bytes": None if graph.alone is None else alone}

    return {
        "backward_call": graph.call.number,
        "process": graph.call.process,
        **sizes(graph.nbytes, graph.alone),
        **{f"by_{kind}": rows(kind) for kind in Kind},
        "by_device": {
            name: size.nbytes for name, size in by(lambda one: one.device, graph.saved).items()
        },
    }


def _complete(value: Any) -> Any:
    """Return a site with its end put in, and everything else as it is."""
    match value:
        case Site(line=line, column=column, end_line=end_line, end_column=end_column):
            return replace(value, end_line=end_line or line, end_column=end_column or column)
    return value
