"""Findings that a user has suppressed: by a comment, by settings, by a baseline."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gradscope.errors import GradscopeError
from gradscope.model import (
    Certainty,
    Finding,
    Header,
    Outcome,
    Recording,
    Severity,
    Site,
    Summary,
)
from gradscope.render.machine import WRITERS
from gradscope.render.printing import report_text
from gradscope.rules.settings import (
    DEFAULTS,
    FailOn,
    Format,
    Suppressor,
    settings_at,
    write_baseline,
)


def finding(file: Path, line: int, code: str = "GS303", *, end_line: int = 0) -> Finding:
    site = Site(str(file), line, 5, end_line, 9)
    name = {"GS303": "retain-graph-not-needed", "GS101": "backward-through-freed-graph"}[code]
    return Finding(code, name, Severity.ERROR, Certainty.CERTAIN, "a message", site)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "train.py"


def reason(script: Path, line: str, **options: int) -> str | None:
    """Return why a finding at the second of three lines does not count."""
    sources = {str(script): f"first()\n{line}\n"}
    found = Suppressor(DEFAULTS).judged(finding(script, 2, **options), sources)  # type: ignore[arg-type]
    assert found.counts is (found.suppression is None)
    return found.suppression.reason if found.suppression else None


@pytest.mark.parametrize(
    ("comment", "shown"),
    [
        ("# gradscope: ignore", "# gradscope: ignore"),
        ("# gradscope: ignore[GS303]", "# gradscope: ignore[GS303]"),
        ("# gradscope: ignore[GS303] as we know", "# gradscope: ignore[GS303]"),
        ("#gradscope:ignore[ gs101,gs303 ]", "#gradscope:ignore[ gs101,gs303 ]"),
        ("# type: ignore # gradscope: ignore", "# gradscope: ignore"),
        (
            "# gradscope: ignore[retain-graph-not-needed]",
            "# gradscope: ignore[retain-graph-not-needed]",
        ),
    ],
)
def test_a_comment_suppresses(script: Path, comment: str, shown: str) -> None:
    assert reason(script, f"loss.backward()  {comment}") == f"by `{shown}`"


@pytest.mark.parametrize(
    "line",
    [
        "loss.backward()",
        "loss.backward()  # gradscope: ignore[GS101]",
        "loss.backward()  # gradscope: ignored",
        "loss.backward()  # gradscope ignore",
        "loss.backward(), '# gradscope: ignore'",
        "loss.backward()\n# gradscope: ignore",
        "(\nno Python # gradscope: ignore",
    ],
)
def test_what_is_no_such_comment_suppresses_nothing(script: Path, line: str) -> None:
    assert reason(script, line) is None


def test_a_comment_may_stand_on_each_line_of_the_call(script: Path) -> None:
    call = "loss.backward(\n    gradient\n)  # gradscope: ignore"
    assert reason(script, call, end_line=4) == "by `# gradscope: ignore`"
    assert reason(script, call, end_line=3) is None


def configure(folder: Path, *lines: str) -> None:
    text = "\n".join(["[tool.gradscope]", *lines])
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")


def test_settings_are_those_of_the_nearest_project_file_that_has_some(tmp_path: Path) -> None:
    below = tmp_path / "project" / "src"
    below.mkdir(parents=True)
    configure(tmp_path, 'fail-on = "never"')
    assert settings_at(below).fail_on is FailOn.NEVER
    other = tmp_path / "project" / "pyproject.toml"
    for nothing in ("", "[tool.other]\nx = 'gradscope'", "[tool.broken"):
        other.write_text(nothing, encoding="utf-8")
        assert settings_at(below).fail_on is FailOn.NEVER
    configure(tmp_path / "project", 'fail-on = "advice"')
    assert settings_at(below).fail_on is FailOn.ADVICE


def test_codes_are_ignored_everywhere_or_in_files(tmp_path: Path) -> None:
    configure(
        tmp_path,
        'ignore = ["retain-graph-not-needed"]',
        'per-file-ignores = {"tests/*" = ["GS101"], "conf*.py" = ["GS101"]}',
    )
    suppressor = Suppressor(settings_at(tmp_path).overridden(ignore=["gs305, GS302"]))

    def why(file: str, code: str) -> str | None:
        found = suppressor.judged(finding(tmp_path / file, 1, code)).suppression
        return found.reason if found else None

    assert why("train.py", "GS303") == "by ignore in pyproject.toml"
    assert why("train.py", "GS101") is None
    assert why("tests/unit/test_a.py", "GS101") == "by per-file-ignores of tests/*"
    assert why("src/conftest.py", "GS101") == "by per-file-ignores of conf*.py"
    by_option = Suppressor(DEFAULTS.overridden(ignore=["GS101,GS303"]))
    assert by_option.judged(finding(tmp_path, 1)).suppression.reason == "by --ignore"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('ignroe = ["GS101"]', "[tool.gradscope] has no setting 'ignroe'; did you mean 'ignore'?"),
        ('ignore = "GS101"', "needs a list of codes, as [\"GS303\"], for ignore, not 'GS101'"),
        ('ignore = ["GS1O1"]', "ignore: there is no finding 'GS1O1'; did you mean 'GS101'?"),
        ("per-file-ignores = 3", "for per-file-ignores, not 3"),
        (
            'per-file-ignores = {"a.py" = 3}',
            "needs a table of lists of codes for per-file-ignores",
        ),
        ('fail-on = "errors"', "needs one of error, warning, advice, never for fail-on"),
        ("baseline = 3", "needs a file's path for baseline, not 3"),
        ("ignore = [", "cannot read"),
    ],
)
def test_wrong_settings_say_what_is_wrong(tmp_path: Path, line: str, says: str) -> None:
    configure(tmp_path, line)
    with pytest.raises(GradscopeError) as raised:
        settings_at(tmp_path)
    assert says in str(raised.value)
    assert str(tmp_path / "pyproject.toml") in str(raised.value)


def test_a_baseline_knows_findings_by_the_text_of_their_lines(script: Path) -> None:
    file = script.parent / "ci" / "known.json"
    file.parent.mkdir()
    script.write_text("loss.backward()\nloss.backward()\n", encoding="utf-8")
    write_baseline(file, [finding(script, 1), finding(script, 2, "GS101")])
    entries = json.loads(file.read_text(encoding="utf-8"))["findings"]
    assert entries == [
        {"file": "../train.py", "code": "GS101", "line": "loss.backward()"},
        {"file": "../train.py", "code": "GS303", "line": "loss.backward()"},
    ]
    moved = {str(script): "import torch\n\nif True:\n\tloss.backward()\nother.backward()\n"}
    settings = DEFAULTS.overridden(baseline=file)
    suppressor = Suppressor(settings)
    assert not suppressor.judged(finding(script, 4), moved).counts
    assert suppressor.judged(finding(script, 5), moved).counts
    assert suppressor.judged(finding(script.parent / "other.py", 4), moved).counts
    again = Suppressor(settings.overridden(write_baseline=file))
    assert again.judged(finding(script, 4), moved).counts, "what is known is written once more"


@pytest.mark.parametrize("content", ["", "[]", '{"kind": "gradscope baseline", "version": 2}'])
def test_what_is_no_baseline_is_said(tmp_path: Path, content: str) -> None:
    settings = DEFAULTS.overridden(baseline=tmp_path / "known.json")
    with pytest.raises(GradscopeError, match=r"there is no baseline .*--write-baseline"):
        Suppressor(settings)
    (tmp_path / "known.json").write_text(content, encoding="utf-8")
    with pytest.raises(GradscopeError, match="is not a baseline this version can read"):
        Suppressor(settings)


SOURCE = """\
loss.backward()  # gradscope: ignore[GS303, GS101]
loss.backward()  # gradscope: ignore
loss.backward()
loss.backward()  # gradscope: ignore[GS30]
"""


@pytest.fixture
def recording(script: Path) -> Recording:
    return Recording(
        Header("1", "2", "3", "train.py"),
        Outcome(0, finished=True),
        Summary(backward_calls=4),
        findings=(finding(script, 1), finding(script, 3, "GS101")),
        sources={str(script): SOURCE},
    )


def test_every_format_shows_what_is_suppressed_as_such(recording: Recording) -> None:
    judged = Suppressor(DEFAULTS).of_findings(recording)
    text = report_text(judged)
    assert "1 error, 1 suppressed in 4 backward calls" in text
    assert "GS303]: " not in text
    assert "explain GS101" in text
    found = json.loads(WRITERS[Format.JSON](judged))["findings"]
    why = "by `# gradscope: ignore[GS303, GS101]`"
    assert [one["suppression"] for one in found] == [{"kind": "inSource", "reason": why}, None]
    results = json.loads(WRITERS[Format.SARIF](judged))["runs"][0]["results"]
    assert results[0]["suppressions"] == [
        {"kind": "inSource", "justification": f"suppressed {why}"}
    ]
    assert "suppressions" not in results[1]
    assert WRITERS[Format.GITHUB](judged).count("::error") == 1
    everything = Suppressor(DEFAULTS.overridden(ignore=["GS101"])).of_findings(recording)
    assert "no finding, 2 suppressed in 4 backward calls" in report_text(everything)
    assert not any(map(FailOn.ADVICE.includes, everything.findings))


STEP, CUT = "optimizer.step()", "h = h.detach()"


def at_a_step(script: Path, *, in_full: bool) -> Finding:
    """A finding of which only the step is known, or the line to edit as well."""
    site = Site(str(script), 1 if in_full else 2)
    severity = Severity.WARNING if in_full else Severity.ADVICE
    return Finding(
        *("GS502", "parameter-not-reached", severity, Certainty.OBSERVED, "a message", site),
        parameters=("net.body.weight",),
        step=Site(str(script), 2),
    )


@pytest.mark.parametrize("in_full", [False, True])
@pytest.mark.parametrize("line", [1, 2])
def test_a_comment_counts_at_the_step_and_at_the_line_to_edit(
    script: Path, in_full: bool, line: int
) -> None:
    comments = ["", ""]
    comments[line - 1] = "  # gradscope: ignore[GS502]"
    sources = {str(script): f"{CUT}{comments[0]}\n{STEP}{comments[1]}\n"}
    found = Suppressor(DEFAULTS).judged(at_a_step(script, in_full=in_full), sources)
    assert bool(found.suppression) == (in_full or line == 2)


def test_a_baseline_knows_both_forms_and_the_parameters(script: Path, tmp_path: Path) -> None:
    sources = {str(script): f"{CUT}\n{STEP}\n"}
    short, full = (at_a_step(script, in_full=each) for each in (False, True))
    file = tmp_path / "baseline.json"
    write_baseline(file, [short], sources)
    (entry,) = json.loads(file.read_text())["findings"]
    assert (entry["line"], entry["parameters"]) == (STEP, "net.body.weight")
    suppressor = Suppressor(replace(DEFAULTS, baseline=file))
    assert suppressor.judged(full, sources).suppression
    assert not suppressor.judged(
        replace(full, parameters=("net.head.weight",)), sources
    ).suppression
    assert short.cause == full.cause
