"""Text for machines: the JSON report, SARIF for code hosts and editors, GitHub's commands, and a
line for each finding, as compilers write theirs.

The JSON report has the model's own fields, so that a field added there is in the report. SARIF
2.1.0 is what code hosts and editors exchange the results of analyses in. Of GitHub's workflow
commands there is one for each finding, which GitHub shows at the line it is about.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Set
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

from gradscope.formatting import current_dir, escaped, gathered, short_path
from gradscope.model import SCHEMA, Edit, Finding, Fix, Process, Recording, Root, Severity, Site
from gradscope.render.memory import GroupBy, by, largest, name_of
from gradscope.render.wording import (
    arose,
    failures,
    fix_command,
    opened_as,
    proof_of,
    reasons,
    safety_of,
    whole_message,
)
from gradscope.rules import ALL_RULES
from gradscope.rules.base import Rule
from gradscope.rules.settings import Format

LeftOut = Mapping[type, Set[str]]
"""The fields that a view does not show."""

_NAMES = {"site": "location"}
_ELSEWHERE: LeftOut = {Finding: {"graph", "graph_nodes"}, Root: {"node"}, Process: {"timeline"}}
"""Graphs and memory curves of a recording, and what points into them, are left out."""

_OUTCOME = ("exit_status", "exception", "finished", "running", "failure")
_WHOLE = ("summary", "findings", "calls", "processes")
"""The parts of a recording that are in the report as they are."""


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
            **{name: plain(getattr(outcome, name)) for name in _OUTCOME},
        },
        **{name: plain(getattr(recording, name)) for name in _WHOLE},
        "memory": _memory(recording),
    }
    return dumped(report, indent=2) + "\n"


def _memory(recording: Recording) -> dict[str, Any] | None:
    graph = largest(recording)
    if graph is None:
        return None

    def rows(kind: GroupBy) -> list[dict[str, Any]]:
        sums = by(lambda one: name_of(kind, one, lambda site: site.full_place), graph.saved)
        return [{"name": name, **sizes(size.nbytes, size.alone)} for name, size in sums.items()]

    def sizes(saved: int, alone: int | None) -> dict[str, int | None]:
        return {"saved_bytes": saved, "alone_bytes": None if graph.alone is None else alone}

    devices = by(lambda one: one.tensor.device, graph.saved)
    return {
        "backward_call": graph.call.number,
        "process": graph.call.process,
        **sizes(graph.nbytes, graph.alone),
        **{f"by_{kind}": rows(kind) for kind in GroupBy},
        "by_device": {name: size.nbytes for name, size in devices.items()},
    }


def _complete(value: Any) -> Any:
    """Return a site with its end put in, and everything else as it is."""
    match value:
        case Site(line=line, column=column, end_line=end_line, end_column=end_column):
            return replace(value, end_line=end_line or line, end_column=end_column or column)
    return value


def plain(
    value: Any, left_out: LeftOut = _ELSEWHERE, shown: Callable[[Any], Any] = _complete
) -> Any:
    """Return what ``json`` writes: a dataclass as an object by its fields.

    ``shown`` is asked first for what stands in the place of a value.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, tuple | list):
        return [plain(part, left_out, shown) for part in value]
    value = shown(value)
    if not is_dataclass(value):
        return value
    names = keys(type(value), left_out).items()
    return {key: plain(getattr(value, name), left_out, shown) for key, name in names}


def keys(kind: Any, left_out: LeftOut = _ELSEWHERE) -> dict[str, str]:
    """Return the keys of a dataclass in JSON, each with the name of its field."""
    names = (field.name for field in fields(kind) if field.name not in left_out.get(kind, ()))
    return {_NAMES.get(name, name): name for name in names}


def dumped(value: Any, **options: Any) -> str:
    """Return a value as JSON that any encoding has, and that no terminal obeys."""
    return json.dumps(value, **options).replace("\x7f", "\\u007f")


SCHEMA_URI = "https://json.schemastore.org/sarif-2.1.0.json"
ROOT = "%SRCROOT%"
"""The base of relative addresses; code hosts take it for the repository."""

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "note"}
_PRECISIONS = {"certain": "very-high", "predicted": "high", "observed": "high"}


def to_sarif(recording: Recording) -> str:
    """Return the findings of a run as a SARIF log."""
    rules, here = list(map(_rule, ALL_RULES)), current_dir()
    folder = Path(here).as_uri() + "/" if here else "file:///"
    driver = {"name": "gradscope", "version": recording.header.gradscope, "rules": rules}
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {
            ROOT: {"uri": folder, "description": {"text": "where the script was started"}}
        },
        "invocations": [_invocation(recording)],
        "results": [_result(finding) for finding in recording.findings],
    }
    return dumped({"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "help": {"text": rule.explain, "markdown": rule.explain},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        "properties": {"precision": _PRECISIONS[rule.certainty], "tags": ["pytorch", "autograd"]},
    }


def _invocation(recording: Recording) -> dict[str, Any]:
    header, outcome = recording.header, recording.outcome
    invocation: dict[str, Any] = {
        "arguments": [header.script, *header.argv],
        "executionSuccessful": outcome.finished,
        "toolExecutionNotifications": [
            {"level": "note", "message": {"text": note}} for note in recording.summary.notes
        ],
    }
    if outcome.exit_status is not None:
        invocation["exitCode"] = outcome.exit_status
    return invocation


def _result(finding: Finding) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "level": "note" if finding.withdrawn else _LEVELS[finding.severity],
        "message": {"text": whole_message(finding)},
        "locations": [] if finding.site is None else [_location(finding.site)],
        "relatedLocations": [
            {"id": number, **_location(related.site), "message": {"text": related.message}}
            for number, related in enumerate(finding.related)
            if related.site is not None
        ],
        "occurrenceCount": finding.count,
        "partialFingerprints": {"cause/v1": _fingerprint(finding)},
        "properties": {
            "certainty": finding.certainty.value,
            "backwardCall": finding.backward_call,
            "nodes": list(finding.nodes),
            "saved": list(finding.saved),
            "bytes": finding.bytes,
            "missed": finding.missed,
            "cameTrue": finding.came_true,
            "withdrawn": finding.withdrawn,
            "parameters": list(finding.parameters),
        },
    }
    if finding.suppression is not None:
        why = f"suppressed {finding.suppression.reason}"
        result["suppressions"] = [{"kind": finding.suppression.kind, "justification": why}]
    fixes = [_fix(fix) for fix in finding.fixes if fix.edits]
    return result | {"fixes": fixes} if fixes else result


def _fix(fix: Fix) -> dict[str, Any]:
    changes = []
    for file, own in gathered(fix.edits, lambda edit: edit.file).items():
        replacements = list(map(_replacement, own))
        changes.append({"artifactLocation": _artifact(file), "replacements": replacements})
    said = [f"{word}: {text}" for word, text in reasons(fix)]
    safety = [f"applicability: {fix.applicability.value}"] if safety_of(fix) else []
    description = "\n".join([fix.message, *said, *safety, proof_of(fix)])
    return {"description": {"text": description}, "artifactChanges": changes}


def _fingerprint(finding: Finding) -> str:
    """Return a text that is equal for one cause in two runs, wherever the files are."""
    step = finding.step
    sites = [finding.site, *(r.site for r in finding.related)] if step is None else [step]
    named = [f"{short_path(s.file)}:{s.function}:{s.line}" for s in sites if s is not None]
    named += () if step is None else finding.parameters
    text = "\n".join([finding.code, *named])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _location(site: Site) -> dict[str, Any]:
    """Return a location; code in no file (``<string>``, ``<stdin>``) has a logical one only."""
    function = {"name": site.function, "kind": "function"}
    if re.fullmatch(r"<.*>", site.file):
        name = f"{site.file}:{site.line}:{site.function}"
        return {"logicalLocations": [{**function, "fullyQualifiedName": name}]}
    region = {"startLine": site.line, "startColumn": site.column}
    if site.end_line and site.end_column:
        region |= {"endLine": site.end_line, "endColumn": site.end_column}
    place = {"artifactLocation": _artifact(site.file), "region": region}
    return {"physicalLocation": place, "logicalLocations": [function]}


def _artifact(file: str) -> dict[str, Any]:
    """Return the address of a file, relative if it is below the working directory."""
    short = short_path(file)
    try:
        os.fsencode(short)
    except UnicodeEncodeError:  # no file can have it: the recording is damaged
        short = short.encode("utf-8", "replace").decode()
    if os.path.isabs(short):
        return {"uri": Path(short).as_uri()}
    name = os.fsencode(short.replace(os.sep, "/"))
    return {"uri": quote_from_bytes(name), "uriBaseId": ROOT}


def _replacement(edit: Edit) -> dict[str, Any]:
    """Return a change of whole lines with their ends; what replaces it brings its own."""
    behind = edit.end_line + 1
    deleted = {"startLine": edit.line, "startColumn": 1, "endLine": behind, "endColumn": 1}
    inserted = edit.replacement and edit.replacement + "\n"
    return {"deletedRegion": deleted, "insertedContent": {"text": inserted}}


_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "notice"}


def to_github(recording: Recording) -> str:
    """Return one workflow command a line."""
    standing = (finding for finding in recording.findings if not finding.suppression)
    return "".join(f"{_command(finding)}\n" for finding in standing)


def _command(finding: Finding) -> str:
    properties = []
    if finding.site is not None:
        properties += [("file", short_path(finding.site.file)), ("line", str(finding.site.line))]
        properties += [("col", str(finding.site.column))]
        if finding.site.end_line > finding.site.line:
            properties += [("endLine", str(finding.site.end_line))]
    properties.append(("title", f"{finding.code} {finding.name}"))
    fields = ",".join(f"{key}={_escaped(value, property_=True)}" for key, value in properties)
    level = "notice" if finding.withdrawn else _COMMANDS[finding.severity]
    return f"::{level} {fields}::{_escaped(whole_message(finding))}"


def _escaped(text: str, *, property_: bool = False) -> str:
    """Return text as a workflow command takes it; a property escapes colons and commas too."""
    coded = escaped(text, keep="\n").replace("%", "%25").replace("\n", "%0A")
    return coded.replace(":", "%3A").replace(",", "%2C") if property_ else coded


def to_brief(recording: Recording) -> str:
    """Return a line for each failure and finding, which editors read as they read a compiler's."""
    fixing = f"; fix: {fix_command(recording.header)}"
    lines = [
        _line(failure.site, f"error: {exception.rstrip('.')}{where}: {arose(failure)}")
        for failure, where, exception in failures(recording)
    ]
    for each in recording.findings:
        if each.counts:
            said = f"{_LEVELS[each.severity]}: {each.code}: {each.message}"
            lines.append(_line(each.site, said + (fixing if each.is_fixable else "")))
    return "".join(lines)


def _line(site: Site | None, said: str) -> str:
    place = "" if site is None else f"{opened_as(site, f':{site.column}')}: "
    return f"{escaped(place + said)}\n"


WRITERS: Mapping[Format, Callable[[Recording], str]] = {
    Format.JSON: to_json,
    Format.SARIF: to_sarif,
    Format.GITHUB: to_github,
    Format.BRIEF: to_brief,
}
"""Each returns a recording in its format; ``text`` is for people."""
