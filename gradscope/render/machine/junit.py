"""JUnit XML, which build servers show as tests: one for each finding, and one for the run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape

from gradscope.model import Finding, Recording, Severity
from gradscope.render.machine.message import whole_message
from gradscope.units import counted, escaped, short_path


def to_junit(recording: Recording) -> str:
    """Return one suite: errors fail, what does not count is skipped, all other findings pass."""
    cases = [_run(recording), *map(_case, recording.findings)]
    header, text = recording.header, "".join(cases)
    counts = {
        "tests": len(cases),
        "failures": text.count("<failure "),
        "errors": text.count("<error "),
        "skipped": text.count("<skipped "),
    }
    suite = {"name": header.script, "timestamp": _time(header.started), **counts}
    body = f"<testsuite{_attributes(suite)}>\n{text}</testsuite>"
    whole = f"<testsuites{_attributes({'name': 'gradscope', **counts})}>\n{body}\n</testsuites>"
    return f'<?xml version="1.0" encoding="utf-8"?>\n{whole}\n'


def _run(recording: Recording) -> str:
    """Return the test that the program ran to its end."""
    outcome = recording.outcome
    calls = counted(recording.summary.backward_calls, "backward call")
    body = ""
    if not outcome.finished:
        body = _element("error", outcome.unfinished, "unfinished")
    elif outcome.exception:
        kind = outcome.exception.partition(":")[0]
        body = _element("error", outcome.exception.splitlines()[0], kind, outcome.exception)
    return _testcase({"name": f"the program runs ({calls})"}, recording.header.script, body)


def _case(finding: Finding) -> str:
    where, place = {}, "no place"
    if finding.site is not None:
        file = short_path(finding.site.file)
        where = {"file": file, "line": finding.site.line}
        place = f"{file}:{finding.site.line}"
    text = whole_message(finding)
    if finding.suppression is not None:
        body = _element("skipped", f"suppressed {finding.suppression.reason}")
    elif finding.withdrawn:
        body = _element("skipped", f"withdrawn: {finding.withdrawn}")
    elif finding.severity is Severity.ERROR:
        body = _element("failure", finding.message, finding.code, text)
    else:
        body = f"<system-out>{_clean(f'{finding.severity}: {text}')}</system-out>"
    name = f"{finding.code} {finding.name} ({place})"
    return _testcase({"name": name, **where}, str(where.get("file", "")), body)


def _testcase(attributes: dict[str, object], group: str, body: str) -> str:
    inside = f">{body}</testcase>" if body else "/>"
    return f"<testcase{_attributes({'classname': group, **attributes})}{inside}\n"


def _element(tag: str, message: str, kind: str = "", text: str = "") -> str:
    attributes = {"message": message, **({"type": kind} if kind else {})}
    return f"<{tag}{_attributes(attributes)}>{_clean(text)}</{tag}>"


def _attributes(values: Mapping[str, object]) -> str:
    return "".join(f' {key}="{_quoted(str(value))}"' for key, value in values.items())


def _quoted(text: str) -> str:
    """Return text for an attribute, where a line end would be read as a space."""
    return _clean(text).replace("\n", "&#10;")


def _clean(text: str) -> str:
    """Return text as markup in ASCII, without the characters that no XML may have."""
    return escape(escaped(text, keep="\n")).encode("ascii", "xmlcharrefreplace").decode("ascii")


def _time(started: float) -> str:
    return datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds")
