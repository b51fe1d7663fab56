"""The machine formats: JSON as documented, SARIF as its specification asks, GitHub commands as GitHub parses them."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from canned import CHOICE, RECORDINGS, SUM, small_finding
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.formatting import escaped
from gradscope.launch.fork_server import untried
from gradscope.model import (
    Edit,
    Failure,
    Fix,
    FixKind,
    Outcome,
    Proof,
    Recording,
    Related,
    Site,
    Suppression,
    SuppressionKind,
)
from gradscope.render.machine import to_brief, to_github, to_json, to_sarif
from gradscope.rules import ALL_RULES
from tests.command import ROOT
from tests.reports import valid

each_recording = pytest.mark.parametrize("recording", RECORDINGS.values(), ids=RECORDINGS)
CANNED = RECORDINGS["canned"]


def with_finding(**fields: Any) -> Recording:
    finding = small_finding(**({"site": Site("a.py", 1)} | fields))
    return replace(CANNED, findings=(finding,))


def sarif(recording: Recording) -> dict[str, Any]:
    log = json.loads(to_sarif(recording))
    assert (log["version"], len(log["runs"])) == ("2.1.0", 1)
    return dict(log["runs"][0])


def only_result(recording: Recording) -> dict[str, Any]:
    (result,) = sarif(recording)["results"]
    return dict(result)


def commands(recording: Recording) -> list[tuple[str, dict[str, str], str]]:
    """What GitHub's runner reads from the output."""
    parsed = []
    for line in to_github(recording).split("\n")[:-1]:
        found = re.fullmatch(r"::(error|warning|notice) (.*?)::(.*)", line)
        assert found, line
        level, properties, message = found.groups()
        pairs = dict(pair.split("=", 1) for pair in properties.split(","))
        parsed.append(
            (level, {key: unquote(value) for key, value in pairs.items()}, unquote(message))
        )
    return parsed


# JSON


@each_recording
def test_json_has_the_documented_shape(recording: Recording) -> None:
    report = valid(to_json(recording))
    first, last = "schema gradscope torch script", "summary findings calls processes memory"
    assert list(report) == [*first.split(), *last.split()]
    assert report["schema"] == 1
    outcome = recording.outcome
    assert report["script"]["path"] == recording.header.script
    assert report["script"]["argv"] == list(recording.header.argv)
    assert report["script"]["exit_status"] == outcome.exit_status
    assert report["script"]["exception"] == outcome.exception
    counts = ("backward_calls", "nodes", "saved_tensors")
    for key in (*counts, "saved_bytes", "freed_bytes", "peak_saved_bytes"):
        assert report["summary"][key] == getattr(recording.summary, key)
    assert len(report["findings"]) == len(recording.findings)
    assert sum(call["count"] for call in report["calls"]) == recording.summary.backward_calls


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What makes the documented schema."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    return import_module("make_json")


def test_the_schema_and_its_page_are_those_of_the_model(maker: Any) -> None:
    for file, text in maker.made().items():
        assert file.read_text(encoding="utf-8") == text, "python docs/make_json.py makes it again"


@pytest.mark.parametrize("kind", ["Finding", "BackwardCall", "TrainingCell", "MemoryGroup"])
def test_a_field_without_a_meaning_and_a_meaning_without_a_field_are_refused(
    maker: Any, kind: str
) -> None:
    meanings = tomllib.loads(maker.MEANINGS.read_text(encoding="utf-8"))
    *others, last = meanings[kind]
    without = {key: meanings[kind][key] for key in others}
    for wrong in (without, meanings[kind] | {"new": "It is new."}):
        with pytest.raises(maker.UndescribedError, match=rf"\[{kind}\].*: ({last}|new)$"):
            maker.schema(meanings | {kind: wrong})
    with pytest.raises(maker.UndescribedError, match=f"lacks {kind}"):
        maker.schema({name: own for name, own in meanings.items() if name != kind})


def test_what_the_schema_does_not_have_is_seen() -> None:
    report = json.loads(to_json(CANNED))
    del report["findings"][0]["code"]
    report["summary"] |= {"nodes": "7", "new": 1}
    with pytest.raises(pytest.fail.Exception) as seen:
        valid(json.dumps(report))
    told = str(seen.value)
    assert "$.findings[0]: 'code' is a required property" in told
    assert "$.summary.nodes: '7' is not of type 'integer'" in told
    assert "'new' was unexpected" in told


def test_json_tells_a_finding_in_full() -> None:
    report = json.loads(to_json(CANNED))
    freed = next(each for each in report["findings"] if each["code"] == "GS101")
    place = {"file": "train.py", "line": 63, "column": 5, "end_line": 63, "end_column": 24}
    assert freed["location"] == place | {"function": "step", "cell": ""}
    assert [(r["role"], r["location"]["line"]) for r in freed["related"]] == [
        ("created", 59),
        ("freed_by", 62),
        ("failing_node", 15),
    ]
    assert (freed["code"], freed["severity"], freed["certainty"]) == ("GS101", "error", "certain")
    assert (freed["nodes"], freed["bytes"]) == (["TanhBackward0", "AddmmBackward0"], 45_568)
    assert (freed["backward_call"], freed["count"], freed["missed"]) == (2007, 1, False)
    assert freed["fix"]["kind"] == "sum_losses"
    deleted = {"file": "train.py", "line": 63, "replacement": "", "end_line": 63}
    assert freed["fix"]["edits"][1] == deleted
    assert (freed["fix"]["applicability"], freed["fix"]["effects"]) == ("unspecified", [])
    assert freed["alternatives"] == []


def test_json_keeps_calls_folded_and_marks_what_is_unknown() -> None:
    first = json.loads(to_json(CANNED))["calls"][0]
    assert (first["number"], first["last_number"], first["count"]) == (1, 1999, 1000)
    assert (first["kind"], first["inputs"], first["roots"]) == (
        "backward",
        None,
        [{"name": "loss_d", "label": "f32[]"}],
    )
    ago = (Related("freed_by", None, "long ago"),)
    (nowhere,) = json.loads(to_json(with_finding(site=None, related=ago)))["findings"]
    assert (nowhere["location"], nowhere["fix"]) == (None, None)
    assert nowhere["related"] == [{"role": "freed_by", "location": None, "message": "long ago"}]


def test_a_site_without_an_end_ends_where_it_begins() -> None:
    location = json.loads(to_json(with_finding(site=Site("/abs/a.py", 3, 7))))["findings"][0][
        "location"
    ]
    assert (location["file"], location["end_line"], location["end_column"]) == ("/abs/a.py", 3, 7)


# All formats


@pytest.mark.parametrize("render", [to_json, to_sarif, to_github, to_brief])
@each_recording
def test_every_format_renders_every_recording(
    render: Callable[[Recording], str], recording: Recording
) -> None:
    text = render(recording)
    assert text == "" or text.endswith("\n")
    assert (text == "") == (render in (to_github, to_brief) and not recording.findings)


@settings(deadline=None)
@given(st.text(), st.text())
def test_no_text_can_break_a_format(message: str, file: str) -> None:
    fix = Fix(FixKind.OTHER, message, (Edit("a.py", 1, message),))
    recording = with_finding(message=message, label=message, site=Site("x" + file, 1), fix=fix)
    assert json.loads(to_json(recording))["findings"][0]["message"] == message
    assert message in only_result(recording)["message"]["text"]
    ((level, properties, whole),) = commands(recording)
    assert (level, properties["title"]) == ("error", "GS101 name")
    assert whole.startswith(escaped(message, keep="\n"))
    assert to_brief(recording).count("\n") == 1


def test_a_file_name_that_is_not_unicode_can_be_written_in_every_format() -> None:
    recording = with_finding(site=Site(os.fsdecode(b"caf\xe9.py"), 1))
    for render in (to_json, to_sarif, to_github, to_brief):
        render(recording).encode("utf-8")
    location = only_result(recording)["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "caf%E9.py"


@pytest.mark.parametrize("file", ["\ud800.py", os.path.abspath("/\ud800.py")])
def test_a_name_that_no_file_can_have_comes_from_a_damaged_recording(file: str) -> None:
    recording = with_finding(site=Site(file, 1))
    for render in (to_json, to_sarif, to_github, to_brief):
        render(recording).encode("utf-8")


# SARIF


@each_recording
def test_sarif_results_point_at_their_rules(recording: Recording) -> None:
    run = sarif(recording)
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [rule.code for rule in ALL_RULES]
    assert len(run["results"]) == len(recording.findings)
    for result, finding in zip(run["results"], recording.findings, strict=True):
        assert result["ruleId"] == finding.code
        level = {"error": "error", "warning": "warning", "advice": "note"}[finding.severity]
        assert result["level"] == level
        assert result["occurrenceCount"] == finding.count


def test_sarif_rules_carry_their_page() -> None:
    rules = {rule["id"]: rule for rule in sarif(CANNED)["tool"]["driver"]["rules"]}
    for rule in ALL_RULES:
        assert rules[rule.code]["help"]["markdown"] == rule.explain
        assert rules[rule.code]["shortDescription"]["text"] == rule.summary


def test_sarif_has_places_related_places_and_fixes() -> None:
    result = next(each for each in sarif(CANNED)["results"] if each["ruleId"] == "GS101")
    (location,) = result["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "train.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 63, "startColumn": 5, "endLine": 63, "endColumn": 24},
    }
    assert location["logicalLocations"][0]["name"] == "step"
    related = result["relatedLocations"]
    assert [r["physicalLocation"]["region"]["startLine"] for r in related] == [59, 62, 15]
    assert len({r["id"] for r in related}) == 3
    (change,) = result["fixes"][0]["artifactChanges"]
    first, second = change["replacements"]
    region = {"startLine": 62, "startColumn": 1, "endLine": 63, "endColumn": 1}
    assert first["deletedRegion"] == region
    assert first["insertedContent"]["text"] == "    (loss_animal + loss_age).backward()\n"
    assert second["insertedContent"] == {"text": ""}


def test_sarif_has_every_fix_and_the_lines_that_it_replaces() -> None:
    fix = Fix(FixKind.NO_GRAD, "first", (Edit("a.py", 3, "new", 5),))
    other = Fix(FixKind.DETACH, "second", (Edit("a.py", 1, "x"),))
    words = Fix(FixKind.OTHER, "third")
    other = replace(other, proof=Proof.HELD)
    result = only_result(with_finding(fix=fix, alternatives=(words, other)))
    told = [each["description"]["text"] for each in result["fixes"]]
    assert told == ["first\nnot tried", "second\ntried"]
    (replacement,) = result["fixes"][0]["artifactChanges"][0]["replacements"]
    region = {"startLine": 3, "startColumn": 1, "endLine": 6, "endColumn": 1}
    assert replacement["deletedRegion"] == region


def test_a_fix_has_its_reason_and_effects_and_each_alternative_a_line() -> None:
    told = ["why: why so", "effect: `G.*` would get nothing"]
    others = ["or: sum losses (ready to apply): add them"]
    choice = replace(CHOICE, edits=(Edit("a.py", 1, "x"),))
    found = with_finding(fix=choice, alternatives=(SUM,))
    whole = ["help: detach `fake` (not tried, check it first)", *told, *others]
    assert only_result(found)["message"]["text"].splitlines()[1:] == whole
    (fix,) = only_result(found)["fixes"]
    assert fix["description"]["text"].splitlines() == [
        "detach `fake`",
        *told,
        "applicability: maybe-incorrect",
        "not tried",
    ]
    ((_, _, message),) = commands(found)
    assert message.splitlines()[1:] == whole


def test_sarif_addresses_are_relative_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    inside = only_result(with_finding(site=Site(str(tmp_path / "my code" / "train#1.py"), 1)))
    address = inside["locations"][0]["physicalLocation"]["artifactLocation"]
    assert address == {"uri": "my%20code/train%231.py", "uriBaseId": "%SRCROOT%"}
    outside = tmp_path.parent / "other place" / "a.py"
    far = only_result(with_finding(site=Site(str(outside), 1)))
    assert far["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": outside.as_uri()}
    root = sarif(CANNED)["originalUriBaseIds"]["%SRCROOT%"]["uri"]
    assert root == tmp_path.as_uri() + "/"


@pytest.mark.parametrize("file", ["<string>", "<stdin>", "<ipython-input-3-abc>"])
def test_sarif_names_code_that_is_in_no_file_without_an_address(file: str) -> None:
    (location,) = only_result(with_finding(site=Site(file, 3)))["locations"]
    assert "physicalLocation" not in location
    assert location["logicalLocations"][0]["fullyQualifiedName"].startswith(f"{file}:3")


def test_sarif_says_whether_the_run_was_finished() -> None:
    runs = [sarif(recording)["invocations"][0] for recording in RECORDINGS.values()]
    assert [run["executionSuccessful"] for run in runs] == [True, True, True, False]
    assert [run.get("exitCode") for run in runs] == [1, 0, 0, None]


def test_sarif_knows_one_cause_again_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prints = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        result = only_result(with_finding(site=Site(str(tmp_path / folder / "a.py"), 1)))
        prints.append(result["partialFingerprints"])
    other = only_result(with_finding(site=Site(str(tmp_path / "two" / "a.py"), 2)))[
        "partialFingerprints"
    ]
    assert prints[0] == prints[1] != other


# GitHub


def test_github_shows_each_finding_at_its_line() -> None:
    parsed = commands(CANNED)
    assert [level for level, _, _ in parsed] == ["error", "error", "warning", "warning", "notice"]
    level, properties, message = parsed[1]
    title = "GS101 backward-through-freed-graph"
    place = {"file": "train.py", "line": "63", "col": "5", "title": title}
    assert (level, properties) == ("error", place)
    lines = message.splitlines()
    needs = "needs 2 saved tensors of 2 nodes, already freed"
    assert lines[0] == f"backward through a freed graph: {needs}"
    freed = "freed by backward call 2006, which ran without retain_graph=True (train.py:62)"
    assert f"note: {freed}" in lines
    assert lines[-1].startswith("help: add the losses")


def test_github_commands_are_escaped() -> None:
    site = Site("a,b:c%.py", 1, end_line=3)
    text = to_github(with_finding(message="100%\r\nof it: a,b", site=site))
    assert text == (
        "::error file=a%2Cb%3Ac%25.py,line=1,col=1,endLine=3,title=GS101 name::100%25\\r%0Aof it: a,b\n"
    )


def test_github_takes_a_finding_without_a_place() -> None:
    assert commands(with_finding(site=None)) == [("error", {"title": "GS101 name"}, "message")]


# A line a finding


def problem(line: str) -> dict[str, str]:
    """What VS Code reads of a line by the task that the page has."""
    page = Path("docs/ci.md").read_text(encoding="utf-8")
    (task,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    pattern = json.loads(task)["tasks"][0]["problemMatcher"]["pattern"]
    found = re.match(pattern.pop("regexp"), line)
    assert found is not None
    return {name: found[number] for name, number in pattern.items()}


def test_an_editor_finds_the_line_of_a_finding() -> None:
    edit = Fix(FixKind.OTHER, "do it", (Edit("a.py", 3, ""),))
    (line,) = to_brief(with_finding(site=Site("a.py", 3, 5), fix=edit)).splitlines()
    assert problem(line) == {
        "file": "a.py",
        "line": "3",
        "column": "5",
        "severity": "error",
        "code": "GS101",
        "message": "message; fix: gradscope fix train.py -- --epochs 1",
    }


def test_no_line_speaks_of_a_fix_where_none_can_be_found() -> None:
    fix = Fix(FixKind.OTHER, "use all outputs of forward() in the loss")
    lines = [to_brief(with_finding(code=code, fix=fix)) for code in ("GS101", "GS603")]
    assert ["; fix: gradscope fix" in line for line in lines] == [True, False]
    told = [untried(with_finding(code=code), "why").findings[0] for code in ("GS101", "GS603")]
    assert [each.untried for each in told] == ["not tried: why", ""]


def test_an_editor_finds_the_line_of_an_exception_that_no_finding_explains() -> None:
    notes = (Related("failing_node", Site("a.py", 9), "at node `ExpBackward0`"),)
    failure = Failure(Site("a.py", 3, 5), "raised here", notes, "call it once")
    outcome = Outcome(1, "KeyError: 'a'\nmore of it", finished=True, failure=failure)
    lines = to_brief(replace(with_finding(), outcome=outcome)).splitlines()
    assert [problem(line)["code"] for line in lines] == ["KeyError", "GS101"]
    said = "'a': raised here; at node `ExpBackward0` (a.py:9); call it once"
    assert problem(lines[0]) == {
        "file": "a.py",
        "line": "3",
        "column": "5",
        "severity": "error",
        "code": "KeyError",
        "message": said,
    }


def test_what_does_not_stand_has_no_line() -> None:
    assert to_brief(with_finding(suppression=Suppression(SuppressionKind.IN_SOURCE, "here"))) == ""
    assert to_brief(with_finding(withdrawn="it did not come")) == ""
