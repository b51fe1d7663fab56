"""Small programs of many kinds: those that will fail are told of one backward call early, their healthy twins never."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import gradscope
from gradscope.fixing.patch import apply, decoded
from gradscope.model import Finding, Severity

OPENING = """\
import torch
from torch import nn
torch.manual_seed(0)
"""

FORESEEN = {
    "state carried by a loop": (
        """
cell, h = nn.RNNCell(3, 5), torch.zeros(2, 5)
for step in range(3):
    h = cell(torch.randn(2, 3), h)
    h.pow(2).mean().backward()
""",
        "h",
        "detach",
    ),
    "both states of an LSTM": (
        """
lstm, head, state = nn.LSTM(3, 5), nn.Linear(5, 1), None
for step in range(3):
    out, state = lstm(torch.randn(4, 2, 3), state)
    loss = head(out).mean()
    loss.backward()
""",
        "state[0]",
        "detach",
    ),
    "state in a trainer": (
        """
class Trainer:
    def __init__(self):
        self.cell, self.h = nn.GRUCell(3, 5), torch.zeros(2, 5)
    def step(self, x):
        self.h = self.cell(x, self.h)
        loss = self.h.pow(2).mean()
        loss.backward()
        return loss.item()
    def fit(self, steps):
        for _ in range(steps):
            self.step(torch.randn(2, 3))
Trainer().fit(3)
""",
        "self.h",
        "detach",
    ),
    "state returned by a function": (
        """
cell = nn.RNNCell(3, 5)
def step(x, h):
    h = cell(x, h)
    h.pow(2).mean().backward()
    return h
h = torch.zeros(2, 5)
for _ in range(3):
    h = step(torch.randn(2, 3), h)
""",
        None,
        None,
    ),
    "state in a module in a module": (
        """
class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj, self.m = nn.Linear(4, 4), torch.zeros(4)
    def forward(self, x):
        y = torch.tanh(self.proj(x) + self.m)
        self.m = y.mean(0)
        return y
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory, self.head = Memory(), nn.Linear(4, 1)
    def forward(self, x):
        return self.head(self.memory(x))
net = Net()
for _ in range(3):
    net(torch.randn(6, 4)).mean().backward()
""",
        "net.memory.m",
        "detach",
    ),
    "encoded once": (
        """
enc, head = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1)
z = enc(torch.randn(8, 4))
for i in range(3):
    head(z).pow(2).mean().backward()
""",
        "z",
        "recompute",
    ),
    "two losses": (
        """
enc, a, b = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1), nn.Linear(4, 1)
z = enc(torch.randn(8, 4))
first, second = a(z).mean(), b(z).pow(2).mean()
first.backward()
second.backward()
""",
        "second",
        "sum_losses",
    ),
    "discriminator through the generator": (
        """
gen, dis = nn.Sequential(nn.Linear(2, 4), nn.Tanh()), nn.Sequential(nn.Linear(4, 1), nn.Tanh())
opt_d = torch.optim.SGD(dis.parameters(), lr=0.1)
for _ in range(2):
    fake = gen(torch.randn(5, 2))
    d_loss = dis(fake).mean()
    d_loss.backward()
    opt_d.step()
    g_loss = -dis(fake).mean()
    g_loss.backward()
""",
        "fake",
        "detach",
    ),
    "a probe": (
        """
w = torch.randn(4, requires_grad=True)
loss = (w.sin() * torch.randn(4)).sum()
norm = torch.autograd.grad(loss, w)[0].norm()
(loss * norm).backward()
""",
        "loss",
        "retain_graph",
    ),
    "losses in a list": (
        """
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
z = net(torch.randn(3, 4))
losses = [z[i].pow(2).sum() for i in range(3)]
for loss in losses:
    loss.backward()
""",
        None,
        "sum_losses",
    ),
    "a queue of keys": (
        """
import collections
enc, queue = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), collections.deque(maxlen=3)
for _ in range(3):
    q = enc(torch.randn(2, 4))
    loss = q.pow(2).mean() + sum((q * k).mean() for k in queue)
    loss.backward()
    queue.append(q)
""",
        None,
        None,
    ),
    "a dict of states": (
        """
cell, states = nn.RNNCell(3, 5), {"a": torch.zeros(2, 5)}
for _ in range(3):
    states["a"] = cell(torch.randn(2, 3), states["a"])
    states["a"].pow(2).mean().backward()
""",
        "states['a']",
        "detach",
    ),
    "inner loop of an epoch": (
        """
cell = nn.RNNCell(3, 5)
for epoch in range(2):
    h = torch.zeros(2, 5)
    for step in range(3):
        h = cell(torch.randn(2, 3), h)
        loss = h.pow(2).mean()
        loss.backward()
""",
        "h",
        "detach",
    ),
    "reset once in a while": (
        """
cell, h, at = nn.RNNCell(3, 5), torch.zeros(2, 5), 0
size = 9
for step in range(3):
    if at + 1 > size:
        h, at = torch.zeros(2, 5), 0
    at += 1
    h = cell(torch.randn(2, 3), h)
    loss = h.pow(2).mean()
    loss.backward()
    if step % 2 == 0:
        print(f"{loss.item():.3f}")
""",
        "h",
        "detach",
    ),
    "a cached function": (
        """
import functools
w = nn.Parameter(torch.randn(4))
@functools.lru_cache(maxsize=None)
def table():
    return w.exp()
for _ in range(3):
    (table() * torch.randn(4)).sum().backward()
""",
        "<lru_cache of table>",
        "recompute",
    ),
}

CLEAN = {
    "detached unless there is none": """
cell, h = nn.RNNCell(3, 5), None
for step in range(5):
    if h is not None:
        h = h.detach()
    h = cell(torch.randn(2, 3), h)
    h.pow(2).mean().backward()
""",
    "detached from the second on": """
cell, h = nn.RNNCell(3, 5), torch.zeros(2, 5)
for step in range(5):
    if step > 0:
        h = h.detach()
    h = cell(torch.randn(2, 3), h)
    h.pow(2).mean().backward()
""",
    "detached by a setting": """
cell, h, truncate = nn.RNNCell(3, 5), torch.zeros(2, 5), True
for step in range(5):
    if truncate:
        h = h.detach()
    h = cell(torch.randn(2, 3), h)
    h.pow(2).mean().backward()
""",
    "made anew or detached": """
cell, h = nn.RNNCell(3, 5), None
for step in range(5):
    if h is None:
        h = torch.zeros(2, 5)
    else:
        h = h.detach()
    h = cell(torch.randn(2, 3), h)
    h.pow(2).mean().backward()
""",
    "one call for the whole sequence": """
cell, total = nn.RNNCell(3, 5), 0.0
h = torch.zeros(2, 5)
for t in range(4):
    h = cell(torch.randn(2, 3), h)
    total = total + h.pow(2).mean()
    if t == 3:
        total.backward()
""",
    "one loss in the list": """
net = nn.Linear(4, 1)
losses = [net(torch.randn(3, 4)).pow(2).mean() for _ in range(3)]
for loss in [sum(losses)]:
    loss.backward()
for loss in [l for l in losses[:0]]:
    loss.backward()
one = [net(torch.randn(3, 4)).pow(2).mean()]
for loss in one:
    loss.backward()
""",
    "the last of a list frees": """
z = torch.tanh(nn.Linear(4, 4)(torch.randn(3, 4)))
losses = [z[i].pow(2).sum() for i in range(3)]
for i, loss in enumerate(losses):
    if i < 2:
        loss.backward(retain_graph=True)
    else:
        loss.backward()
""",
    "a step between, the loss computed after it": """
G, D = nn.Sequential(nn.Linear(2, 4), nn.Tanh()), nn.Sequential(nn.Linear(4, 1), nn.Tanh())
opt = torch.optim.SGD(D.parameters(), lr=0.1)
for _ in range(3):
    fake = G(torch.randn(5, 2))
    before = D(fake)
    D(fake.detach()).mean().backward()
    opt.step()
    print(before.mean().item())
    (-D(fake).mean()).backward()
""",
    "detached in the loop": """
cell, h = nn.RNNCell(3, 5), torch.zeros(2, 5)
for step in range(5):
    h = cell(torch.randn(2, 3), h.detach())
    h.pow(2).mean().backward()
""",
    "detached after the call": """
cell, h = nn.RNNCell(3, 5), torch.zeros(2, 5)
for step in range(5):
    h = cell(torch.randn(2, 3), h)
    h.pow(2).mean().backward()
    h = h.detach()
""",
    "detached in place": """
cell, h = nn.RNNCell(3, 5), torch.zeros(2, 5)
for step in range(5):
    h = cell(torch.randn(2, 3), h)
    h.pow(2).mean().backward()
    h.detach_()
""",
    "repackaged by a function": """
def repackage(state):
    if isinstance(state, torch.Tensor):
        return state.detach()
    return tuple(repackage(s) for s in state)
lstm, state = nn.LSTM(3, 5), (torch.zeros(1, 2, 5), torch.zeros(1, 2, 5))
for step in range(5):
    state = repackage(state)
    out, state = lstm(torch.randn(4, 2, 3), state)
    out.mean().backward()
""",
    "truncated, k1 is not k2": """
cell, h, total = nn.RNNCell(3, 5), torch.zeros(2, 5), 0.0
for t in range(12):
    if t % 4 == 0:
        h, total = h.detach(), 0.0
    h = cell(torch.randn(2, 3), h)
    total = total + h.pow(2).mean()
    if t % 4 == 3:
        total.backward()
""",
    "state in a module, reset by a method": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.h = nn.RNNCell(3, 5), None
    def reset(self):
        self.h = None
    def forward(self, x):
        self.h = self.cell(x, self.h)
        return self.h
net = Net()
for _ in range(4):
    net.reset()
    for _ in range(3):
        out = net(torch.randn(2, 3))
    out.mean().backward()
""",
    "state in a module, reset now and then": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.h = nn.RNNCell(3, 5), None
    def forward(self, x):
        self.h = self.cell(x, self.h)
        return self.h
net, total = Net(), 0.0
for t in range(8):
    if t % 2 == 0:
        net.h, total = None, 0.0
    total = total + net(torch.randn(2, 3)).mean()
    if t % 2 == 1:
        total.backward()
""",
    "state in a trainer, detached": """
class Trainer:
    def __init__(self):
        self.cell, self.h = nn.GRUCell(3, 5), torch.zeros(2, 5)
    def step(self, x):
        self.h = self.cell(x, self.h)
        self.h.pow(2).mean().backward()
        self.h = self.h.detach()
    def fit(self, steps):
        for _ in range(steps):
            self.step(torch.randn(2, 3))
Trainer().fit(4)
""",
    "state reset at the end of the step": """
class Trainer:
    def __init__(self):
        self.cell, self.h = nn.GRUCell(3, 5), torch.zeros(2, 5)
    def cut(self):
        self.h = self.h.detach()
    def step(self, x):
        self.h = self.cell(x, self.h)
        self.h.pow(2).mean().backward()
        self.cut()
    def fit(self, steps):
        for _ in range(steps):
            self.step(torch.randn(2, 3))
Trainer().fit(4)
""",
    "kept for logging": """
net, losses, total = nn.Linear(4, 1), [], 0.0
for _ in range(6):
    loss = net(torch.randn(3, 4)).pow(2).mean()
    loss.backward()
    losses.append(loss)
    total += loss
print(sum(losses).item(), float(total), f"{losses[0]:.3f}")
""",
    "a hook that keeps the newest features": """
net, features = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), {}
def keep(module, args, output):
    features["mid"] = output
net[1].register_forward_hook(keep)
for _ in range(5):
    out = net(torch.randn(3, 4))
    loss = out.mean() + features["mid"].pow(2).mean()
    loss.backward()
""",
    "features kept on the module": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
    def forward(self, x):
        self.features = torch.tanh(self.body(x))
        return self.head(self.features)
net = Net()
for _ in range(5):
    out = net(torch.randn(3, 4))
    (out.mean() + net.features.pow(2).mean()).backward()
""",
    "two losses, the first retains": """
enc, a, b = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1), nn.Linear(4, 1)
for _ in range(4):
    z = enc(torch.randn(8, 4))
    first, second = a(z).mean(), b(z).pow(2).mean()
    first.backward(retain_graph=True)
    second.backward()
""",
    "retained until the last": """
z = torch.tanh(nn.Linear(4, 4)(torch.randn(3, 4)))
n = 3
for i in range(n):
    z[i].pow(2).sum().backward(retain_graph=i < n - 1)
""",
    "shared part saves nothing": """
x = torch.randn(4, requires_grad=True)
y = x + 1
for _ in range(3):
    y.sum().backward()
""",
    "GAN with a detached fake": """
gen, dis = nn.Sequential(nn.Linear(2, 4), nn.Tanh()), nn.Sequential(nn.Linear(4, 1), nn.Tanh())
opt_g, opt_d = torch.optim.SGD(gen.parameters(), lr=0.1), torch.optim.SGD(dis.parameters(), lr=0.1)
for _ in range(4):
    fake = gen(torch.randn(5, 2))
    opt_d.zero_grad()
    dis(fake.detach()).mean().backward()
    opt_d.step()
    opt_g.zero_grad()
    (-dis(fake).mean()).backward()
    opt_g.step()
""",
    "GAN, generator first": """
gen, dis = nn.Sequential(nn.Linear(2, 4), nn.Tanh()), nn.Sequential(nn.Linear(4, 1), nn.Tanh())
for _ in range(4):
    fake = gen(torch.randn(5, 2))
    (-dis(fake).mean()).backward()
    (dis(torch.randn(5, 4)).mean() - dis(fake.detach()).mean()).backward()
""",
    "queue of detached keys": """
import collections
enc, queue = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), collections.deque(maxlen=3)
for _ in range(5):
    q = enc(torch.randn(2, 4))
    loss = q.pow(2).mean() + sum((q * k).mean() for k in queue)
    loss.backward()
    queue.append(q.detach())
""",
    "LBFGS": """
net, x, y = nn.Linear(4, 1), torch.rand(9, 4), torch.rand(9, 1)
opt = torch.optim.LBFGS(net.parameters(), max_iter=5)
def closure():
    opt.zero_grad()
    loss = (net(x) - y).pow(2).mean()
    loss.backward()
    return loss
for _ in range(3):
    print(opt.step(closure).item())
""",
    "the old value under no_grad": """
net, before = nn.Linear(4, 4), None
for _ in range(5):
    out = torch.tanh(net(torch.randn(2, 4)))
    loss = out.mean()
    if before is not None:
        with torch.no_grad():
            drift = (out - before).pow(2).mean()
        loss = loss * (1 + drift)
    loss.backward()
    before = out
""",
    "a teacher under no_grad": """
student = nn.Linear(4, 4)
teacher = {k: v.detach().clone() for k, v in student.named_parameters()}
for _ in range(5):
    x = torch.randn(2, 4)
    target = torch.func.functional_call(student, teacher, (x,))
    (student(x) - target).pow(2).mean().backward()
    with torch.no_grad():
        teacher = {k: 0.9 * teacher[k] + 0.1 * v for k, v in student.named_parameters()}
""",
    "a cache that is emptied": """
import functools
w = nn.Parameter(torch.randn(4))
@functools.lru_cache(maxsize=None)
def table():
    return w.exp()
for _ in range(4):
    (table() * torch.randn(4)).sum().backward()
    table.cache_clear()
""",
    "double backward for a penalty": """
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
for _ in range(4):
    x = torch.randn(5, 4, requires_grad=True)
    out = net(x).sum()
    grad, = torch.autograd.grad(out, x, create_graph=True)
    (grad.pow(2).sum() + out).backward()
""",
    "gradients of several inputs of one graph": """
w = torch.randn(4, requires_grad=True)
for _ in range(3):
    y = w.sin()
    first, = torch.autograd.grad(y.sum(), w)
    second, = torch.autograd.grad(w.cos().sum(), w)
""",
    "a method of a library resets the state": """
import sys, types
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.h = nn.RNNCell(3, 5), None
    def forward(self, x):
        self.h = self.cell(x, self.h)
        return self.h
def reset(net):
    for module in net.modules():
        if hasattr(module, "h"):
            setattr(module, "h", None)
net = Net()
for _ in range(4):
    reset(net)
    net(torch.randn(2, 3)).mean().backward()
""",
    "a generator of batches": """
cell = nn.RNNCell(3, 5)
def episodes(n):
    for _ in range(n):
        h = torch.zeros(2, 5)
        for _ in range(3):
            h = cell(torch.randn(2, 3), h)
        yield h
for h in episodes(4):
    h.pow(2).mean().backward()
""",
    "the best loss is remembered": """
net, best = nn.Linear(4, 1), None
for _ in range(5):
    loss = net(torch.randn(3, 4)).pow(2).mean()
    loss.backward()
    if best is None or loss < best:
        best = loss
print(best.item())
""",
    "refreshed every other step": """
enc, head = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1)
x = torch.randn(8, 4)
for i in range(8):
    if i % 2 == 0:
        z, total = enc(x), 0.0
    total = total + head(z).pow(2).mean()
    if i % 2 == 1:
        total.backward()
""",
    "the caught exception": """
for _ in range(3):
    out = nn.Linear(4, 1)(torch.randn(3, 4)).pow(2)
    try:
        out.backward()
    except RuntimeError:
        out.sum().backward()
""",
}


WITHOUT_EDITS: set[str] = set()
"""Programs whose cure is more than a few lines, or not to be told from the code."""


def findings(source: str, folder: Path) -> list[Finding]:
    script = folder / "program.py"
    script.write_text(OPENING + source, encoding="utf-8")
    with gradscope.watch() as scope:
        try:
            runpy.run_path(str(script), run_name="__main__")
        except RuntimeError as error:
            assert "second time" in str(error) or "inplace" in str(error)
        assert not scope.recording().summary.notes
    return scope.findings


@pytest.mark.parametrize(("source", "holder", "fix"), FORESEEN.values(), ids=FORESEEN)
def test_it_is_said_before_the_call_that_fails(
    source: str, holder: str | None, fix: str | None, tmp_path: Path
) -> None:
    found = [f for f in findings(source, tmp_path) if f.code in ("GS101", "GS102")]
    assert [f.code for f in found[:2]] == ["GS102", "GS101"]
    early, late = found[:2]
    assert early.backward_call < late.backward_call
    by_role = {r.role: r.site for r in early.related}
    failing = by_role.get("failing_node") or by_role["next_read"]
    assert failing is not None
    assert late.site is not None
    assert (failing.line, failing.column) == (late.site.line, late.site.column)
    assert early.fix is not None
    assert late.fix is not None
    assert early.fix.kind == late.fix.kind
    if holder is not None:
        assert f"`{holder}`" in early.label
    if fix is not None:
        assert early.fix.kind == fix


@pytest.mark.parametrize("name", FORESEEN)
def test_with_its_edits_made_the_program_runs_clean(name: str, tmp_path: Path) -> None:
    source = FORESEEN[name][0]
    first = findings(source, tmp_path)[0]
    assert first.fix is not None
    assert bool(first.fix.edits) is (name not in WITHOUT_EDITS)
    change = apply(decoded("program.py", (OPENING + source).encode()), first.fix.edits)
    (tmp_path / "again").mkdir()
    again = findings("".join(change.after.lines).removeprefix(OPENING), tmp_path / "again")
    assert [f.code for f in again if f.severity is not Severity.ADVICE and first.fix.edits] == []


@pytest.mark.parametrize("source", CLEAN.values(), ids=CLEAN)
def test_a_healthy_program_is_left_in_peace(source: str, tmp_path: Path) -> None:
    codes = ("GS101", "GS102", "GS103", "GS201", "GS202")
    found = [
        f
        for f in findings(source, tmp_path)
        if f.code in codes and f.severity is not Severity.ADVICE
    ]
    assert found == []
