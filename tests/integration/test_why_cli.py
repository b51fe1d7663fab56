"""``gradscope why`` from end to end: its text, its JSON and its exit statuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.command import ROOT, gradscope, refused

pytestmark = pytest.mark.full

PAGE = (ROOT / "docs" / "why.md").read_text(encoding="utf-8")
PROGRAM = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
SHOWN = re.findall(r"```console\n\$ [^\n]*\n(.*?)```", PAGE, re.DOTALL)[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "frozen_by_accident.py").write_text(PROGRAM, encoding="utf-8")
    return tmp_path


def test_the_page_shows_what_it_prints(folder: Path) -> None:
    done = gradscope("why", "frozen_by_accident.py", "encoder", cwd=folder)
    assert done.stdout == SHOWN
    assert done.returncode == 1
    assert not done.stderr


def test_a_gradient_arrives(folder: Path) -> None:
    done = gradscope("why", "frozen_by_accident.py", "head.weight", cwd=folder)
    assert done.returncode == 0
    assert "`head.weight` f32[1, 8]: a gradient arrives in 2 of 2 steps" in done.stdout
    assert "●" in done.stdout


def test_signs_have_a_form_in_ascii(folder: Path) -> None:
    done = gradscope(
        "why", "frozen_by_accident.py", "encoder", cwd=folder, PYTHONIOENCODING="ascii"
    )
    assert done.stdout.isascii()
    assert "8<" in done.stdout


def test_a_call_at_a_line_and_json(folder: Path) -> None:
    done = gradscope("why", "frozen_by_accident.py", "--line", "11", cwd=folder)
    assert done.returncode == 0
    assert "it leads to 2 leaves, `head.*`" in done.stdout
    done = gradscope("why", "frozen_by_accident.py", "encoder", "--format", "json", cwd=folder)
    (answer,) = json.loads(done.stdout)["answers"]
    assert answer["state"] == "cut"
    assert answer["parameters"] == ["encoder.weight", "encoder.bias"]
    assert answer["cuts"][0]["reason"] == "detach"
    assert answer["cuts"][0]["location"]["line"] == 8
    assert [row["location"]["line"] for row in answer["way"]] == [9, 8]


def test_a_picture_of_the_way(folder: Path) -> None:
    command = ("why", "frozen_by_accident.py", "encoder", "--picture")
    done = gradscope(*command, "way.dot", cwd=folder)
    assert done.stdout == SHOWN
    assert done.stderr == "picture: way.dot\n"
    assert "✂ cut at line 8: detach" in (folder / "way.dot").read_text(encoding="utf-8")
    done = gradscope(
        *("why", "frozen_by_accident.py", "--line", "11", "--format", "json"),
        *("--picture", "way.svg"),
        cwd=folder,
    )
    assert json.loads(done.stdout)["has_graph"]
    assert (folder / "way.svg").read_bytes().startswith(b"<?xml")
    refused(gradscope(*command, "way.jpg", cwd=folder), "cannot draw to a .jpg")
    refused(gradscope(*command, "nowhere/way.svg", cwd=folder), "cannot write")


def test_a_long_path_does_not_run_over_the_screen(folder: Path) -> None:
    inner = folder / ("a" * 30) / ("b" * 30)
    inner.mkdir(parents=True)
    (inner / "train.py").write_text(PROGRAM, encoding="utf-8")
    done = gradscope("why", str(inner / "train.py"), "encoder", cwd=folder)
    *_, first, second = done.stdout.splitlines()
    assert first.endswith("train.py \\")
    assert second == "      --finding GS502"


GAN = """
import torch
from torch import nn
maker, judge = nn.Linear(4, 2), nn.Linear(2, 1)
m_opt = torch.optim.Adam(maker.parameters())
j_opt = torch.optim.Adam(judge.parameters())
for _ in range(3):
    fake = maker(torch.randn(8, 4))
    j_opt.zero_grad()
    j_loss = judge(fake).exp().mean()
    j_loss.backward()
    j_opt.step()
    m_opt.zero_grad()
    m_loss = judge(fake).exp().mean()
    m_loss.backward()
    m_opt.step()
"""


def asked(folder: Path, program: str, name: str) -> str:
    (folder / "asked.py").write_text(program, encoding="utf-8")
    return " ".join(gradscope("why", "asked.py", name, cwd=folder).stdout.split())


def test_an_optimizer_that_has_not_stepped_is_known(tmp_path: Path) -> None:
    text = asked(tmp_path, GAN, "maker")
    assert "in 1 of 2 calls (1 failed); m_opt has them, and did not step" in text
    assert "j_loss.backward() line 11" in text  # the call that gave one, not the one that failed
    early = GAN.replace("m_opt = torch.optim.Adam(maker.parameters())", "")
    early = early.replace("    j_opt.step()", "    raise ValueError")
    assert "and no optimizer stepped before the run failed" in asked(tmp_path, early, "maker")


def test_the_way_is_that_of_the_gradients_that_the_step_uses(tmp_path: Path) -> None:
    text = asked(tmp_path, GAN.replace("judge(fake)", "judge(fake.detach())", 1), "judge")
    assert "in 2 of 2 steps; j_opt.step() uses them j_loss.backward() line 11" in text


def test_gradients_that_no_step_finds_are_not_used(tmp_path: Path) -> None:
    reset = GAN.replace("judge(fake)", "judge(fake.detach())", 1)
    reset = reset.replace("    j_opt.step()", "    j_opt.zero_grad()\n    j_opt.step()")
    assert "in 0 of 2 steps; j_opt.step() finds none" in asked(tmp_path, reset, "judge")


OWNED = """
import torch
class Trainer:
    def __init__(self):
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
    def step(self):
        self.model(torch.randn(3, 2)).sum().backward()
        self.opt.step()
trainer = Trainer()
for _ in range(3):
    trainer.step()
"""


def test_the_names_that_are_printed_are_taken(tmp_path: Path) -> None:
    text = asked(tmp_path, OWNED, "trainer.model")
    assert "`trainer.*` (4 parameters): a gradient arrives" in text
    assert asked(tmp_path, OWNED, "self.model.*") == text
    assert asked(tmp_path, OWNED, "trainer.*") == text
    refusal = gradscope("why", "asked.py", "self.modle", cwd=tmp_path)
    refused(refusal, "of 4 parameters (trainer.model)")


def test_what_is_not_there(folder: Path) -> None:
    refused(gradscope("why", "frozen_by_accident.py", "encodr", cwd=folder), "did you mean")
    refused(gradscope("why", "frozen_by_accident.py", "--line", "3", cwd=folder), "at line 11")
    refused(gradscope("why", "frozen_by_accident.py", cwd=folder), "--line N")
    refused(gradscope("why", "nothing.py", "encoder", cwd=folder), "there is no script")


def test_a_script_that_fails_first(folder: Path) -> None:
    (folder / "syntax.py").write_text("import torch\nx = (\n", encoding="utf-8")
    says = "syntax.py could not run to a backward call: SyntaxError: '(' was never closed"
    refused(gradscope("why", "syntax.py", "encoder", cwd=folder), says)
    (folder / "late.py").write_text(f"{PROGRAM}\n1 / 0\n", encoding="utf-8")
    done = gradscope("why", "late.py", "encodr", cwd=folder)
    refused(done, "did you mean 'encoder'? (the script ended with ZeroDivisionError: division by")


def test_what_comes_next_has_the_scripts_arguments(folder: Path) -> None:
    words = ("why", "frozen_by_accident.py", "encoder", "--", "--steps", "3")
    done = gradscope(*words, cwd=folder)
    command = "gradscope fix frozen_by_accident.py --finding GS502 -- --steps 3"
    assert done.stdout.endswith(f"\nnext: {command}\n")
