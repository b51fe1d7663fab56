"""Output that cannot be written: one clear line, the right exit status, and nothing for the program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.zygote import python

ROOT = Path(__file__).parents[2]
FULL = Path("/dev/full")
NO_SPACE = "cannot write {}: No space left on device"

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")

TWICE = """
import sys
import torch

weight = torch.ones(3, requires_grad=True)
loss = (weight * weight).sum()
loss.backward()
try:
    loss.backward()
except RuntimeError as error:
    print("torch's own" if "a second time" in str(error) else repr(error))
sys.exit(int(sys.argv[1]))
"""

RUNS_EXIT_FUNCTIONS = """
import atexit
import torch

weight = torch.ones(3, requires_grad=True)
(weight * weight).sum().backward()
atexit._run_exitfuncs()
(weight * weight).sum().backward()
print("done")
"""


def gradscope(*args: str) -> subprocess.CompletedProcess[str]:
    command = [python(), "-m", "gradscope", *args]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize(("own", "status"), [(0, 2), (7, 7)])
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_report_that_cannot_be_written(form: str, own: int, status: int, tmp_path: Path) -> None:
    script = tmp_path / "twice.py"
    script.write_text(TWICE)
    ran = gradscope("run", "--format", form, "--output", str(FULL), str(script), str(own))
    assert ran.stdout == "torch's own\n"
    assert ran.returncode == status
    assert ran.stderr == f"gradscope: {NO_SPACE.format(FULL)}; name another file with --output\n"


@pytest.mark.parametrize("args", [("explain", "GS101"), ("rules",), ("--help",)])
def test_a_full_standard_output(args: tuple[str, ...]) -> None:
    with FULL.open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "gradscope", *args],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            check=False,
        )
    assert ran.stderr == f"gradscope: {NO_SPACE.format('the output')}\n"
    assert ran.returncode == 2


def test_a_program_that_runs_its_exit_functions(tmp_path: Path) -> None:
    script, saved = tmp_path / "exits.py", tmp_path / "run.gscope"
    script.write_text(RUNS_EXIT_FUNCTIONS)
    ran = gradscope("run", "--save", str(saved), str(script))
    assert (ran.stdout, ran.returncode) == ("done\n", 0), ran.stderr
    assert "2 backward calls" in gradscope("report", str(saved)).stdout
