"""What has become of a prediction: it came true, or it is withdrawn, shown, and does not count."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import gradscope
from gradscope.model import Severity
from gradscope.record.file import load
from gradscope.render.html import page_data
from tests import command

FAILS = """
import torch
w = torch.randn(4, requires_grad=True)
shared = w.exp()
for i in range(3):
    (shared * 2).pow(2).sum().backward()
"""

ENDS = """
import re
import torch
w = torch.randn(4, requires_grad=True)
shared = w.exp()
def stop():
    raise {ending}
for i in range(3):
    loss = (shared * 2).pow(2).sum()
    loss.backward()
    re.sub("x", lambda _: stop(), "x")
"""


UNREAD = """
import types
import torch
w = torch.randn(4, requires_grad=True)
state = types.MappingProxyType({"h": w})
for i in range(2):
    h = state["h"].exp()
    state = types.MappingProxyType({"h": h})
    h.sum().backward()
"""


def run(folder: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(code)
    return command.gradscope("run", *options, script, cwd=folder)


def report(folder: Path, code: str, *options: str) -> dict[str, Any]:
    file = folder / "report.json"
    run(folder, code, "--format", "json", "--output", str(file), *options)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_a_prediction_that_came_true_is_counted(tmp_path: Path) -> None:
    found = report(tmp_path, FAILS)
    assert (found["summary"]["predicted"], found["summary"]["came_true"]) == (1, 1)
    assert [f["came_true"] for f in found["findings"]] == [True, False]
    assert {f["withdrawn"] for f in found["findings"]} == {""}
    shown = run(tmp_path, FAILS, "--verbose").stderr
    assert "predicted 1, came true 1" in shown
    assert "withdrawn" not in shown


@pytest.mark.parametrize(
    ("ending", "why"),
    [
        ("SystemExit(0)", "the program ended before that backward call"),
        ("ValueError('late')", "the program ended with ValueError before that backward call"),
    ],
)
def test_a_prediction_that_did_not_come_true_is_withdrawn(
    ending: str, why: str, tmp_path: Path
) -> None:
    code = ENDS.format(ending=ending)
    found = report(tmp_path, code)
    assert (found["summary"]["predicted"], found["summary"]["came_true"]) == (1, 0)
    assert [(f["code"], f["withdrawn"]) for f in found["findings"]] == [("GS102", why)]
    shown = run(tmp_path, code, "--verbose", "--save", "run.gradscope").stderr
    assert "predicted 1, came true 0" in shown
    assert "1 prediction withdrawn in 1 backward call" in shown
    assert "1 warning" not in shown
    again = command.gradscope("report", "run.gradscope", cwd=tmp_path)
    assert f"withdrawn: {why}" in " ".join(again.stdout.split())
    page: Any = page_data(load(tmp_path / "run.gradscope"), ())
    assert "warning" not in page["verdict"]["headline"]
    assert page["findings"][0]["withdrawn"] == why
    assert (page["summary"]["predicted"], page["summary"]["came_true"]) == (1, 0)


def test_a_withdrawn_prediction_does_not_fail_the_run(tmp_path: Path) -> None:
    code = ENDS.format(ending="SystemExit(0)")
    assert run(tmp_path, code, "--fail-on", "warning").returncode == 0
    assert run(tmp_path, FAILS, "--fail-on", "warning").returncode == 1


def test_a_prediction_stands_where_the_run_was_stopped(tmp_path: Path) -> None:
    found = report(tmp_path, FAILS, "--stop-after", "1")
    assert (found["summary"]["predicted"], found["summary"]["came_true"]) == (1, 0)
    assert [(f["code"], f["withdrawn"]) for f in found["findings"]] == [("GS102", "")]
    assert run(tmp_path, FAILS, "--stop-after", "1", "--fail-on", "warning").returncode == 1


def test_a_prediction_stands_where_only_the_watch_ended() -> None:
    import torch

    shared = torch.ones(2, requires_grad=True).exp()
    scopes: list[gradscope.Scope] = []

    def train() -> None:
        for _ in range(2):
            with gradscope.watch() as scope:
                scopes.append(scope)
                shared.pow(2).sum().backward()

    with pytest.raises(RuntimeError, match="second time"):
        train()
    first = scopes[0]
    assert [f.severity for f in first.findings] == [Severity.WARNING]
    assert not first.findings[0].withdrawn
    assert (first.summary.predicted, first.summary.came_true) == (1, 0)


def test_what_could_not_be_read_is_counted_by_its_reason(tmp_path: Path) -> None:
    said = run(tmp_path, UNREAD, "--format", "json", "--output", "report.json")
    assert said.returncode == 1
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["summary"]["unread"] == {"a mappingproxy": 1}
