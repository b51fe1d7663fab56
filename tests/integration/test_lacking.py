"""gradscope works, and says what it cannot do, where Python has only what it has on every system."""

from __future__ import annotations

from pathlib import Path

from tests.command import CAUGHT, ROOT, ran
from tests.zygote import python

TWICE = """
import torch

weight = torch.ones(3, requires_grad=True)
shared = weight.exp()
first, second = shared.sum(), shared.square().sum()
first.backward()
second.backward()
"""


def gradscope(folder: Path, *words: str) -> tuple[int, str]:
    here = python(), ROOT / "tests/lacking.py"
    done = ran(*here, *words, cwd=folder, GRADSCOPE_NO_REHEARSAL="0")
    assert "Traceback" not in done.stderr, done.stderr
    assert "failed" not in done.stderr.replace("the fix failed", "")
    return done.returncode, done.stdout + done.stderr


def test_a_run_is_recorded_shown_drawn_and_mended(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CAUGHT, encoding="utf-8")
    status, told = gradscope(
        tmp_path, "run", "--save=run.gscope", "--html=run.html", "--metrics=m.prom", "train.py"
    )
    assert status == 1
    assert "error[GS101]" in told
    assert (tmp_path / "run.html").stat().st_size > 10_000
    assert "# EOF" in (tmp_path / "m.prom").read_text()
    assert "error[GS101]" in gradscope(tmp_path, "report", "run.gscope")[1]
    assert "2 backward calls" in gradscope(tmp_path, "top", "run.gscope")[1]
    assert gradscope(tmp_path, "draw", "run.gscope", "-o", "graph.svg")[0] == 0
    (tmp_path / "twice.py").write_text(TWICE, encoding="utf-8")
    assert "the fix holds" in gradscope(tmp_path, "fix", "--verify", "twice.py")[1]


def test_without_a_name_it_is_recorded_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CAUGHT, encoding="utf-8")
    status, told = gradscope(tmp_path, "run", "--no-rehearsal", "train.py")
    assert status == 1
    assert "error[GS101]" in told
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
