"""Every annotated case gets what its first line expects: the certain finding, its lines, or silence."""

from __future__ import annotations

import json
import os
import runpy
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from gradscope.model import Finding
from gradscope.model.finding import by_weight
from tests.command import gradscope
from tests.forked import in_fork

CASES = Path(__file__).parent.parent / "cases"
TOLD_BY_A_TRIAL = {"018_gp_cholesky_cache_candidate_search"}
"""Where experts do what is rarely done in such a situation: what no step trains was made once."""
CODES = {"double_backward": "GS101", "inplace": "GS201", "donated_buffer": "GS104"}


def expectation(path: Path) -> dict[str, Any]:
    first = path.read_text().splitlines()[0]
    return json.loads(first.removeprefix("# expect:"))  # type: ignore[no-any-return]


def run_in_child(path: Path, watched: bool, out: Path) -> dict[str, Any]:
    """Run the script in a forked child, so that torch is imported once for all cases."""
    import torch._dynamo  # before the fork; an optimizer imports it

    from gradscope.api.watch import watch

    results = out / f"result-{watched}.json"

    def work() -> None:
        os.dup2(os.open(out / f"stdout-{watched}", os.O_WRONLY | os.O_CREAT), 1)
        torch.manual_seed(0)
        error = None
        with watch() if watched else nullcontext() as scope:
            try:
                runpy.run_path(str(path), run_name="__main__")
            except Exception as raised:
                error = f"{type(raised).__name__}: {raised}"
                if scope:
                    scope.explain(raised)
        assert sys.gettrace() is None
        sys.stdout.flush()
        found = scope.findings if scope else []
        told = {
            "error": error,
            "findings": [told_of(each) for each in found],
            "fixes": [each.fix and each.fix.kind for each in by_weight(found)],
            "notes": scope.recording().summary.notes if scope else (),
        }
        results.write_text(json.dumps(told))

    in_fork(work)
    return json.loads(results.read_text()) | {"stdout": (out / f"stdout-{watched}").read_bytes()}  # type: ignore[no-any-return]


def told_of(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "line": finding.site.line if finding.site else None,
        "missed": finding.missed,
        "related": [(r.role, r.site.line if r.site else None) for r in finding.related],
        "fix": finding.fix and finding.fix.kind,
    }


def problems(expected: dict[str, Any], watched: dict[str, Any]) -> list[str]:
    errors = [f for f in watched["findings"] if f["severity"] == "error"]
    if expected["error"] not in CODES:
        return [f"unexpected {f['code']} at line {f['line']}" for f in errors]
    found = [f for f in errors if f["code"] == CODES[expected["error"]] and not f["missed"]]
    if not found:
        return [f"no {CODES[expected['error']]}: {watched['findings']}"]
    lines: dict[str, list[int | None]] = {}
    for role, line in found[0]["related"]:
        lines.setdefault(role, []).append(line)
    wrong = []
    if found[0]["line"] != expected["raise_line"]:
        wrong.append(f"raised at {found[0]['line']}, not {expected['raise_line']}")
    made = {expected["culprit_line"], *expected.get("culprit_also", [])}
    if not made & set(lines.get("created", [])):
        wrong.append(f"created at {lines.get('created')}, not {made}")
    if expected.get("free_line") and expected["free_line"] not in lines.get("freed_by", []):
        wrong.append(f"freed at {lines.get('freed_by')}, not {expected['free_line']}")
    if expected.get("mutate_line") and expected["mutate_line"] not in lines.get("modified_by", []):
        wrong.append(f"modified at {lines.get('modified_by')}, not {expected['mutate_line']}")
    return wrong


@pytest.mark.full(but=25)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="runs the cases in forked children")
@pytest.mark.parametrize("path", sorted(CASES.glob("*.py")), ids=lambda path: path.stem)
def test_case(path: Path, tmp_path: Path) -> None:
    plain = run_in_child(path, False, tmp_path)
    watched = run_in_child(path, True, tmp_path)
    assert watched["error"] == plain["error"]
    assert watched["stdout"] == plain["stdout"]
    expected = expectation(path)
    assert problems(expected, watched) == []
    if expected["error"]:
        assert watched["error"]
        assert watched["notes"] == []
        experts = {expected["fix"], *expected.get("fix_also", ())}
        assert (watched["fixes"][0] in experts) is (path.stem not in TOLD_BY_A_TRIAL)
    if expected["error"] == "inplace":
        told_early(expected, [f for f in watched["findings"] if f["severity"] != "advice"])


def told_early(expected: dict[str, Any], found: list[dict[str, Any]]) -> None:
    """See that the step or the operation that changes a saved tensor is told of when it comes."""
    assert [f["code"] for f in found] == ["GS202", "GS201"]
    by_role = {role: line for role, line in found[0]["related"] if line is not None}
    assert by_role["modified_by"] == expected["mutate_line"]
    assert by_role["created"] in {expected["culprit_line"], *expected.get("culprit_also", [])}
    assert (by_role.get("failing_node") or by_role["next_read"]) == expected["raise_line"]
    assert found[0]["fix"] in {expected["fix"], *expected.get("fix_also", ())}


@pytest.mark.full
def test_what_a_program_leaves_in_its_variables_is_no_leak() -> None:
    """The command looks at them when the program has ended, with hooks of none of the last nodes."""
    (case,) = CASES.glob("134_*")
    done = gradscope("run", case, executable=sys.executable)
    assert done.returncode == 0
    assert "GS3" not in done.stderr
    assert "backward calls" in done.stderr
