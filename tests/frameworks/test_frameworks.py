"""Inside a framework gradscope is silent on healthy code, and finds a hazard early, in the user's line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.trial import Program, judge, programs

pytestmark = pytest.mark.frameworks


@pytest.mark.parametrize("program", programs(), ids=lambda program: program.name)
def test_a_program_in_a_framework(program: Program, tmp_path: Path) -> None:
    if program.missing:
        pytest.skip(f"not installed: {', '.join(program.missing)}")
    verdict = judge(program, tmp_path)
    assert not program.faults(verdict), verdict.text
