"""
Every program of ``tests/corpus`` is run once, with all rules asked: what its comments say is found, and nothing else.

A comment at the end of a line says what is found there, its parts parted by ``;``, and continues in the
lines that follow and start with ``# ^``:

- ``error: GS101 [detach] `h```: a finding of that severity is announced at this line, with this kind
  of fix, and its label names this;
- ``created: GS102 GS101``: a note of these findings with this role points at this line.

``# gradients: wrong`` says that the engine computes other gradients than it would if nothing had been
written to what the graphs saved, ``# gradients: right`` that it does not. A program in which nothing is
found but advice is healthy. What is said in the program's own process never has an edit.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import gradscope
from gradscope.model import Certainty, Finding, Severity, Site
from tests import known
from tests.needs import since
from tests.watching import found_in

CORPUS = Path(__file__).parents[1] / "corpus"
PROGRAMS = sorted(CORPUS.glob("*/*.py"))
ROLES = ("created", "modified_by", "freed_by", "held_by", "next_read", "failing_node")
RAISED = {
    "GS101": "second time",
    "GS201": "inplace operation",
    "GS601": "",
}
HAZARDS = ("GS101", "GS102", "GS103", "GS201", "GS202")
"""Of these, one sentence is all that is said of what can be done before an edit was tried."""
COMMENT = re.compile(rf"# (?:\^ )?(?=(?:error|warning|advice|{'|'.join(ROLES)}): )")
ANNOUNCED = re.compile(r"(error|warning|advice): (GS\d+) \[(.*)\](?: `(.*)`)?")


@dataclass
class Said:
    """What is said of a program: in its comments, or by gradscope. Line 0 is not one of its lines."""

    findings: Counter[tuple[int, str, str, str]] = field(default_factory=Counter)
    """By line, severity, code, and fix."""
    notes: Counter[tuple[int, str, str]] = field(default_factory=Counter)
    """By line, role, and the code of the finding."""
    labels: dict[tuple[int, str], str] = field(default_factory=dict)


SINCE = re.compile(r"^# before torch ([\d.]+): (.*)$", re.MULTILINE)
"""What an older torch does otherwise, so that the comments do not hold there."""
BY_PYTHON = re.compile(r"(\w+) \(since 3\.12: ([^)]*)\)")
WHICH = 2 if sys.version_info >= (3, 12) else 1
"""Since then a comprehension runs in its function's frame, and a line's event comes at the jump back to its loop."""


def annotated(text: str) -> Said:
    """Read the comments of a program."""
    said, at = Said(), 0
    text = BY_PYTHON.sub(rf"\{WHICH}", text)
    for number, line in enumerate(text.splitlines(), 1):
        at = at if line.lstrip().startswith("# ^ ") else number
        start = COMMENT.search(line)
        if start is None:
            continue
        comment = line[start.end() :]
        for part in comment.split("; "):
            kind, _, rest = part.partition(": ")
            if kind in ROLES:
                said.notes.update((at, kind, code) for code in rest.split())
            else:
                found = ANNOUNCED.fullmatch(part)
                assert found, f"line {number}: {part}"
                said.findings[at, found[1], found[2], found[3]] += 1
                if found[4]:
                    said.labels[at, found[2]] = found[4]
    return said


def line_of(site: Site | None, path: Path) -> int:
    return site.line if site is not None and Path(site.file) == path else 0


def announced(findings: Iterable[Finding], path: Path) -> Said:
    """What gradscope says, as comments would."""
    said = Said()
    for finding in findings:
        at, code = line_of(finding.site, path), finding.code
        kind = "" if finding.fix is None else str(finding.fix.kind)
        said.findings[at, finding.severity.value, code, kind] += 1
        said.labels[at, code] = finding.label
        said.notes.update(
            (line_of(note.site, path), note.role, code)
            for note in finding.related
            if note.role in ROLES
        )
    return said


def run(path: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    return runpy.run_path(str(path), run_name="__main__")


def watched(path: Path) -> tuple[list[Finding], str, list[torch.Tensor]]:
    """Run a program; return what was found, what it raised, and the results it left."""
    torch.manual_seed(0)
    found, raised, left = found_in(path, left_by)
    return found, raised, left or []


def left_by(variables: dict[str, Any]) -> list[torch.Tensor]:
    """Return the values and gradients of all leaves and modules that a program leaves behind."""
    found: list[torch.Tensor] = []
    for value in variables.values():
        if isinstance(value, torch.nn.Module):
            found += value.state_dict().values()
            found += (p.grad for p in value.parameters() if p.grad is not None)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, torch.Tensor) and each.is_leaf and each.requires_grad:
                found += [each.detach()] + ([each.grad] if each.grad is not None else [])
    return found


def same(results: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(results) == len(others) and all(map(torch.equal, results, others))


def gradients(path: Path) -> str:
    """Whether the engine computes what it would if the graphs had copies of what they saved."""
    plain = left_by(run(path))
    assert plain
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        copied = left_by(run(path))
    return "right" if same(plain, copied) else "wrong"


@pytest.mark.full(but=40)
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_the_comments_say_is_found_and_nothing_else(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for version, what in SINCE.findall(text):
        since(version, what)
    expected = annotated(text)
    found, raised, results = watched(path)
    said = announced(found, path)
    assert said.findings == expected.findings
    assert said.notes == expected.notes
    for key, name in expected.labels.items():
        assert f"`{name}`" in said.labels[key]
    errors = {code for _, severity, code, _ in expected.findings if severity == "error"}
    assert not raised or any(RAISED[code] in raised for code in errors)
    prediction_comes_true(found)
    hazards = [each for each in found if each.code in HAZARDS]
    assert all(len(each.fixes) == 1 for each in hazards)
    assert not [fix for each in found for fix in each.fixes if fix.edits]

    computed = re.search(r"^# gradients: (\w+)$", text, re.MULTILINE)
    if computed:
        assert gradients(path) == computed[1]
        assert same(results, left_by(run(path)))  # watched or not, be they right or wrong
    if computed and computed[1] == "wrong":
        assert found[0].certainty is Certainty.PREDICTED
        assert found[0].severity is Severity.WARNING or BY_PYTHON.search(text)
        assert "silently compute a wrong gradient" in found[0].message


@pytest.mark.full(but=2)
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_watch_within_one_that_has_seen_it_all_finds_the_same(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for version, what in SINCE.findall(text):
        since(version, what)
    with gradscope.watch():
        with suppress(RuntimeError):
            run(path)
        found, _, _ = watched(path)
    assert announced(found, path).findings == annotated(text).findings


def prediction_comes_true(found: list[Finding]) -> None:
    """A finding that predicts an error comes a backward call early, and names the line that raises it."""
    errors = [finding for finding in found if finding.severity is Severity.ERROR]
    early = [f for f in found if f.code in ("GS102", "GS103", "GS202")]
    if not errors or not early:
        return
    first, error = early[0], errors[0]
    assert found.index(first) < found.index(error)
    assert first.backward_call < error.backward_call
    sites = {note.role: note.site for note in first.related}
    failing = known(sites.get("failing_node") or sites["next_read"])
    assert error.site is not None
    assert failing.line == error.site.line
    assert first.fix is not None
    if first.code == "GS102":
        assert failing.column == error.site.column
        assert first.fix.kind == known(error.fix).kind
