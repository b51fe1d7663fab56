"""What happens first when the program has long been the same from call to call is told early, by whatever counts to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.detect.lookahead import Schedule
from tests.command import ran_well
from tests.property.ahead import Told, told_of
from tests.zygote import python

HEAD = """
import torch
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.01)

def draw():
    return torch.randn(16, 4)

def train(loss):
    opt.zero_grad()
    loss.backward()
    opt.step()
"""

PROGRAMS = {
    "an attribute counts": """
@dataclass
class Clock:
    now: int = 0
clock = Clock()
level = None
for _ in range(400):
    loss = net(draw()).square().mean()
    if clock.now >= 50:
        level = loss if level is None else 0.9 * level + 0.1 * loss
        loss = level
    train(loss)
    clock.now += 1
""",
    "a while loop counts": """
def main(until=300, start=70):
    step, carried = 0, 0.0
    while step < until:
        loss = net(draw()).square().mean() + carried
        train(loss)
        step += 1
        if step > start:
            carried = 0.1 * loss
main()
""",
    "a method says that it is due": """
class Every:
    def __init__(self, n):
        self.n = n
    def due(self, step):
        return step % self.n == self.n - 1
def main():
    every = Every(60)
    for step, x in enumerate(draw() for _ in range(300)):
        loss = net(x).square().mean()
        train(loss)
        if every.due(step):
            penalty = loss * 2
            penalty.backward()
main()
""",
    "a list is full": """
def main():
    memory = []
    for _ in range(300):
        loss = net(draw()).square().mean()
        if len(memory) >= 64:
            loss = loss + memory[0]
        train(loss)
        memory.append(loss if len(memory) % 64 == 63 else loss.detach())
        if len(memory) > 64:
            memory.pop(0)
main()
""",
    "a set of iterations": """
MILESTONES = {40, 90}
def main():
    kept = torch.tensor(0.0)
    for i in range(200):
        loss = net(draw()).square().mean() + kept
        if i in MILESTONES:
            kept = loss
        train(loss)
main()
""",
    "something counts down": """
def main():
    run = SimpleNamespace(warmup=45, state=None)
    for x in (draw() for _ in range(200)):
        if run.warmup:
            run.warmup -= 1
            loss = net(x).square().mean()
        else:
            y = net(x).mean()
            run.state = y if run.state is None else torch.tanh(run.state + y)
            loss = run.state.square()
        train(loss)
main()
""",
    "an item counts": """
state = {"step": 0, "trace": None}
def update(x):
    loss = net(x).square().mean()
    if state["step"] == 33 or state["trace"] is not None:
        loss = loss + (0 if state["trace"] is None else state["trace"])
        state["trace"] = loss
    train(loss)
    state["step"] += 1
for _ in range(200):
    update(draw())
""",
    "a change in place begins": """
steps = count()
def main():
    for _ in range(200):
        h = torch.sigmoid(net(draw()))
        if next(steps) >= 55:
            h.mul_(0.5)
        loss = h.sum()
        train(loss)
main()
""",
    "epochs": """
def epoch(number, batches):
    total = 0.0
    for x in batches:
        loss = net(x).square().mean()
        train(loss)
        total = total + (loss if number > 3 else loss.item())
    return total
for number in range(8):
    total = epoch(number, [draw() for _ in range(20)])
    if number > 3:
        train(total / 20)
""",
    "a default says when": """
def penalty(losses, step, *, begins=80):
    if step < begins:
        return None
    return torch.stack(losses).var()
def main():
    for step in range(160):
        opt.zero_grad()
        losses = []
        for _ in range(3):
            loss = net(draw()).square().mean()
            loss.backward()
            losses.append(loss)
        extra = penalty(losses, step)
        if extra is not None:
            extra.backward()
        opt.step()
main()
""",
}


@pytest.mark.full(but=3)
@pytest.mark.parametrize("body", PROGRAMS.values(), ids=PROGRAMS)
def test_what_begins_late_is_told_early(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To read on through the frames of pytest takes longer than looks are given.
    monkeypatch.setattr(Schedule, "has_time", lambda *_: True)
    program = tmp_path / "program.py"
    program.write_text(HEAD + body)
    assert told_of(program) is Told.EARLY


def test_what_was_seen_to_come_again_and_again_is_not_looked_at_any_more(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        HEAD
        + """
import gradscope
from gradscope.detect.lookahead import Schedule
Schedule.has_time = lambda *_: True  # however long the looks take on a busy machine
shown = []
with gradscope.watch() as scope:
    for step in map(int, range(400)):  # of which it is not known how many are left
        loss = net(draw()).square().mean()
        train(loss)
        if step % 10 == 9:
            shown.append(loss.item())
    state = scope._session.state
    assert state.suspension.on
    print(state.alarms.values())
"""
    )
    assert ran_well(python(), str(program)).stdout == "dict_values([range(0, 0)])\n"
