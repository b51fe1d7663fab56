"""Every annotated case gets what its first line expects: the certain finding, its lines, or silence."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command import gradscope

CASES = Path(__file__).parent.parent / "cases"
CODES = {"double_backward": "GS101", "inplace": "GS201", "donated_buffer": "GS104"}


def expectation(path: Path) -> dict[str, Any]:
    first = path.read_text().splitlines()[0]
    return json.loads(first.removeprefix("# expect:"))  # type: ignore[no-any-return]


def run_in_child(path: Path, watched: bool, out: Path) -> dict[str, Any]:
    """Run the script in a forked child, so that torch is imported once for all cases."""
    import torch._dynamo  # noqa: F401 - before the fork; an optimizer imports it

    from gradscope.api.watch import watch

    results = out / f"result-{watched}.json"
    child = os.fork()
    if child == 0:
        status = 1
        try:
            stdout = os.open(out / f"stdout-{watched}", os.O_WRONLY | os.O_CREAT)
            os.dup2(stdout, 1)
            error = None
            findings: list[Any] = []
            if watched:
                with watch() as scope:
                    try:
                        runpy.run_path(str(path), run_name="__main__")
                    except Exception as raised:
                        error = f"{type(raised).__name__}: {raised}"
                        scope.explain(raised)
                findings = [
                    {
                        "code": f.code,
                        "severity": f.severity.value,
                        "line": f.site.line if f.site else None,
                        "missed": f.missed,
                        "related": [(r.role, r.site.line if r.site else None) for r in f.related],
                    }
                    for f in scope.findings
                ]
            else:
                try:
                    runpy.run_path(str(path), run_name="__main__")
                except Exception as raised:
                    error = f"{type(raised).__name__}: {raised}"
            import sys

            sys.stdout.flush()
            results.write_text(json.dumps({"error": error, "findings": findings}))
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(results.read_text()) | {"stdout": (out / f"stdout-{watched}").read_bytes()}  # type: ignore[no-any-return]


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
    assert problems(expectation(path), watched) == []


def test_what_a_program_leaves_in_its_variables_is_no_leak() -> None:
    """The command looks at them when the program has ended, with hooks of none of the last nodes."""
    (case,) = CASES.glob("134_*")
    done = gradscope("run", case, executable=sys.executable)
    assert done.returncode == 0
    assert "GS3" not in done.stderr
    assert "backward calls" in done.stderr
