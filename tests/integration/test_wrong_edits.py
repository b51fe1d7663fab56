"""``gradscope fix --verify`` refuses each edit that stops or changes the training, and says what it would do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradscope.commands.fix import fix
from gradscope.errors import GradscopeError
from gradscope.fixing.plan import plan
from gradscope.fixing.runs import Bounds
from gradscope.fixing.verify import Tried, Verification, try_out
from gradscope.model import Edit, Fix, FixKind, Recording, Severity
from gradscope.record.file import load
from gradscope.render.text.verification import why
from gradscope.rules.settings import DEFAULTS
from tests import known
from tests.command import ran
from tests.integration.wrong_edits import HAZARDS, Hazard
from tests.zygote import python

pytestmark = pytest.mark.full


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
    """A recording of a program whose gravest finding has these fixes."""
    file = folder / "train.py"
    file.write_text(program)
    command = [python(), "-m", "gradscope", "run", "--save", "run.gscope", "train.py"]
    done = ran(*command, cwd=folder)
    assert "Traceback" in done.stderr or done.returncode == 0, done.stderr
    recording = load(folder / "run.gscope")
    gravest = min(recording.findings, key=lambda found: found.severity.rank)
    assert gravest.severity is not Severity.ADVICE
    fix, *others = (
        Fix(FixKind.OTHER, f"number {number}", edits(file, each), effects=says)
        for number, each in enumerate(fixes)
    )
    return replace(recording, findings=(replace(gravest, fix=fix, alternatives=tuple(others)),))


def tried(recording: Recording, monkeypatch: pytest.MonkeyPatch, *picks: int) -> Verification:
    monkeypatch.setattr(sys, "executable", python())
    proposed = plan(recording, picks=picks)
    return try_out(proposed, recording.header, Bounds(30, 120), lambda doing: None, picks)


def reason(one: Tried) -> str:
    """Why a candidate is refused, without where the program lies."""
    return " ".join(why(known(one.verdict)).split())


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


def test_what_a_fix_brings_in_does_not_hold_if_it_is_picked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hazard = HAZARDS["peers that zero after each step"]
    recording = recorded(tmp_path, hazard.program, hazard.wrong[0].edit)
    assert not tried(recording, monkeypatch, 1).verdict.holds


Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """``gradscope fix`` on a GAN: its fix 1 stops the generator, fix 2 has no edit, fix 3 is right."""
    gan = HAZARDS["gan"]
    recording = recorded(tmp_path, gan.program, gan.wrong[0].edit, gan.right[0])
    (error,) = recording.findings
    words = Fix(FixKind.RECOMPUTE, "compute it again")
    error = replace(error, alternatives=(words, *error.alternatives))
    recording = replace(recording, findings=(error,))
    monkeypatch.setattr("gradscope.record.processes.load_run", lambda file: recording)
    monkeypatch.setattr(sys, "executable", python())
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)

    def run(**options: Any) -> tuple[int, str]:
        settings = DEFAULTS.overridden(stop_after=8, rehearse=False, **options)
        status = fix(Path("run.gscope"), (), settings)
        return status, capsys.readouterr().out

    return run


def test_the_first_that_holds_is_recommended_and_written(command: Command, tmp_path: Path) -> None:
    status, text = command(write=True)
    assert status == 0, text
    assert "fix 3 (recommended)" in text
    assert "fix 2:" not in text  # the list of all: it was asked to write
    rows = {line.split()[0] for line in text.splitlines() if line.strip()}
    assert {"edit", "failure", "new", "trains", "loss", "memory", "verdict"} <= rows
    assert "not verified: `G.*` would not be trained by `g_loss`" in " ".join(text.split())
    assert text.endswith(f"the fix holds\nwritten: {tmp_path / 'train.py'}\n")
    written = (tmp_path / "train.py").read_text()
    assert "bce(D(fake.detach()), zero)" in written
    assert "bce(D(fake), one)" in written


def test_what_is_picked_is_tried_alone_and_not_written_if_it_does_not_hold(
    command: Command, tmp_path: Path
) -> None:
    status, text = command(write=True, picks=(1,))
    assert status == 1
    assert "+    g_loss = bce(D(fake.detach()), one)" in text
    assert (
        "not verified: `G.*` would not be trained by `g_loss` (train.py:14) any more"
        in " ".join(text.split())
    )
    assert (tmp_path / "train.py").read_text() == HAZARDS["gan"].program


def test_a_pick_is_shown_without_being_tried(command: Command) -> None:
    status, text = command(picks=(3,))
    assert status == 0
    assert "+    d_loss = bce(D(torch.randn(8, 4) + 3), one) + bce(D(fake.detach()), zero)" in text
    assert text.endswith("--pick 3 --verify\n      gradscope fix run.gscope --pick 3 --write\n")


def test_a_pick_that_cannot_be_is_refused_in_a_sentence(command: Command) -> None:
    with pytest.raises(GradscopeError, match=r"^there is no fix 9: choose one of 1, 2, 3$"):
        command(picks=(9,), verify=True)
    with pytest.raises(GradscopeError, match="pick one fix for a finding, not two"):
        command(picks=(1, 3))
    status, text = command(picks=(2,), verify=True)
    assert status == 1
    assert text.endswith("nothing to try out: fix 2 has no edit that can be applied\n")
