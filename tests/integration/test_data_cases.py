"""Programs that write to tensors through ``.data``: told where the engine computes a wrong gradient, and never where it is right."""

from __future__ import annotations

import linecache
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gradscope
from gradscope.model import Certainty, Finding, Severity

OPENING = """\
import torch
from torch import nn
torch.manual_seed(0)
"""

WRONG = {
    "parameters, in a loop of training": (
        """
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
for i in range(4):
    loss = net(torch.randn(2, 4)).pow(2).mean()  # saved
    for p in net.parameters():
        p.data -= 0.1  # changed
    loss.backward()
""",
        "reorder",
    ),
    "a parameter that is given other memory": (
        """
w = nn.Parameter(torch.rand(4))
for i in range(3):
    x = torch.randn(4, requires_grad=True)
    loss = (x * w).sum()  # saved
    w.data = w.data * 0.5  # changed
    loss.backward()
""",
        "reorder",
    ),
    "by way of a variable": (
        """
net = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 1))
def decay():
    for p in net.parameters():
        d = p.data
        if d.dim() > 1:
            d.mul_(0.9)  # changed
for i in range(3):
    loss = net(torch.randn(2, 4)).mean()  # saved
    decay()
    loss.backward()
""",
        "reorder",
    ),
    "a function of nn.init, on some parameters": (
        """
def reset(net):
    for name, p in net.named_parameters():
        if name.endswith("weight"):
            nn.init.normal_(p.data)  # changed
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
loss = net(torch.randn(2, 4)).mean()  # saved
reset(net)
loss.backward()
""",
        "reorder",
    ),
    "a function that is handed the memory": (
        """
def halve(t):
    t.mul_(0.5)  # changed
    return t
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
loss = net(torch.randn(2, 4)).mean()  # saved
halve(net[2].weight.data)
loss.backward()
""",
        "reorder",
    ),
    "one element of one of several": (
        """
ws = [torch.rand(3, requires_grad=True) for _ in range(3)]
loss = (ws[0] * ws[1] * ws[2]).sum()  # saved
for i in range(2, 3):
    ws[i].data[0] = 5.0  # changed
loss.backward()
""",
        "reorder",
    ),
    "a loop on one line": (
        """
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
loss = net(torch.randn(2, 4)).mean()  # saved
for p in net.parameters(): p.data -= 0.1  # changed
loss.backward()
""",
        "reorder",
    ),
    "in a comprehension, and of what a call returns": (
        """
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
for _ in range(2):
    loss = net(torch.randn(2, 4)).mean()  # saved
    [list(m.parameters())[0].data.mul_(0.9) for m in net if hasattr(m, "weight")]  # changed
    loss.backward()
""",
        "reorder",
    ),
    "a list of .data, changed elsewhere": (
        """
def shrink(tensors):
    for t in tensors:
        t *= 0.5  # changed
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
flat = [p.data for p in net.parameters()]
for _ in range(2):
    loss = net(torch.randn(2, 4)).mean()  # saved
    shrink(flat)
    loss.backward()
""",
        "reorder",
    ),
    "an optimizer of the program's own": (
        """
class Descent(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data.add_(p.grad.data, alpha=-group["lr"])  # changed
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = Descent(net.parameters())
first, second = net(torch.randn(2, 4)).mean(), net(torch.randn(2, 4)).pow(2).mean()  # saved
first.backward()
optimizer.step()
second.backward()
""",
        "reorder",
    ),
    "steps by hand on a graph that is kept": (
        """
net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
loss = net(torch.randn(4, 3)).pow(2).mean()  # saved
for i in range(3):
    loss.backward(retain_graph=True)
    for p in net.parameters():
        p.data.sub_(0.1 * p.grad)  # changed
""",
        "reorder",
    ),
    "a step by hand between the calls of two losses": (
        """
critic, actor = nn.Linear(4, 1), nn.Linear(3, 4)
for i in range(3):
    critic_loss = critic(torch.randn(5, 4)).pow(2).mean()
    actor_loss = -critic(torch.tanh(actor(torch.randn(5, 3)))).mean()  # saved
    critic_loss.backward()
    for p in critic.parameters():
        p.data.add_(  # changed
            p.grad,
            alpha=-0.1,
        )
    actor_loss.backward()
""",
        "reorder",
    ),
    "an activation": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
    def forward(self, x):
        h = torch.sigmoid(self.body(x))  # saved
        h.data.clamp_(0.4, 0.6)  # changed
        return self.head(h)
net = Net()
for _ in range(2):
    loss = net(torch.randn(3, 4)).mean()
    loss.backward()
""",
        "reorder",
    ),
    "a running statistic": (
        """
class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("scale", torch.ones(3))
    def forward(self, x):
        y = self.lin(x) * self.scale  # saved
        self.scale.data.mul_(0.9).add_(y.data.mean(0), alpha=0.1)  # changed
        return y
net = Scale()
for _ in range(3):
    loss = net(torch.randn(2, 3)).pow(2).mean()
    loss.backward()
""",
        "clone",
    ),
    "weights clipped between the calls of two losses": (
        """
made, critic = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
class Trainer:
    def clip(self):
        for p in critic.parameters():
            p.data.clamp_(-0.05, 0.05)  # changed
    def step(self):
        fake = made(torch.randn(5, 2))
        self.loss = -critic(fake).mean()  # saved
        loss = critic(fake.detach()).mean() - critic(torch.randn(5, 3)).mean()
        loss.backward()
        self.clip()
        self.loss.backward()
trainer = Trainer()
for _ in range(3):
    trainer.step()
""",
        "reorder",
    ),
    "a buffer that takes in the next batch": (
        """
w, batch = torch.randn(3, requires_grad=True), torch.ones(3)
for _ in range(3):
    loss = (w * batch).sum()  # saved
    batch.data.copy_(torch.randn(3))  # changed
    loss.backward()
""",
        "clone",
    ),
    "spectral normalisation by hand, two passes": (
        """
class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4))
        self.u, self.v = (nn.Parameter(torch.randn(4), requires_grad=False) for _ in range(2))
    def forward(self, x):
        self.v.data = nn.functional.normalize(self.w.data.t() @ self.u.data, dim=0)  # changed
        self.u.data = nn.functional.normalize(self.w.data @ self.v.data, dim=0)
        sigma = self.u.dot(self.w.mv(self.v))  # saved
        return x @ (self.w / sigma)
critic = Spectral()
for _ in range(3):
    real = critic(torch.randn(3, 4)).mean()
    fake = critic(torch.randn(3, 4)).mean()
    (fake - real).backward()
""",
        None,
    ),
}
"""Each with the kind of its fix; comments mark the lines."""

RIGHT = {
    "weights clipped after the call, and steps by hand": """
critic = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
for _ in range(3):
    loss = critic(torch.randn(3, 4)).mean()
    critic.zero_grad()
    loss.backward()
    for p in critic.parameters():
        p.data -= 0.1 * p.grad.data
        p.data.clamp_(-0.1, 0.1)
""",
    "an average of weights and a copy of them, for a target": """
net, ema, target = (nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(3))
for step in range(4):
    x = torch.randn(3, 4)
    wanted = target(x).detach() + ema(x).detach()
    loss = (net(x) - wanted).pow(2).mean()
    for e, t, p in zip(ema.parameters(), target.parameters(), net.parameters()):
        e.data.mul_(0.9).add_(p.data, alpha=0.1)
        if step % 2:
            t.data.copy_(p.data)
    net.zero_grad()
    loss.backward()
    for p in net.parameters():
        p.data.add_(p.grad, alpha=-0.1)
""",
    "a graph of the target that nobody runs": """
net, target = (nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(2))
for step in range(3):
    x = torch.randn(3, 4)
    wanted = target(x)
    for t, p in zip(target.parameters(), net.parameters()):
        t.data.copy_(0.5 * t.data + 0.5 * p.data)
    loss = (net(x) - wanted.detach()).pow(2).mean()
    loss.backward()
""",
    "two nets in turn, the critic's weights clipped": """
made = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
critic = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
opt_m, opt_c = torch.optim.RMSprop(made.parameters()), torch.optim.RMSprop(critic.parameters())
for epoch in range(3):
    for p in critic.parameters():
        p.requires_grad = True
    for _ in range(2):
        fake = made(torch.randn(5, 2))
        for p in critic.parameters():
            p.data.clamp_(-0.3, 0.3)
        opt_c.zero_grad()
        loss_real = critic(torch.randn(5, 3)).mean()
        loss_real.backward()
        loss_fake = -critic(fake.detach()).mean()
        loss_fake.backward()
        opt_c.step()
    for p in critic.parameters():
        p.requires_grad = False
    opt_m.zero_grad()
    loss = critic(made(torch.randn(5, 2))).mean()
    loss.backward()
    opt_m.step()
    print(f"{loss.data.item():.1f}")
""",
    "what no graph has saved": """
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
for _ in range(3):
    loss = net(torch.randn(2, 4)).mean()
    net[0].weight.data -= 0.1
    net[0].bias.data.zero_()
    net[2].bias.data.add_(1.0)
    loss.backward()
""",
    "weights given other memory, the graph has the old": """
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
for _ in range(3):
    loss = net(torch.randn(2, 4)).mean()
    for p in net.parameters():
        p.data = p.data - 0.1
    loss.backward()
""",
    "clipped where nothing is over the limit, or to what it was": """
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
for _ in range(3):
    kept = [p.data.clone() for p in net.parameters()]
    loss = net(torch.randn(2, 4)).mean()
    for p, k in zip(net.parameters(), kept):
        p.data.clamp_(-100, 100)
        p.data.copy_(k)
    loss.backward()
""",
    "only the sign of what was saved is asked for": """
w = torch.randn(5, 4, requires_grad=True)
for _ in range(3):
    h = torch.relu(torch.randn(3, 5) @ w)
    h.data.mul_(2)
    loss = h.sum()
    loss.backward()
""",
    "computed again after the write": """
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
for _ in range(3):
    x = torch.randn(2, 4)
    loss = net(x).mean()
    for p in net.parameters():
        p.data.add_(0.01 * torch.randn_like(p))
    loss = net(x).mean()
    loss.backward()
""",
    "binary weights in the passes, the real ones restored for the step": """
net = nn.Sequential(nn.Linear(4, 4), nn.Hardtanh(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
real = [p.data.clone() for p in net.parameters()]
for _ in range(3):
    for p, r in zip(net.parameters(), real):
        r.copy_(p.data)
        p.data.sign_()
    loss = net(torch.randn(2, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    for p, r in zip(net.parameters(), real):
        p.data.copy_(r)
    optimizer.step()
""",
    "read only, and copies written": """
net, total = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), 0.0
for _ in range(3):
    out = net(torch.randn(2, 4))
    shown = net[2].weight.data.clone()
    shown.mul_(100)
    best = out.data.max(0)[1]
    best.add_(1)
    total += out.data.abs().sum().item()
    loss = out.pow(2).mean()
    loss.backward()
""",
    "another part of the memory": """
flat = nn.Parameter(torch.rand(4, 6))
for _ in range(3):
    x = torch.randn(4, requires_grad=True)
    loss = (x * flat[:, 1]).sum() + (flat[1] * flat[0]).sum()
    flat.data[2:, 2:] = 7.0
    flat.data[2:, 0].zero_()
    loss.backward()
""",
    "one pass in an evaluation that keeps its graph": """
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
score = net(torch.randn(8, 4)).mean()
for _ in range(3):
    for p in net.parameters():
        p.data.mul_(0.99)
    loss = net(torch.randn(2, 4)).mean()
    loss.backward()
print(f"{score.item():.1f}")
""",
}


def results(program: Callable[[], dict[str, Any]]) -> list[torch.Tensor]:
    """The values and gradients of all leaves and modules that a program leaves behind."""
    torch.manual_seed(0)
    variables = program()
    found: list[torch.Tensor] = []
    for value in variables.values():
        if isinstance(value, torch.nn.Module):
            found += value.state_dict().values()
            found += (p.grad for p in value.parameters() if p.grad is not None)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, torch.Tensor) and each.is_leaf and each.requires_grad:
                found += [each.detach()] + ([each.grad] if each.grad is not None else [])
    return found


def is_right(path: Path) -> bool:
    """Whether the engine computes what it would had nobody been able to change what the graphs saved."""

    def run() -> dict[str, Any]:
        return runpy.run_path(str(path), run_name="__main__")

    def run_with_copies() -> dict[str, Any]:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
            return run()

    plain, copied = results(run), results(run_with_copies)
    assert plain
    return len(plain) == len(copied) and all(map(torch.equal, plain, copied))


def written(source: str, folder: Path) -> Path:
    script = folder / "program.py"
    script.write_text(source, encoding="utf-8")
    linecache.checkcache(str(script))
    return script


def findings(path: Path) -> list[Finding]:
    def run() -> dict[str, Any]:
        return runpy.run_path(str(path), run_name="__main__")

    plain = results(run)
    with gradscope.watch() as scope:
        watched = results(run)
        assert not scope.recording().summary.notes
    assert all(map(torch.equal, plain, watched))  # the same, be it right or wrong
    assert sys.gettrace() is None
    return [f for f in scope.findings if f.severity is not Severity.ADVICE]


def lines_of(source: str, mark: str) -> list[int]:
    return [
        n
        for n, line in enumerate((OPENING + source).splitlines(), 1)
        if mark in line.partition("#")[2]
    ]


@pytest.mark.parametrize(("source", "kind"), WRONG.values(), ids=WRONG)
def test_a_wrong_gradient_is_foretold(source: str, kind: str | None, tmp_path: Path) -> None:
    path = written(OPENING + source, tmp_path)
    assert not is_right(path)
    found = findings(path)
    assert found
    finding = found[0]
    assert (finding.code, finding.severity, finding.certainty) == (
        "GS202",
        Severity.WARNING,
        Certainty.PREDICTED,
    )
    assert "wrong gradient, without an error" in finding.message
    assert finding.site is not None
    assert [finding.site.line] == lines_of(source, "changed")
    by_role = {r.role: r.site.line for r in finding.related if r.site is not None}
    assert [by_role["created"]] == lines_of(source, "saved")
    failing = by_role.get("failing_node") or by_role["next_read"]
    assert ".backward(" in (OPENING + source).splitlines()[failing - 1]
    assert finding.fix is not None
    if kind is not None:
        assert len(found) == 1
        assert finding.fix.kind == kind
    if finding.fix.edits:
        path = written(mend(OPENING + source, finding), tmp_path)
        assert is_right(path)
        assert findings(path) == []


def mend(text: str, finding: Finding) -> str:
    assert finding.fix is not None
    lines = text.splitlines()
    for edit in finding.fix.edits:
        lines[edit.line - 1] = edit.replacement
    return "\n".join(lines)


@pytest.mark.parametrize("source", RIGHT.values(), ids=RIGHT)
def test_a_right_gradient_is_left_in_peace(source: str, tmp_path: Path) -> None:
    path = written(OPENING + source, tmp_path)
    assert is_right(path)
    assert findings(path) == []
