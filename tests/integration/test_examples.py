"""The examples: the healthy ones learn, the hazardous ones fail with torch's own error and differ little."""

from __future__ import annotations

import difflib
import subprocess
from pathlib import Path

import pytest

from tests.command import ran
from tests.zygote import python

EXAMPLES = Path(__file__).parents[2] / "examples"
SECOND_TIME = "Trying to backward through the graph a second time"
IN_PLACE = "modified by an inplace operation"
ERRORS = {
    "char_lstm": SECOND_TIME,
    "gan": IN_PLACE,
    "multi_task": SECOND_TIME,
    "actor_critic": SECOND_TIME,
    "transformer": SECOND_TIME,
}


def run(script: Path) -> subprocess.CompletedProcess[str]:
    return ran(python(), script, "--steps", "100")


@pytest.mark.parametrize("name", ERRORS)
def test_healthy_one_trains(name: str) -> None:
    done = run(EXAMPLES / f"{name}.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("step    1 ")
    assert "step  100 " in done.stdout
    assert not done.stderr


@pytest.mark.parametrize("name", ERRORS)
def test_hazardous_one_fails(name: str) -> None:
    done = run(EXAMPLES / f"{name}_hazard.py")
    assert done.returncode == 1
    assert ERRORS[name] in done.stderr
    assert "step  100 " not in done.stdout


@pytest.mark.parametrize("name", ERRORS)
def test_variants_differ_by_the_mistake_only(name: str) -> None:
    healthy = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()
    hazardous = (EXAMPLES / f"{name}_hazard.py").read_text(encoding="utf-8").splitlines()
    changed = [line for line in difflib.ndiff(healthy, hazardous) if line[:2] in ("- ", "+ ")]
    assert 1 <= len(changed) <= 6


def test_all_are_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    assert scripts == {*ERRORS, *(f"{name}_hazard" for name in ERRORS)}
    assert all(f"`{name}.py`" in listed for name in ERRORS)
