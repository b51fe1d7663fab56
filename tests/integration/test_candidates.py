"""
The candidates for a fix, in words: the expert's comes first.

Each program names the kind of fix that an expert would choose.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gradscope.model import Severity
from tests import known
from tests.command import gradscope as command
from tests.integration.test_corpus import CORPUS, watched

PROGRAMS = sorted((Path(__file__).parent / "programs" / "candidates").glob("*.py"))
REHEARSED = ("probe_trained", "step_between_scores")
"""What else the forward pass, or a gradient, is for is known only where the program is rehearsed."""


@pytest.mark.full(but=10)
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_the_expert_s_fix_is_first(path: Path) -> None:
    kind = known(re.search(r"^# fix: (\w+)$", path.read_text("utf-8"), re.MULTILINE))
    found, raised, _ = watched(path)
    assert raised
    serious = [each for each in found if each.severity is not Severity.ADVICE]
    assert len(serious) == 2
    assert serious[0].fixes == serious[1].fixes  # the prediction, and the error that it foretold
    first = known(serious[0].fix)
    kinds = [fix.kind.value for fix in serious[0].fixes]
    assert kind[1] in kinds if path.stem in REHEARSED else first.kind == kind[1]
    assert first.reason


def test_a_cache_is_opened_in_each_iteration(tmp_path: Path) -> None:
    program = CORPUS / "foresight" / "parametrizations_cached_around_a_loop.py"
    run = command(
        "run", "--no-rehearsal", "--format=json", "--output=out.json", program, cwd=tmp_path
    )
    assert run.returncode == 1
    findings = json.loads((tmp_path / "out.json").read_text("utf-8"))["findings"]
    assert len(findings) == 2
    for finding in findings:
        loop, block = (edit["replacement"] for edit in finding["fix"]["edits"])
        assert loop == "for step in range(3):"
        assert block == "    with parametrize.cached():"
