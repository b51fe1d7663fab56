"""GS302 of holders that are emptied from time to time: what no call has run is a leak, what one has run is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.model import Finding, Severity
from tests.command import gradscope
from tests.rules.saying import findings_of

pytestmark = pytest.mark.usefixtures("little_is_read_ahead")

METRIC = """
import torch
from torch import nn

class Metric:
    def __init__(self):
        self.losses = []
    def reset(self):
        {reset}
    def update(self, loss):
        self.losses.append(loss)

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)

def train(metric, steps):
    metric.reset()
    for step in range(steps):
        loss = net(torch.randn({batch}, 16)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        {update}

def evaluate(metric):
    metric.reset()
    for step in range(32):
        metric.update(net(torch.randn({batch}, 16)).pow(2).mean())

def main():
    training, validation = Metric(), Metric()
    for epoch in range({epochs}):
        {begin}
        train(training, {steps})
        {then}

main()
"""
PLAIN = {
    "reset": "self.losses = []",
    "batch": 8,
    "update": "metric.update(loss)",
    "epochs": 3,
    "begin": "pass",
    "steps": 32,
    "then": "torch.stack(training.losses).mean().item()",
}
AFRESH = "loss = net(torch.randn(8, 16)).pow(2).mean(); metric.update(loss)"


def found_in(folder: Path, **changed: object) -> list[Finding]:
    return leaks_of(METRIC.format(**PLAIN | changed), folder)


def leaks_of(text: str, folder: Path) -> list[Finding]:
    findings, error = findings_of(text, folder)
    assert error == ""
    return [each for each in findings if each.code == "GS302"]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"reset": "self.losses.clear()"},
        {"begin": "training = Metric()"},
        {"steps": 70},
        {"update": AFRESH},
    ],
    ids=["reset", "cleared", "made anew", "longer", "computed after the call"],
)
def test_what_is_kept_until_it_is_emptied_is_told(
    changed: dict[str, object], tmp_path: Path
) -> None:
    (finding,) = found_in(tmp_path, **changed)
    assert finding.message.startswith("`metric.losses` keeps the graphs")
    assert finding.message.endswith("until it is emptied")
    assert finding.severity is Severity.ADVICE
    assert finding.site is not None
    assert finding.site.line == 11
    assert finding.fix is not None
    assert finding.fix.message.startswith("store .detach() or .item() of it at ")
    assert finding.trend is None


def test_it_is_a_warning_where_it_takes_more_than_the_graph_of_a_call(tmp_path: Path) -> None:
    update = AFRESH.replace("8", "256")
    (finding,) = found_in(tmp_path, update=update, batch=256, steps=300)
    assert finding.severity is Severity.WARNING
    # More than the hundred that a look meets.
    assert "at least 256 iterations" in finding.label
    assert finding.bytes > 256 * 256 * 64 * 4


def test_of_what_one_line_fills_the_one_that_holds_the_most_is_named_first(tmp_path: Path) -> None:
    (finding,) = found_in(tmp_path, batch=512, then="evaluate(validation)")
    assert finding.severity is Severity.WARNING
    assert finding.count == 1
    (note,) = finding.related
    assert "this line fills `training.losses`, too" in note.message
    assert finding.bytes > 8 * 512 * 64 * 4


def test_what_an_evaluation_fills_again_and_no_call_runs_is_one(tmp_path: Path) -> None:
    cleared = {"reset": "self.losses.clear()", "update": "metric.update(loss.detach())"}
    (finding,) = found_in(tmp_path, then="evaluate(validation)", **cleared)
    assert finding.message.endswith("until it is emptied")
    assert finding.site is not None
    assert finding.site.line == 11


@pytest.mark.full
def test_an_edit_is_found_that_goes_on_to_work_and_is_followed_only_if_asked_for(
    tmp_path: Path,
) -> None:
    """``torch.stack()`` takes no numbers."""
    (tmp_path / "metric.py").write_text(METRIC.format(**PLAIN), encoding="utf-8")
    how = {"COLUMNS": "200", "GRADSCOPE_NO_REHEARSAL": ""}
    shown = gradscope("fix", "metric.py", cwd=tmp_path, **how).stdout
    assert "advice[GS302]" in shown
    assert "fix: store `loss` detached (tried, ready to apply)" in shown
    assert "followed only if asked for" in shown
    assert "by hand" not in shown
    picked = gradscope("fix", "metric.py", "--finding", "GS302", cwd=tmp_path, **how).stdout
    assert "+        self.losses.append(loss.detach())" in picked


@pytest.mark.parametrize(
    "changed",
    [
        {"update": "metric.update(loss.detach())"},
        {"steps": 10, "epochs": 20},
    ],
    ids=["detached", "ten at a time"],
)
def test_nothing_is_told_of_numbers_and_of_a_few(
    changed: dict[str, object], tmp_path: Path
) -> None:
    assert found_in(tmp_path, **changed) == []


START = """
import torch
from torch import nn
torch.manual_seed(0)
net, critic = nn.Linear(4, 2), nn.Linear(4, 1)
opt = torch.optim.SGD([*net.parameters(), *critic.parameters()], lr=0.01)
class Memory:
    def __init__(self):
        self.kept = []
    def reset(self):
        self.kept = []
memory = Memory()
"""
EPISODES = """
for episode in range(6):
    for t in range(30):
        x = torch.randn(1, 4)
        memory.kept.append(net(x).log_softmax(-1)[0, 0])
        opt.zero_grad()
        (critic(x).pow(2).mean() + net(x).pow(2).mean()).backward()
        opt.step()
    {run}
    memory.reset()
"""
RUN = "loss = -torch.stack(memory.kept).mean(); opt.zero_grad(); loss.backward(); opt.step()"
EMPTIED_FIRST = """
for episode in range(6):
    for t in range(30):
        x = torch.randn(1, 4)
        memory.kept.append(critic(x).mean())
        critic.zero_grad()
        (critic(x).pow(2).mean() + net(x).pow(2).mean()).backward()
        opt.step()
    batch = list(memory.kept)
    memory.kept.clear()
    for part in (batch[:15], batch[15:]):
        critic.zero_grad()
        torch.stack(part).mean().backward()
"""
SEGMENTS = """
cell = nn.RNNCell(4, 4)
h = torch.zeros(1, 4)
for segment in range(5):
    for t in range(20):
        h = cell(torch.randn(1, 4), h)
        memory.kept.append(h.pow(2).mean())
        opt.zero_grad()
        net(h.detach()).mean().backward()
        opt.step()
    sum(memory.kept).backward()
    memory.kept.clear()
    h = h.detach()
"""
WINDOW = """
for step in range(120):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    memory.kept.append(loss)
    if len(memory.kept) > 20:
        memory.kept.pop(0)
"""
MICRO = """
for step in range(12):
    for part in range(16):
        loss = net(torch.randn(8, 4)).pow(2).mean() / 16
        memory.kept.append(loss)
        loss.backward()
    opt.step()
    opt.zero_grad()
    memory.reset()
"""


@pytest.mark.parametrize(
    "body",
    [EPISODES.format(run=RUN), EMPTIED_FIRST, SEGMENTS, WINDOW, MICRO],
    ids=["episodes", "emptied before it is run", "segments", "window", "micro-batches"],
)
def test_what_is_collected_for_a_later_call_is_none(body: str, tmp_path: Path) -> None:
    assert leaks_of(START + body, tmp_path) == []


def test_an_episode_that_no_call_runs_is_one(tmp_path: Path) -> None:
    (finding,) = leaks_of(START + EPISODES.format(run="pass"), tmp_path)
    assert finding.message.startswith("`memory.kept` keeps")
    assert finding.severity is Severity.ADVICE
