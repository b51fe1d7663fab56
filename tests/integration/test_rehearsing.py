"""A program is rehearsed and its fixes are tried, and nothing outside is changed by it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command import gradscope

CASES = Path(__file__).parents[1] / "cases"

GAN = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)
G, D = torch.nn.Linear(4, 6), torch.nn.Linear(6, 1)
steps_g, steps_d = (torch.optim.SGD(net.parameters(), 0.1) for net in (G, D))
one, zero = torch.ones(8, 1), torch.zeros(8, 1)
bce = F.binary_cross_entropy_with_logits

for _ in range(3):
    fake = G(torch.randn(8, 4))
    pred = D(fake)
    d_loss = bce(D(torch.randn(8, 6)), one) + bce(pred, zero)
    steps_d.zero_grad()
    d_loss.backward()
    steps_d.step()
    g_loss = bce(pred, one)
    steps_g.zero_grad()
    g_loss.backward()
    steps_g.step()
print("trained")
"""

CLOSURE = """
import torch

torch.manual_seed(0)

def world(policy):
    place, speed = torch.zeros(1), torch.ones(1)

    def advance(n):
        nonlocal place, speed
        cost = 0.0
        for _ in range(n):
            speed = speed + 0.1 * policy(torch.cat([place, speed]))
            place = place + 0.1 * speed
            cost = cost + place.square().sum()
        return cost

    return advance

policy = torch.nn.Linear(2, 1)
advance = world(policy)
opt = torch.optim.SGD(policy.parameters(), 0.1)
for window in range(3):
    cost = advance(4)
    opt.zero_grad()
    cost.backward()
    opt.step()
"""

WRITES = """
import torch

with open("log.txt", "a") as log:
    log.write("began\\n")
weight = torch.ones(3, requires_grad=True)
loss = (weight * weight).sum()
loss.backward()
loss.backward()
"""


def _ran(program: str, folder: Path, *options: str) -> dict[str, Any]:
    (folder / "train.py").write_text(program)
    report = folder / "report.json"
    gradscope(
        *("run", "--format", "json", "--output", str(report), *options, "train.py"),
        cwd=folder,
        executable=sys.executable,
        GRADSCOPE_NO_REHEARSAL="",
    )
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def _edited(report: dict[str, Any], folder: Path) -> str:
    """Return the program with the first fix of its first finding."""
    lines = (folder / "train.py").read_text().split("\n")
    fix = report["findings"][0]["fix"]
    for edit in sorted(fix["edits"], key=lambda each: -each["line"]):
        last = edit.get("end_line") or edit["line"]
        lines[edit["line"] - 1 : last] = [edit["replacement"]]
    return "\n".join(lines)


@pytest.mark.full
@pytest.mark.parametrize(
    "number", ["002", "007", "012", "014", "023", "031", "036", "038", "040", "061", "066", "074"]
)
def test_what_is_called_safe_runs_to_its_end(number: str, tmp_path: Path) -> None:
    (case,) = CASES.glob(f"{number}_*.py")
    report = _ran(case.read_text(), tmp_path)
    fix = report["findings"][0]["fix"]
    assert fix["edits"]
    assert fix["applicability"] == "machine-applicable"
    (tmp_path / "mended.py").write_text(_edited(report, tmp_path))
    done = subprocess.run(
        [sys.executable, str(tmp_path / "mended.py")], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_gan_gets_its_pair_of_edits(tmp_path: Path) -> None:
    report = _ran(GAN, tmp_path)
    mended = _edited(report, tmp_path)
    assert "pred = D(fake.detach())" in mended
    assert "    pred = D(fake)\n    g_loss = bce(pred, one)" in mended
    assert report["findings"][0]["fix"]["applicability"] == "machine-applicable"


def test_the_state_of_a_closure_is_cut_between_windows_alone(tmp_path: Path) -> None:
    mended = _edited(_ran(CLOSURE, tmp_path), tmp_path)
    begin = mended.index("nonlocal place, speed")
    between = mended[begin : mended.index("for _ in range(n)")]
    assert "place = place.detach()" in between
    assert "speed = speed.detach()" in between
    assert mended.count(".detach()") == 2
    done = subprocess.run([sys.executable, "-c", mended], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_is_written_a_second_time(tmp_path: Path) -> None:
    report = _ran(WRITES, tmp_path)
    assert (tmp_path / "log.txt").read_text() == "began\n"
    assert {each["code"] for each in report["findings"]} == {"GS101", "GS102"}


@pytest.mark.full
def test_a_rehearsal_can_be_left_out(tmp_path: Path) -> None:
    report = _ran(GAN, tmp_path, "--no-rehearsal")
    assert "D(fake.detach())" not in _edited(report, tmp_path)


@pytest.mark.full
def test_a_script_can_be_named_in_place_of_a_recording(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GAN)
    done = gradscope(
        *("fix", "train.py"), cwd=tmp_path, executable=sys.executable, GRADSCOPE_NO_REHEARSAL=""
    )
    assert done.returncode == 0, done.stderr
    assert "+    pred = D(fake.detach())" in done.stdout
    assert (tmp_path / "train.py").read_text() == GAN
