"""Output that cannot be written: one clear line, the right exit status, and nothing for the program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import CAUGHT, ROOT, gradscope

FULL = Path("/dev/full")
NO_SPACE = "cannot write {}: No space left on device"

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")

RUNS_EXIT_FUNCTIONS = """
import atexit
import torch

weight = torch.ones(3, requires_grad=True)
(weight * weight).sum().backward()
atexit._run_exitfuncs()
(weight * weight).sum().backward()
print("done")
"""


@pytest.mark.parametrize(("own", "status"), [(0, 2), (7, 7)])
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_report_that_cannot_be_written(form: str, own: int, status: int, tmp_path: Path) -> None:
    script = tmp_path / "twice.py"
    script.write_text(f"{CAUGHT}\nimport sys\nsys.exit(int(sys.argv[1]))")
    ran = gradscope("run", "--format", form, "--output", str(FULL), str(script), str(own))
    assert ran.stdout == "RuntimeError\n"
    assert ran.returncode == status
    report, _, said = ran.stderr.removesuffix("\n").rpartition("\n")
    assert said == f"gradscope: {NO_SPACE.format(FULL)}; name another file with --output"
    if form == "json":
        assert json.loads(report)["summary"]["backward_calls"] == 2
    else:
        assert report.count("error[GS101]") == 1
        assert "in 2 backward calls" in report


LOSES_STDERR = CAUGHT.replace("loss.backward()", "import os, sys\n{}\nloss.backward()", 1)


@pytest.mark.full(but=3)
@pytest.mark.parametrize(
    ("how", "place"),
    [
        ("sys.stderr.close()", "stderr"),
        ("sys.stderr = None", "stderr"),
        ("sys.stderr.detach()", "stderr"),
        ("os.close(2)", "file"),
        ("os.close(2); kept = open('own', 'w')", "file"),  # which gets the number 2
        ("log = open('own', 'w'); os.dup2(log.fileno(), 2)", "own"),
    ],
)
def test_a_report_is_where_it_can_be_read(how: str, place: str, tmp_path: Path) -> None:
    """Where the program has closed stderr, that is a file: of the program's own files, none."""
    script = tmp_path / "loses.py"
    script.write_text(LOSES_STDERR.format(how))
    ran = gradscope("run", str(script), cwd=tmp_path)
    assert ran.stdout == "RuntimeError\n"
    found = {
        "stderr": ran.stderr,
        "own": "".join(file.read_text() for file in tmp_path.glob("own")),
        "file": "".join(file.read_text() for file in tmp_path.glob("gradscope-report-*.txt")),
    }
    assert [name for name, text in found.items() if text] == [place]
    assert found[place].count("error[GS101]") in (1, 2)
    assert "in 2 backward calls" in found[place]
    assert ran.returncode == (2 if place == "file" else 1)


CAPTURES = """
import os, torch

weight = torch.ones(3, requires_grad=True)
loss = (weight * weight).sum()
kept, (reads, writes) = os.dup(2), os.pipe()
os.dup2(writes, 2)
loss.backward()
try:
    loss.backward()
except RuntimeError:
    pass
os.dup2(kept, 2)
os.close(writes)
print("captured", os.read(reads, 1000))
"""


def test_what_the_program_captures_is_its_own(tmp_path: Path) -> None:
    """As pytest's `capfd` does, and whoever wants to know what C code prints."""
    script = tmp_path / "captures.py"
    script.write_text(CAPTURES)
    ran = gradscope("run", str(script))
    assert (ran.stdout, ran.returncode) == ("captured b''\n", 1)
    assert ran.stderr.count("error[GS101]") == 1
    assert "1 error, 1 warning in 2 backward calls" in ran.stderr


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
