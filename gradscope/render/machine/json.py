"""What other programs read: the JSON report, SARIF, and GitHub's workflow commands."""

from __future__ import annotations

import json
from typing import Any

from gradscope.model import (
    SCHEMA,
    BackwardCall,
    Finding,
    Fix,
    Header,
    Outcome,
    Recording,
    Root,
    Severity,
    Site,
    Summary,
)
from gradscope.render.machine.sarif import to_sarif
from gradscope.render.text.terminal import short_path

__all__ = ["to_github", "to_json", "to_sarif"]

_GITHUB_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "notice"}


def to_json(recording: Recording) -> str:
    """The whole report as one JSON object, in ASCII, so that no encoding can spoil it."""
    header = recording.header
    report = {
        "schema": SCHEMA,
        "gradscope": header.gradscope,
        "torch": header.torch,
        "script": _script(header, recording.outcome),
        "summary": _summary(recording.summary),
        "findings": [_finding(finding) for finding in recording.findings],
        "calls": [_call(call) for call in recording.calls],
    }
    return json.dumps(report, indent=2) + "\n"


def to_github(recording: Recording) -> str:
    """One workflow command for each finding, which GitHub shows at the line it is about."""
    return "".join(f"{_github_command(finding)}\n" for finding in recording.findings)


def _script(header: Header, outcome: Outcome) -> dict[str, Any]:
    return {
        "path": header.script,
        "argv": list(header.argv),
        "exit_status": outcome.exit_status,
        "exception": outcome.exception,
        "finished": outcome.finished,
    }


def _summary(summary: Summary) -> dict[str, Any]:
    return {
        "backward_calls": summary.backward_calls,
        "nodes": summary.nodes,
        "nodes_destroyed": summary.nodes_destroyed,
        "saved_tensors": summary.saved_tensors,
        "saved_bytes": summary.saved_bytes,
        "freed_tensors": summary.freed_tensors,
        "freed_bytes": summary.freed_bytes,
        "returned_bytes": summary.returned_bytes,
        "dropped_tensors": summary.dropped_tensors,
        "dropped_bytes": summary.dropped_bytes,
        "live_bytes": summary.live_bytes,
        "peak_saved_bytes": summary.peak_saved_bytes,
        "notes": list(summary.notes),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity.value,
        "certainty": finding.certainty.value,
        "message": finding.message,
        "label": finding.label,
        "location": _location(finding.site),
        "related": [
            {"role": r.role, "location": _location(r.site), "message": r.message}
            for r in finding.related
        ],
        "nodes": list(finding.nodes),
        "saved": list(finding.saved),
        "bytes": finding.bytes,
        "backward_call": finding.backward_call,
        "count": finding.count,
        "caught": finding.caught,
        "missed": finding.missed,
        "fix": _fix(finding.fix),
    }


def _location(site: Site | None) -> dict[str, Any] | None:
    if site is None:
        return None
    return {
        "file": site.file,
        "line": site.line,
        "column": site.column,
        "end_line": site.end_line or site.line,
        "end_column": site.end_column or site.column,
        "function": site.function,
    }


def _fix(fix: Fix | None) -> dict[str, Any] | None:
    if fix is None:
        return None
    edits = [
        {"file": edit.file, "line": edit.line, "replacement": edit.replacement}
        for edit in fix.edits
    ]
    return {"kind": fix.kind, "message": fix.message, "edits": edits}


def _call(call: BackwardCall) -> dict[str, Any]:
    return {
        "number": call.number,
        "last_number": max(call.last_number, call.number),
        "count": call.count,
        "kind": call.kind,
        "location": _location(call.site),
        "roots": [_root(root) for root in call.roots],
        "retain_graph": call.retain_graph,
        "create_graph": call.create_graph,
        "inputs": None if call.inputs is None else list(call.inputs),
        "graph": call.graph,
        "nodes": call.nodes,
        "nodes_run": call.nodes_run,
        "nodes_built": call.nodes_built,
        "nodes_destroyed": call.nodes_destroyed,
        "saved_tensors": call.saved_tensors,
        "saved_bytes": call.saved_bytes,
        "freed_tensors": call.freed_tensors,
        "freed_bytes": call.freed_bytes,
        "returned_bytes": call.returned_bytes,
        "retained_bytes": call.retained_bytes,
        "live_bytes": call.live_bytes,
        "peak_bytes": call.peak_bytes,
        "oldest_generation": call.oldest_generation,
        "parent": call.parent,
        "thread": call.thread,
        "started": call.started,
        "ended": call.ended,
        "exception": call.exception,
    }


def _root(root: Root) -> dict[str, Any]:
    return {"name": root.name, "label": root.label}


def _github_command(finding: Finding) -> str:
    properties = []
    if finding.site is not None:
        properties += [("file", short_path(finding.site.file)), ("line", str(finding.site.line))]
        properties += [("col", str(finding.site.column))]
        if finding.site.end_line > finding.site.line:
            properties += [("endLine", str(finding.site.end_line))]
    properties.append(("title", f"{finding.code} {finding.name}"))
    fields = ",".join(f"{key}={_escaped(value, property_=True)}" for key, value in properties)
    return f"::{_GITHUB_LEVELS[finding.severity]} {fields}::{_escaped(_whole_message(finding))}"


def _whole_message(finding: Finding) -> str:
    """All that a finding says, a line each."""
    lines = [f"{finding.message}: {finding.label}" if finding.label else finding.message]
    for related in finding.related:
        where = f" ({short_path(related.site.file)}:{related.site.line})" if related.site else ""
        lines.append(f"note: {related.message}{where}")
    if finding.fix is not None:
        lines.append(f"help: {finding.fix.message}")
    return "\n".join(lines)


def _escaped(text: str, *, property_: bool = False) -> str:
    """Text as a workflow command takes it; in a property, colon and comma have a meaning too."""
    clean = text.encode(
        "utf-8", "backslashreplace"
    ).decode()  # a file name may hold what UTF-8 has no code for
    coded = clean.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return coded.replace(":", "%3A").replace(",", "%2C") if property_ else coded
