"""Programs that an exception of autograd's ends: what the report says of it first, with the lines behind it.

The first line of each program in ``tests/cases/ended`` says what is right: ``raised: RuntimeError: …``, whether a
node is named and what the help speaks of; ``found: GS604`` with the name of what cannot be copied; or ``says: nothing``.
Of its lines ``# raised`` or ``# error: GS604`` is the place that is told, ``# note: …`` one that a note points at.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradscope.model import Failure, Recording, Site
from gradscope.record.processes import load_run
from tests.command import gradscope

PROGRAMS = sorted((Path(__file__).parents[1] / "cases" / "ended").glob("*.py"))


def lines_with(text: str, comment: str) -> list[int]:
    lines = text.splitlines()[1:]
    return [number for number, line in enumerate(lines, 2) if f"# {comment}" in line]


def told(sites: list[Site | None], file: Path) -> list[int]:
    return [site.line for site in sites if site is not None and Path(site.file).name == file.name]


def ended(file: Path, folder: Path) -> tuple[str, Recording]:
    """The report of a program as text, and its recording."""
    saved = folder / "it.gscope"
    done = gradscope("run", "--no-rehearsal", "--save", saved, file, cwd=folder)
    return done.stderr, load_run(saved)


def check_raised(expected: str, report: str, text: str, found: Failure | None, file: Path) -> None:
    if "; plain" in expected:  # none of autograd's: Python has told all
        assert found is None
        return
    assert found is not None
    assert told([found.site], file) == lines_with(text, "raised")
    notes = told([each.site for each in found.related], file)
    assert {*notes} >= {*lines_with(text, "note")}
    node = re.search(r"node (`\w+`)", expected)
    assert node is None or any(node[1] in each.message for each in found.related)
    wanted = re.search(r"help: ([\w.]+)", expected)
    assert wanted is not None
    assert (wanted[1] in found.help) if wanted[1] != "no" else not found.help
    first = next(line for line in report.splitlines() if re.match(r"raised: |\w+\[GS", line))
    assert first.startswith("raised: ")
    assert "the script ended with" in report


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda file: file.stem)
def test_the_report_leads_with_what_ended_the_program(file: Path, tmp_path: Path) -> None:
    text = file.read_text(encoding="utf-8")
    kind, _, expected = text.splitlines()[0].removeprefix("# ").partition(": ")
    report, recording = ended(file, tmp_path)
    failure = recording.outcome.failure
    assert ("no problem found" in report) == (kind == "says"), report
    assert [each.code for each in recording.findings] == (["GS604"] if kind == "found" else [])
    if kind == "raised":
        assert expected.split("; ")[0] in (recording.outcome.exception or "")
        check_raised(expected, report, text, failure, file)
    elif kind == "found":
        (found,) = recording.findings
        assert told([found.site], file) == lines_with(text, "error: GS604")
        assert {*told([each.site for each in found.related], file)} >= {*lines_with(text, "note")}
        name, wanted = re.search(r"GS604 (`.*?`)", expected), re.search(r"help: (\w+)", expected)
        assert name is None or found.message.startswith(name[1])
        assert wanted is None or (found.fix is not None and wanted[1] in found.fix.message)
    else:
        assert failure is None
