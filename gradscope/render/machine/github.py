"""GitHub's workflow commands: one for each finding, which GitHub shows at the line it is about."""

from __future__ import annotations

from gradscope.model import Finding, Recording, Severity
from gradscope.render.wording import whole_message
from gradscope.units import escaped, short_path

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "notice"}


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
    level = "notice" if finding.withdrawn else _LEVELS[finding.severity]
    return f"::{level} {fields}::{_escaped(whole_message(finding))}"


def _escaped(text: str, *, property_: bool = False) -> str:
    """Return text as a workflow command takes it; a property escapes colons and commas too."""
    coded = escaped(text, keep="\n").replace("%", "%25").replace("\n", "%0A")
    return coded.replace(":", "%3A").replace(",", "%2C") if property_ else coded
