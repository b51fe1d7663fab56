"""Programs that build on freed graphs: said where the code could not tell at the call that frees, and never of healthy ones."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import gradscope
from gradscope.model import Finding, Severity

OPENING = """\
import torch
from torch import nn
torch.manual_seed(0)
"""

FREED = {
    "retain_graph is computed": (
        """
scores = nn.Sequential(nn.Linear(4, 4), nn.Tanh())(torch.randn(4))  # made
for cls in (1, 3):
    picked = scores[cls] ** 2  # builds
    picked.backward(retain_graph=(cls == 3))
""",
        "retain_graph",
    ),
    "retain_graph comes from a setting": (
        """
keep = False
enc, head = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1)
z = enc(torch.randn(2, 4))  # made
head(z).mean().backward(retain_graph=keep)
loss = z.pow(2).mean()  # builds
loss.backward()
""",
        "retain_graph",
    ),
    "made anew now and then": (
        """
enc, head = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1)
for step in range(4):
    if torch.rand(()).item() < 2 and step % 3 != 1:
        z = enc(torch.randn(2, 4))  # made
    out = head(z)  # builds
    out.mean().backward()
""",
        "detach",
    ),
    "in a method": (
        """
class Trainer:
    def __init__(self):
        self.net, self.keep = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), False
    def fit(self):
        features = self.net(torch.randn(2, 3))  # made
        for k in range(2):
            loss = features.pow(2 + k).mean()  # builds
            loss.backward(retain_graph=self.keep)
Trainer().fit()
""",
        "retain_graph",
    ),
}

CLEAN = {
    "the root of the error is looked at": """
net = nn.Linear(4, 1)
for _ in range(3):
    loss = net(torch.randn(3, 4)).pow(2).mean()
    loss.backward()
    rmse = torch.sqrt(loss)
    print(rmse.item())
""",
    "retain_graph is computed right": """
scores = nn.Sequential(nn.Linear(4, 4), nn.Tanh())(torch.randn(4))
for cls in (1, 2, 3):
    picked = scores[cls] ** 2
    picked.backward(retain_graph=(cls != 3))
""",
    "retain_graph is computed, and the graph is new in each run": """
keep = False
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
for _ in range(4):
    z = net(torch.randn(2, 4))
    z.pow(2).mean().backward(retain_graph=keep)
""",
    "made anew when it was used up": """
enc, head = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1)
used = True
for step in range(6):
    if used or step % 3 == 0:
        z = enc(torch.randn(2, 4))
    out = head(z)
    out.mean().backward()
    used = True
""",
    "detached under a condition": """
cell, h = nn.RNNCell(3, 5), torch.zeros(2, 5)
cut = lambda step: step >= 0
for step in range(4):
    if cut(step):
        h = h.detach()
    h = cell(torch.randn(2, 3), h)
    h.pow(2).mean().backward()
""",
    "compared with the last value under no_grad": """
net, last, keep = nn.Linear(4, 1), None, False
for _ in range(4):
    loss = net(torch.randn(3, 4)).pow(2).mean()
    loss.backward(retain_graph=keep)
    with torch.no_grad():
        drift = loss - last if last is not None else loss
    last = loss
print(drift.item())
""",
    "a smoothed loss for the log": """
net, smooth, keep = nn.Linear(4, 1), 0.0, False
for _ in range(4):
    loss = net(torch.randn(3, 4)).pow(2).mean()
    loss.backward(retain_graph=keep)
    smooth = 0.9 * smooth + 0.1 * loss
    print(f"{smooth:.3f}")
    smooth = smooth.detach()
""",
    "a shared part that saves nothing": """
x, keep = torch.randn(4, requires_grad=True), False
y = x + 1
for _ in range(3):
    loss = y.sum()
    loss.backward(retain_graph=keep)
""",
}


def findings(source: str, folder: Path) -> list[Finding]:
    script = folder / "program.py"
    script.write_text(OPENING + source, encoding="utf-8")
    with gradscope.watch() as scope:
        try:
            runpy.run_path(str(script), run_name="__main__")
        except RuntimeError as error:
            assert "second time" in str(error)
        assert not scope.recording().summary.notes
    return [f for f in scope.findings if f.severity is not Severity.ADVICE and f.code != "GS302"]


@pytest.mark.parametrize(("source", "fix"), FREED.values(), ids=FREED)
def test_it_is_said_where_the_forward_pass_goes_on(source: str, fix: str, tmp_path: Path) -> None:
    found = findings(source, tmp_path)
    assert [f.code for f in found] == ["GS103", "GS101"]
    early, late = found
    assert early.backward_call < late.backward_call
    lines = (OPENING + source).splitlines()
    assert early.site is not None
    assert lines[early.site.line - 1].endswith("# builds")
    by_role = {r.role: r.site for r in early.related if r.site is not None}
    assert lines[by_role["created"].line - 1].endswith("# made")
    assert ".backward(" in lines[by_role["freed_by"].line - 1]
    assert late.site is not None
    assert by_role["next_read"].line == late.site.line
    assert early.fix is not None
    assert early.fix.kind == fix


@pytest.mark.parametrize("source", CLEAN.values(), ids=CLEAN)
def test_a_healthy_program_is_left_in_peace(source: str, tmp_path: Path) -> None:
    assert findings(source, tmp_path) == []
