"""Programs that change tensors in place: those that will fail are told at the very line, their healthy twins never."""

from __future__ import annotations

import json
import linecache
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import gradscope
from gradscope.model import Edit, Finding, Severity

OPENING = """\
import torch
from torch import nn
torch.manual_seed(0)
"""

STALE = {
    "a plain output": (
        """
w = torch.randn(4, requires_grad=True)
y = torch.sigmoid(w * 2)  # saved
y += 1  # changed
y.sum().backward()
""",
        "y = y + 1",
    ),
    "an activation in a module, one of the batch masked": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
    def forward(self, x):
        h = torch.tanh(self.body(x))  # saved
        h[0] = 0  # changed
        return self.head(h)
net = Net()
for _ in range(2):
    loss = net(torch.randn(3, 4)).mean()
    loss.backward()
""",
        None,
    ),
    "clamped in a function": (
        """
def squash(z):
    z.clamp_(0, 1)  # changed
    return z
w = torch.randn(4, requires_grad=True)
z = w.exp()  # saved
z = squash(z)
loss = z.sum()
loss.backward()
""",
        None,
    ),
    "changed in a return": (
        """
def act(x):
    y = x.exp()  # saved
    return y.mul_(2)  # changed
w = torch.randn(4, requires_grad=True)
out = act(w)
out.sum().backward()
""",
        None,
    ),
    "a buffer between two forward passes": (
        """
class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("scale", torch.ones(3))
    def forward(self, x):
        return self.lin(x) * self.scale  # saved
net = Scale()
a = net(torch.randn(2, 3))
net.scale.mul_(0.9)  # changed
b = net(torch.randn(2, 3))
(a.sum() + b.sum()).backward()
""",
        None,
    ),
    "parameters updated by hand under no_grad": (
        """
net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
x = torch.randn(4, 3)
first = net(x).mean()
second = net(x).pow(2).mean()  # saved
first.backward()
with torch.no_grad():
    net[2].weight.sub_(0.1 * net[2].weight.grad)  # changed
second.backward()
""",
        None,
    ),
    "a generator": (
        """
def frames(w):
    for _ in range(2):
        y = torch.sigmoid(w)  # saved
        y *= 2  # changed
        yield y
w, total = torch.randn(3, requires_grad=True), 0.0
for y in frames(w):
    total = total + y.sum()
total.backward()
""",
        "        y = y * 2",
    ),
    "a custom function": (
        """
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y
    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]
w = torch.randn(3, requires_grad=True)
y = Exp.apply(w)  # saved
y.add_(1)  # changed
loss = y.sum()
loss.backward()
""",
        "y = y.add(1)",
    ),
    "kept over two calls": (
        """
w = torch.randn(3, requires_grad=True)
scale = torch.ones(3)
loss = (w * scale).sum()  # saved
loss.backward(retain_graph=True)
scale[0] = 2.0  # changed
loss.backward()
""",
        "loss = (w * scale.clone()).sum()  # saved",
    ),
    "in a method that a trainer calls": (
        """
class Trainer:
    def __init__(self):
        self.net, self.center = nn.Linear(3, 3), torch.zeros(3)
    def loss(self, x):
        out = torch.tanh(self.net(x))
        value = (out * self.center).sum() + out.pow(2).sum()  # saved
        self.update(out)
        return value
    @torch.no_grad()
    def update(self, out):
        self.center.mul_(0.9).add_(out.mean(0))  # changed
    def fit(self):
        for _ in range(3):
            loss = self.loss(torch.randn(4, 3))
            loss.backward()
Trainer().fit()
""",
        "        value = (out * self.center.clone()).sum() + out.pow(2).sum()  # saved",
    ),
    "dropout of what a rectifier has saved, in a network of the library's": (
        """
net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Dropout(0.5, inplace=True), nn.Linear(3, 1))
out = net(torch.randn(4, 3)).mean()  # saved and changed
out.backward()
""",
        None,
    ),
    "elements of a list, by the variable of a loop": (
        """
w = torch.randn(4, requires_grad=True)
ys = [torch.exp(w * k) for k in range(3)]  # saved
for y in ys:
    y.add_(1)  # changed
loss = torch.stack(ys).sum()
loss.backward()
""",
        None,
    ),
    "the output that a hook was given": (
        """
net = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid(), nn.Linear(3, 1))
def scale(module, args, out):
    out.mul_(2)  # changed
net[1].register_forward_hook(scale)
for _ in range(2):
    out = net(torch.randn(4, 3))  # saved
    loss = out.mean()
    loss.backward()
""",
        None,
    ),
    "in a thread, the error caught": (
        """
import threading
def work():
    w = torch.randn(4, requires_grad=True)
    y = torch.exp(w)  # saved
    y += 1  # changed
    try:
        y.sum().backward()
    except RuntimeError:
        pass
thread = threading.Thread(target=work)
thread.start()
thread.join()
""",
        "    y = y + 1",
    ),
    "written with out=": (
        """
w = torch.randn(4, requires_grad=True)
table = torch.ones(4)
y = (w * table).sum()  # saved
torch.add(table, 1, out=table)  # changed
y.backward()
""",
        "y = (w * table.clone()).sum()  # saved",
    ),
    "inside a long expression": (
        """
def double(t):
    return t.mul_(2)  # changed
w = torch.randn(3, requires_grad=True)
y = w.exp()  # saved
loss = (
    double(y).sum()
    + w.sum()
)
loss.backward()
""",
        None,
    ),
}
"""Each with the line that its fix puts in the place of another, where the fix is an edit; comments mark the lines."""

CLEAN = {
    "changed after the backward call": """
w = torch.randn(4, requires_grad=True)
for _ in range(3):
    y = torch.sigmoid(w)
    y.sum().backward()
    y.data.zero_()
    with torch.no_grad():
        y += 1
        w -= 0.1 * w.grad
    w.grad = None
""",
    "in place where nothing saved it": """
net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
for _ in range(3):
    x = torch.randn(2, 4)
    h = net[0](x)
    h += 1
    h.mul_(2)
    out = net[2](torch.relu_(h))
    out.add_(1)
    out.sum().backward()
""",
    "dropout, normalisation and activations in place": """
net = nn.Sequential(
    nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Flatten(),
    nn.Linear(108, 8), nn.Dropout(0.5, inplace=True), nn.Linear(8, 1),
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    optimizer.zero_grad()
    a, b = net(torch.randn(4, 1, 8, 8)), net(torch.randn(4, 1, 8, 8))
    (a.mean() + b.mean()).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
""",
    "an average of weights, kept while the next loss is computed": """
net, teacher = nn.Linear(4, 4), nn.Linear(4, 4)
teacher.requires_grad_(False)
optimizer = torch.optim.Adam(net.parameters())
for _ in range(3):
    x = torch.randn(2, 4)
    with torch.no_grad():
        target = teacher(x)
    loss = (net(x) - target).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for p, q in zip(net.parameters(), teacher.parameters()):
            q.mul_(0.9).add_(p, alpha=0.1)
""",
    "an evaluation that forgot no_grad": """
net = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
scores = []
for _ in range(3):
    out = net(torch.randn(2, 4))
    out.clamp_(0.1, 0.9)
    scores.append(out.mean().item())
print(max(scores))
""",
    "a graph that was dropped": """
w = torch.randn(4, requires_grad=True)
y = w.exp()
z = y.sum()
y += 1
del z
y = w.exp()
y.sum().backward()
""",
    "a queue that is written after the backward call": """
enc, queue = nn.Linear(4, 4), torch.randn(4, 8)
for step in range(3):
    q = enc(torch.randn(2, 4))
    loss = (q @ queue).logsumexp(1).mean()
    loss.backward()
    with torch.no_grad():
        queue[:, 2 * step : 2 * step + 2] = q.t()
""",
    "a queue that is cloned where it is read": """
enc, queue = nn.Linear(4, 4), torch.randn(4, 8)
for step in range(3):
    q = enc(torch.randn(2, 4))
    loss = (q @ queue.clone()).logsumexp(1).mean()
    with torch.no_grad():
        queue[:, 2 * step : 2 * step + 2] = q.t()
    loss.backward()
""",
    "weights that are clipped": """
critic = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.RMSprop(critic.parameters())
for _ in range(3):
    loss = critic(torch.randn(3, 4)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for p in critic.parameters():
        p.data.clamp_(-0.1, 0.1)
""",
    "spectral normalisation": """
from torch.nn.utils.parametrizations import spectral_norm
critic = nn.Sequential(spectral_norm(nn.Linear(4, 4)), nn.LeakyReLU(0.2, inplace=True), nn.Linear(4, 1))
optimizer = torch.optim.Adam(critic.parameters())
for _ in range(3):
    loss = critic(torch.randn(3, 4)).mean() - critic(torch.randn(3, 4)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "masks and tables that are filled": """
emb, out = nn.Embedding(6, 4), torch.zeros(3, 4)
for _ in range(3):
    table = torch.zeros(3, 4)
    mask = torch.ones(3, 4)
    mask[:, 0] = 0
    for row in range(3):
        table[row] = emb(torch.tensor(row)) * mask[row]
    mask = torch.zeros(3, 4)
    table.sum().backward()
""",
    "a running total that is added to": """
net, total, losses = nn.Linear(4, 1), torch.zeros(()), []
for _ in range(4):
    loss = net(torch.randn(3, 4)).pow(2).mean()
    loss.backward()
    total += loss.detach()
    losses.append(loss)
print(total.item())
""",
    "the changed branch is detached": """
w = torch.randn(4, requires_grad=True)
for _ in range(3):
    y = w.exp()
    shown = y.detach().clone()
    shown.div_(shown.max())
    loss = (y * shown).sum()
    loss.backward()
""",
    "noise added to the input of the next pass": """
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
x = torch.randn(3, 4)
for _ in range(3):
    loss = net(x).mean()
    loss.backward()
    x.add_(0.1 * torch.randn(3, 4))
""",
    "an adversarial input, changed between the calls": """
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
delta = torch.zeros(3, 4, requires_grad=True)
x = torch.randn(3, 4)
for _ in range(4):
    loss = net(x + delta).mean()
    loss.backward()
    with torch.no_grad():
        delta.add_(0.1 * delta.grad.sign()).clamp_(-0.3, 0.3)
    delta.grad.zero_()
""",
    "the changed branch is for the log, another is trained": """
net = nn.Linear(4, 4)
for _ in range(3):
    out = net(torch.randn(2, 4))
    shown = torch.sigmoid(out)
    shown.mul_(100).round_()
    loss = out.pow(2).mean()
    loss.backward()
    print(f"{shown.mean().item():.1f}")
""",
    "kept graphs that nobody runs again": """
w, scale = torch.randn(3, requires_grad=True), torch.ones(3)
for _ in range(3):
    loss = (w * scale).sum()
    loss.backward(retain_graph=True)
    scale.mul_(0.9)
    loss = None
""",
    "the name is given to something new": """
w = torch.randn(3, requires_grad=True)
for _ in range(3):
    y = w.exp()
    y += 1
    y = w.sin()
    loss = y.sum()
    loss.backward()
""",
    "the state of a player, changed while others train": """
class Player:
    def __init__(self):
        self.value, self.visits = torch.zeros(3), torch.zeros(3)
    def see(self, reward):
        self.visits += 1
        self.value += (reward - self.value) / self.visits
policy, player = nn.Linear(3, 3), Player()
for _ in range(3):
    logits = policy(torch.randn(3))
    reward = torch.rand(3)
    advantage = reward - player.value
    player.see(reward)
    loss = -(logits.log_softmax(0) * advantage).sum()
    loss.backward()
""",
    "a cache of keys filled while decoding": """
proj, keys = nn.Linear(4, 4), torch.zeros(5, 4)
with torch.no_grad():
    for t in range(5):
        keys[t] = proj(torch.randn(4))
        score = (keys[: t + 1] @ torch.randn(4)).softmax(0)
loss = proj(keys.mean(0)).sum()
loss.backward()
keys.zero_()
""",
    "a worker thread": """
import threading
def work():
    w = torch.randn(4, requires_grad=True)
    for _ in range(3):
        y = w.exp()
        y.sum().backward()
        with torch.no_grad():
            y += 1
thread = threading.Thread(target=work)
thread.start()
thread.join()
work()
""",
}


CASES = [
    path
    for path in sorted((Path(__file__).parent.parent / "cases").glob("*.py"))
    if json.loads(path.read_text().splitlines()[0].removeprefix("# expect:"))["error"] == "inplace"
]


def findings(source: str, folder: Path, opening: str = OPENING) -> list[Finding]:
    script = folder / "program.py"
    script.write_text(opening + source, encoding="utf-8")
    linecache.checkcache(str(script))
    with gradscope.watch() as scope:
        try:
            runpy.run_path(str(script), run_name="__main__")
        except RuntimeError as error:
            assert "inplace operation" in str(error)
        assert not scope.recording().summary.notes
    assert sys.gettrace() is None
    return scope.findings


def mended(text: str, edits: Sequence[Edit]) -> str:
    lines = text.splitlines()
    for edit in edits:
        lines[edit.line - 1] = edit.replacement
    return "\n".join(lines)


def lines_of(source: str, mark: str) -> list[int]:
    return [
        n
        for n, line in enumerate((OPENING + source).splitlines(), 1)
        if mark in line.partition("#")[2]
    ]


@pytest.mark.parametrize(("source", "fixed"), STALE.values(), ids=STALE)
def test_it_is_said_at_the_line_that_changes(
    source: str, fixed: str | None, tmp_path: Path
) -> None:
    found = [f for f in findings(source, tmp_path) if f.severity is not Severity.ADVICE]
    assert [f.code for f in found] == ["GS202", "GS201"]
    early, late = found
    assert early.backward_call < late.backward_call
    assert early.site is not None
    assert [early.site.line] == lines_of(source, "changed")
    assert late.site is not None
    for finding in found:
        by_role = {r.role: r.site.line for r in finding.related if r.site is not None}
        assert [by_role["modified_by"]] == lines_of(source, "changed")
        assert [by_role["created"]] == lines_of(source, "saved")
    by_role = {r.role: r.site for r in early.related}
    failing = by_role.get("failing_node") or by_role["next_read"]
    assert failing is not None
    assert failing.line == late.site.line
    assert early.fix is not None
    assert [edit.replacement for edit in early.fix.edits] == ([fixed] if fixed else [])
    if early.fix.edits:
        assert findings(mended(OPENING + source, early.fix.edits), tmp_path, "") == []


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_an_annotated_case_is_told_early_and_its_edit_mends_it(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    expected = json.loads(text.splitlines()[0].removeprefix("# expect:"))
    found = [f for f in findings(text, tmp_path, "") if f.severity is not Severity.ADVICE]
    assert [f.code for f in found] == ["GS202", "GS201"]
    by_role = {r.role: r.site.line for r in found[0].related if r.site is not None}
    assert by_role["modified_by"] == expected["mutate_line"]
    assert by_role["created"] in {expected["culprit_line"], *expected.get("culprit_also", [])}
    assert (by_role.get("failing_node") or by_role["next_read"]) == expected["raise_line"]
    fix = found[0].fix
    assert fix is not None
    assert fix.kind == expected["fix"]
    if fix.edits:
        assert findings(mended(text, fix.edits), tmp_path, "") == []


@pytest.mark.parametrize("source", CLEAN.values(), ids=CLEAN)
def test_a_healthy_program_is_left_in_peace(source: str, tmp_path: Path) -> None:
    assert [f for f in findings(source, tmp_path) if f.severity is not Severity.ADVICE] == []
