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
REHEARSED = {
    *("distill_teacher", "ppo_old_logp", "style_gram", "td_target"),
    *("loss_not_reset", "sam_outputs", "shared_encoder_step_each"),
    *("probe_trained", "step_between_scores"),
}
"""What is meant as a constant, as a total or to train is known only where the program is rehearsed."""


@pytest.mark.full(but=10)
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_what_is_said_without_a_rehearsal_is_the_expert_s_fix(path: Path) -> None:
    kind = known(re.search(r"^# fix: (\w+)$", path.read_text("utf-8"), re.MULTILINE))
    found, raised, _ = watched(path)
    assert raised
    serious = [each for each in found if each.severity is not Severity.ADVICE]
    assert len(serious) == 2
    assert serious[0].fixes == serious[1].fixes  # the prediction, and the error that it foretold
    first = known(serious[0].fix)
    assert (first.kind == kind[1]) is (path.stem not in REHEARSED)
    assert serious[0].fixes == (first,)


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
