"""The page on compatibility is what the stored results say; the command reads what tests print."""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.oracles import compatibility

ROOT = Path(__file__).parents[2]


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "docs")
    monkeypatch.delitem(sys.modules, "changes", raising=False)
    monkeypatch.delitem(sys.modules, "make_compatibility", raising=False)
    return import_module("make_compatibility")


def result(**changed: Any) -> dict[str, Any]:
    """A result of an environment in which all is well."""
    return {
        "torch": "2.13.0",
        "python": "3.11.7",
        "facts_that_fail": [],
        "suite": {"passed": 1_234, "failed": [], "skipped": {"no CUDA": 3}, "xfailed": {}},
        "cases": {"run": 2, "differing": {}, "findings": {"a.py": ["certain GS101 3"], "b.py": []}},
        "random": {"programs": 2_000, "faults": 0, "closing_line": ""},
    } | changed


def test_page_is_what_the_results_say(maker: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert maker.main(["--check"]) == 0, capsys.readouterr().out


def test_a_row_shows_what_failed_and_what_differs(maker: Any) -> None:
    cases = {"run": 2, "differing": {"b.py": "changed"}, "findings": {"a.py": [], "b.py": []}}
    other = result(
        torch="2.15.0",
        python="3.13.0",
        facts_that_fail=["water is wet."],
        suite={"passed": 9, "failed": ["t"], "skipped": {"no lake": 2, "no CUDA": 3}},
        cases=cases,
        random={"programs": 10, "faults": 4},
    )
    maker.REASONS.update({"a.py": "Because.", "t": "It rains."})
    bare = result(torch="2.14.1")
    del bare["suite"], bare["cases"], bare["random"]
    page = maker.page([result(), bare, other])
    assert "| 2.14.1 | 3.11.7 | - | - | - | - | - | - | - | - |" in page
    assert "| 2.13.0 | 3.11.7 | 1,234 | 3 | 0 | 2 | 2 | 2 | 2,000 | 0 |" in page
    assert "| 2.15.0 | 3.13.0 | 9 | 5 | 1 | 2 | 1 | 1 | 10 | 4 |" in page
    assert "- it is not so that water is wet." in page
    assert "- no lake (2 tests skipped)" in page
    assert "no CUDA (" not in page
    assert "- A test fails, `t`. It rains." in page
    assert "- `a.py`: not `certain GS101 3`. Because." in page
    assert "torch 2.13 to 2.15** and **Python 3.11 to 3.13**" in " ".join(page.split())


def test_a_difference_without_a_reason_makes_no_page(maker: Any) -> None:
    cases = {"run": 1, "differing": {}, "findings": {"a.py": []}}
    with pytest.raises(KeyError, match=r"a\.py"):
        maker.page([result(), result(torch="2.4.1", cases=cases)])


def test_outcomes_are_read_from_the_report_of_pytest(tmp_path: Path) -> None:
    tests = tmp_path / "test_all.py"
    tests.write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert False\n"
        "@pytest.fixture\ndef broken(): raise ValueError\n"
        "def test_error(broken): pass\n"
        "@pytest.mark.skip(reason='no CUDA')\ndef test_left(): pass\n"
        "@pytest.mark.xfail(reason='known')\ndef test_known(): assert False\n"
    )
    report = tmp_path / "report.xml"
    pytest.main(
        [str(tests), "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "-c", "/dev/null"]
    )
    again = tmp_path / "again.xml"
    mended = re.sub(r"<failure.*?</failure>", "", report.read_text(), flags=re.DOTALL)
    again.write_text(mended)
    assert compatibility.outcomes(report, again)["passed"] == 2
    assert compatibility.outcomes(report) == {
        "passed": 1,
        "failed": ["test_all::test_bad", "test_all::test_error"],
        "skipped": {"no CUDA": 1},
        "xfailed": {"known": 1},
    }


@pytest.mark.parametrize(
    ("error", "line", "said"),
    [
        ("double_backward", 3, []),
        ("double_backward", 4, ["GS101 at ['3'], not at 4"]),
        ("inplace", 3, ["GS201 at no line, not at 3"]),
        (None, 3, ["unexpected GS101 at program.py:3"]),
    ],
)
def test_a_case_is_held_against_its_first_line(
    error: str | None, line: int, said: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(f"# expect: {json.dumps({'error': error, 'raise_line': line})}\n")
    found = [{"code": "GS101", "severity": "error", "at": "program.py:3"}]
    assert list(compatibility.not_expected(script, found)) == said


@pytest.mark.full
def test_what_was_asked_for_is_written_beside_what_was_there(tmp_path: Path) -> None:
    script = tmp_path / "programs" / "program.py"
    script.parent.mkdir()
    script.write_text(
        "import torch\nloss = torch.ones(1, requires_grad=True).exp()\n"
        "loss.backward()\nloss.backward()\n"
    )
    file = tmp_path / "result.json"
    file.write_text('{"random": {"programs": 7, "faults": 0}}')
    options = ["--json", str(file), "--only", "cases", "--cases", str(script.parent)]
    assert compatibility.main(options) == 0
    written = json.loads(file.read_text())
    found = written["cases"]["findings"]["programs/program.py"]
    assert [finding.split(";")[0] for finding in found] == ["certain GS101 4", "predicted GS102 3"]
    assert (written["cases"]["run"], written["cases"]["differing"]) == (1, {})
    assert written["random"]["programs"] == 7
    assert written["python"].count(".") == 2
