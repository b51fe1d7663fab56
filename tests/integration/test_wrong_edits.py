"""``gradscope fix --verify`` refuses each edit that stops or changes the training, and says what it would do."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gradscope.fixing.proposals import plan
from gradscope.fixing.runs import Bounds
from gradscope.fixing.verify import Trial, Tried, try_out
from gradscope.model import Edit, Fix, FixKind, Recording, Severity
from gradscope.record.file import load
from gradscope.render.text.trials import why
from tests.integration.wrong_edits import HAZARDS, Hazard
from tests.zygote import python

pytestmark = pytest.mark.slow


def edits(file: Path, edit: dict[str, str]) -> tuple[Edit, ...]:
    """The edits of lines that a program has once, each by its text."""
    lines = file.read_text().splitlines()
    made = []
    for old, new in edit.items():
        (number,) = [n for n, line in enumerate(lines, 1) if line.strip() == old]
        indent = lines[number - 1][: -len(old)]
        made.append(Edit(str(file), number, f"{indent}{new}"))
    return tuple(made)


def recorded(
    folder: Path, program: str, *fixes: dict[str, str], says: tuple[str, ...] = ()
) -> Recording:
    """A recording of a program whose error has these fixes."""
    file = folder / "train.py"
    file.write_text(program)
    command = [python(), "-m", "gradscope", "run", "--save", "run.gscope", "train.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    recording = load(folder / "run.gscope")
    (error,) = [found for found in recording.findings if found.severity is Severity.ERROR]
    fix, *others = (
        Fix(FixKind.OTHER, f"number {number}", edits(file, each), effects=says)
        for number, each in enumerate(fixes)
    )
    return replace(recording, findings=(replace(error, fix=fix, alternatives=tuple(others)),))


def tried(recording: Recording, monkeypatch: pytest.MonkeyPatch, *picks: int) -> Trial:
    monkeypatch.setattr(sys, "executable", python())
    proposed = plan(recording, picks=picks)
    return try_out(proposed, recording, Bounds(30, 120), lambda doing: None, picks)


def reason(one: Tried) -> str:
    """Why a candidate is refused, without where the program lies."""
    assert one.verdict is not None
    return " ".join(why(one.verdict).split())


@pytest.mark.parametrize("hazard", HAZARDS.values(), ids=HAZARDS)
def test_wrong_edits_are_refused_and_right_ones_hold(
    hazard: Hazard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = [each.edit for each in hazard.wrong]
    recording = recorded(tmp_path, hazard.program, *wrong, *hazard.right, says=hazard.says)
    found = tried(recording, monkeypatch)
    assert len(found.tried) == len(wrong) + len(hazard.right)
    told = [reason(one) for one in found.tried if not one.holds]
    assert [one.holds for one in found.tried] == [False] * len(wrong) + [True] * len(
        hazard.right
    ), told
    for one, each in zip(found.tried, hazard.wrong, strict=False):
        assert [part for part in each.reason if part not in reason(one)] == [], reason(one)
    assert found.verdict.holds
    first_right = len(wrong) + 1
    assert [p.chosen.number for p in found.verdict.plan.proposals] == [first_right]
