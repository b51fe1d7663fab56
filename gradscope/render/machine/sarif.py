"""SARIF 2.1.0, in which code hosts and editors exchange the results of analyses."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

from gradscope.model import Edit, Finding, Fix, Recording, Severity, Site
from gradscope.render.machine.json import dumped
from gradscope.render.wording import proof_of, reasons, safety_of, whole_message
from gradscope.rules import ALL_RULES
from gradscope.rules.base import Rule
from gradscope.units import gathered, short_path, working_directory

SCHEMA_URI = "https://json.schemastore.org/sarif-2.1.0.json"
ROOT = "%SRCROOT%"
"""The base of relative addresses; code hosts take it for the repository."""

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "note"}
_PRECISIONS = {"certain": "very-high", "predicted": "high", "observed": "high"}


def to_sarif(recording: Recording) -> str:
    """Return the findings of a run as a SARIF log."""
    rules, here = list(map(_rule, ALL_RULES)), working_directory()
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
    safety = [f"applicability: {safety_of(fix)}"] if safety_of(fix) else []
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
    if os.path.isabs(short):
        return {"uri": Path(short).as_uri()}
    name = short.replace(os.sep, "/")
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:  # no file can have it: the recording is damaged
        encoded = name.encode("utf-8", "replace")
    return {"uri": quote_from_bytes(encoded), "uriBaseId": ROOT}


def _replacement(edit: Edit) -> dict[str, Any]:
    """Return a change of whole lines with their ends; what replaces it brings its own."""
    behind = edit.end_line + 1
    deleted = {"startLine": edit.line, "startColumn": 1, "endLine": behind, "endColumn": 1}
    inserted = edit.replacement and edit.replacement + "\n"
    return {"deletedRegion": deleted, "insertedContent": {"text": inserted}}
