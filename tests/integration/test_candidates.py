"""
The candidates for a fix, in words: the expert's comes first.

Each program names the kind of fix that an expert would choose.
"""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest
import torch

import gradscope
from gradscope.model import Finding, Severity
from gradscope.model.finding import by_weight

PROGRAMS = sorted((Path(__file__).parent / "programs" / "candidates").glob("*.py"))
CASES = [
    path
    for path in sorted((Path(__file__).parents[1] / "cases").glob("[0-9]*.py"))
    if '"error": null' not in path.read_text("utf-8").partition("\n")[0]
]


REHEARSED = ("probe_trained", "step_between_scores")
"""What else the forward pass, or a gradient, is for is known only where the program is rehearsed."""


def run(path: Path) -> tuple[list[Finding], str]:
    raised = ""
    torch.manual_seed(0)
    with gradscope.watch() as scope:
        try:
            runpy.run_path(str(path), run_name="__main__")
        except RuntimeError as error:
            raised = str(error)
            scope.explain(error)
        assert not scope.recording().summary.notes
    return scope.findings, raised


@pytest.mark.full(but=10)
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_the_expert_s_fix_is_first(path: Path) -> None:
    kind = re.search(r"^# fix: (\w+)$", path.read_text("utf-8"), re.MULTILINE)
    assert kind is not None
    found, raised = run(path)
    assert raised
    serious = [each for each in found if each.severity is not Severity.ADVICE]
    assert len(serious) == 2
    assert serious[0].fixes == serious[1].fixes  # the prediction, and the error that it foretold
    first = serious[0].fix
    assert first is not None
    kinds = [fix.kind.value for fix in serious[0].fixes]
    assert kind[1] in kinds if path.stem in REHEARSED else first.kind == kind[1]
    assert first.reason


@pytest.mark.full(but=8)
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_an_annotated_case_gets_the_expert_s_fix(path: Path) -> None:
    expected = json.loads(path.read_text("utf-8").partition("\n")[0].removeprefix("# expect:"))
    found, raised = run(path)
    assert raised
    first = by_weight(found)[0].fix
    assert first is not None
    assert first.kind in {expected["fix"], *expected.get("fix_also", ())}
