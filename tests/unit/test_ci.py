"""What CI reads: SARIF by its official schema, JUnit XML, and the files that the docs offer to copy."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from canned import canned_recording, clean_recording, empty_recording, unfinished_recording
from hypothesis import given
from hypothesis import strategies as st
from test_cli_parsing import parse

from gradscope.code.suppressing import Suppressor
from gradscope.model import Outcome, Recording, Severity, Site
from gradscope.render.machine.junit import to_junit
from gradscope.render.machine.sarif import to_sarif
from gradscope.rules.settings import DEFAULTS
from gradscope.units import escaped

ROOT = Path(__file__).parents[2]
CANNED = canned_recording()
IGNORING = Suppressor(DEFAULTS.overridden(ignore=["GS101", "GS303"])).applied(CANNED)
RECORDINGS = [CANNED, clean_recording(), empty_recording(), unfinished_recording(), IGNORING]
each_recording = pytest.mark.parametrize(
    "recording", RECORDINGS, ids=["canned", "clean", "empty", "unfinished", "ignoring"]
)


@pytest.fixture(scope="module")
def schema() -> Any:
    """OASIS' own: https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/."""
    jsonschema = pytest.importorskip("jsonschema")
    text = (ROOT / "tests" / "golden" / "sarif-schema-2.1.0.json").read_text(encoding="utf-8")
    return jsonschema.Draft4Validator(json.loads(text))


@each_recording
def test_sarif_is_valid_by_the_official_schema(schema: Any, recording: Recording) -> None:
    log = json.loads(to_sarif(recording))
    assert [error.message for error in schema.iter_errors(log)] == []


def test_the_schema_finds_faults(schema: Any) -> None:
    log = json.loads(to_sarif(IGNORING))
    results = log["runs"][0]["results"]
    suppressed = next(one for one in results if "suppressions" in one)
    suppressed["suppressions"][0]["kind"] = "elsewhere"
    results[0]["severity"] = "error"
    assert len(list(schema.iter_errors(log))) == 2


def suite(recording: Recording) -> ElementTree.Element:
    """Return the suite, whose counts are those of its tests."""
    root = ElementTree.fromstring(to_junit(recording).encode("utf-8"))
    (found,) = root
    for element in (root, found):
        counts = {tag: len(root.findall(f".//{tag}")) for tag in ("failure", "error", "skipped")}
        assert element.attrib["tests"] == str(len(found))
        assert element.attrib["failures"] == str(counts["failure"])
        assert element.attrib["errors"] == str(counts["error"])
        assert element.attrib["skipped"] == str(counts["skipped"])
    return found


@each_recording
def test_junit_has_a_test_for_the_run_and_for_each_finding(recording: Recording) -> None:
    run, *findings = suite(recording)
    assert [case.attrib["name"].split()[0] for case in findings] == [
        finding.code for finding in recording.findings
    ]
    for case, finding in zip(findings, recording.findings, strict=True):
        tag = "failure" if finding.severity is Severity.ERROR else "system-out"
        assert case[0].tag == (tag if finding.counts else "skipped")
        if finding.site is not None:
            assert case.attrib["line"] == str(finding.site.line)
    ended_well = recording.outcome.finished and not recording.outcome.exception
    assert [part.tag for part in run] == ([] if ended_well else ["error"])


def test_junit_tells_a_failure_in_full() -> None:
    failed = suite(CANNED).find(".//failure")
    assert failed is not None
    assert failed.attrib["message"] == "backward through a saved tensor that was modified in place"
    assert failed.text is not None
    assert "note: " in failed.text
    assert "help: " in failed.text


@given(st.text(), st.text())
def test_no_text_can_break_junit(message: str, file: str) -> None:
    finding = replace(CANNED.findings[0], severity=Severity.ERROR, label=message)
    broken = replace(finding, message=message, site=Site("x" + file, 1))
    outcome = Outcome(1, f"Error: {message}", finished=True)
    _, case = suite(replace(CANNED, findings=(broken,), outcome=outcome))
    told = case[0].attrib["message"]
    assert told == escaped(message, keep="\n")


def commands_in(value: Any) -> Iterator[str]:
    """Yield the command lines of gradscope in a file for CI."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("run", "entry"):
                yield from (line for line in inner.splitlines() if line.startswith("gradscope"))
            else:
                yield from commands_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from commands_in(inner)


@pytest.mark.parametrize(("name", "commands"), [("action.yml", 4), ("pre-commit-config.yaml", 1)])
def test_the_files_to_copy_can_be_read_and_their_commands_run(name: str, commands: int) -> None:
    yaml = pytest.importorskip("yaml")
    content = yaml.safe_load((ROOT / "docs" / "ci" / name).read_text(encoding="utf-8"))
    lines = list(commands_in(content))
    assert len(lines) == commands
    for line in lines:
        given_by_user = line.replace("$OPTIONS", "--stop-after 20").replace(
            "$PROGRAM", "a.py --x 1"
        )
        assert isinstance(parse(*shlex.split(given_by_user)[1:]), partial)


def test_the_action_and_the_hook_have_what_their_readers_need() -> None:
    yaml = pytest.importorskip("yaml")
    action = yaml.safe_load((ROOT / "docs" / "ci" / "action.yml").read_text(encoding="utf-8"))
    assert action["runs"]["using"] == "composite"
    assert all(step["shell"] == "bash" for step in action["runs"]["steps"])
    assert action["inputs"]["program"]["required"] is True
    hooks = yaml.safe_load((ROOT / "docs/ci/pre-commit-config.yaml").read_text(encoding="utf-8"))
    (hook,) = hooks["repos"][0]["hooks"]
    assert {"id", "name", "entry", "language"} <= hook.keys()


def test_the_commands_that_the_page_shows_are_understood() -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    shown = [part for part in page.replace("\n", "`").split("`") if part.startswith("gradscope ")]
    assert len(shown) == 5
    for line in shown:
        assert isinstance(parse(*shlex.split(line)[1:]), partial)
