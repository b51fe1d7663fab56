"""Branches that are taken and branches that are not: what is predicted, and how certain that is."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

import gradscope
from gradscope.api.scope import Scope
from gradscope.code import source
from gradscope.model import Severity
from gradscope.program import sites
from tests import known

HEAD = """\
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
opt = torch.optim.SGD(net.parameters(), lr=0.1)
"""

NOT_TAKEN = {
    "stops_at_an_input": """\
h = net(torch.randn(2, 4)).exp()
h.sum().backward()
(g,) = torch.autograd.grad((h * 2).tanh().sum(), h)
""",
    "stops_at_a_new_input": """\
h = torch.zeros(2, 4)
for i in range(3):
    x = torch.randn(2, 4, requires_grad=True)
    h = (net(x) + h).exp()
    h.sum().backward(inputs=[x])
""",
    "later_iteration": """\
for i in range(4):
    out = net(torch.randn(2, 4))
    out.sum().backward()
    if i == 1000:
        (out ** 2).sum().backward()
""",
    "namespace": """\
import argparse
args = argparse.Namespace(aux=False, n=3)
for i in range(args.n):
    out = net(torch.randn(2, 4))
    out.sum().backward()
    if args.aux:
        (out ** 2).sum().backward()
""",
    "parameter": """\
def train(n, aux=False):
    for i in range(n):
        out = net(torch.randn(2, 4))
        out.sum().backward()
        if aux:
            (out ** 2).sum().backward()
train(3)
""",
    "norm": """\
for i in range(3):
    out = net(torch.randn(2, 4))
    loss = out.sum()
    loss.backward()
    if net[0].weight.grad.norm() > 1e9:
        loss.backward()
""",
    "except": """\
class Odd(Exception): pass
def check(x):
    if x.isnan().any(): raise Odd
for i in range(3):
    out = net(torch.randn(2, 4))
    kept = out.sum()
    kept.backward()
    try:
        check(out)
    except Odd:
        kept.backward()
""",
    "continue": """\
h = torch.zeros(2, 4)
for i in range(3):
    out = net(h + 1)
    out.sum().backward()
    if i >= 0:
        h = torch.zeros(2, 4)
        continue
    h = out
    out.mean().backward()
""",
    "one_line": """\
aux, prev = False, None
for i in range(3):
    out = net(torch.randn(2, 4))
    loss = out.sum()
    if aux and prev is not None: loss = loss + (out - prev).pow(2).sum()
    loss.backward()
    prev = out
""",
    "while": """\
done, out = False, None
h = net(torch.randn(2, 4))
while not done:
    loss = (h * 2).pow(2).sum()
    loss.backward()
    done = loss.item() > -1
""",
    "while_counter": """\
h = net(torch.randn(2, 4))
i = 0
while i < 1:
    loss = (h * 2).pow(2).sum()
    loss.backward()
    i += 1
""",
    "ternary": """\
aux = False
for i in range(3):
    out = net(torch.randn(2, 4))
    out.sum().backward()
    (out if aux else out.detach() * net[0].weight.sum()).pow(2).sum().backward()
""",
    "and_or": """\
aux = 0
for i in range(3):
    out = net(torch.randn(2, 4))
    out.sum().backward()
    aux and (out ** 2).sum().backward()
    not aux or (out ** 2).sum().backward()
""",
    "match": """\
kind = "plain"
for i in range(3):
    out = net(torch.randn(2, 4))
    out.sum().backward()
    match kind:
        case "twice":
            (out ** 2).sum().backward()
        case _:
            pass
""",
    "early_return": """\
def step(quick):
    out = net(torch.randn(2, 4))
    out.sum().backward()
    if quick:
        return
    (out ** 2).sum().backward()
for _ in range(3):
    step(True)
""",
    "callee": """\
def extra(out, aux=False):
    if aux:
        (out ** 2).sum().backward()
for _ in range(3):
    out = net(torch.randn(2, 4))
    out.sum().backward()
    extra(out)
""",
    "last_iteration": """\
h = net(torch.randn(2, 4))
for i in range(1):
    (h ** 2).sum().backward()
""",
    "last_of_list": """\
for x in [torch.randn(2, 4)]:
    pass
for x in [torch.randn(2, 4)]:
    h = x if x is None else net(x)
    for y in (1,):
        (h * y).pow(2).sum().backward()
""",
    "generator_last": """\
def batches():
    yield torch.randn(2, 4)
h = net(torch.randn(2, 4))
for x in batches():
    (h * x).pow(2).sum().backward()
""",
    "loader_last": """\
from torch.utils.data import DataLoader, TensorDataset
h = net(torch.randn(2, 4))
for shuffle in (False, True):
    h = net(torch.randn(2, 4))
    for (x,) in DataLoader(TensorDataset(torch.randn(2, 4)), batch_size=2, shuffle=shuffle):
        (h * x).pow(2).sum().backward()
""",
    "asked_of_an_object": """\
class C:
    on = False
c = C()
for _ in range(3):
    out = net(torch.randn(2, 4))
    out.sum().backward()
    if getattr(c, "on", True) or getattr(c, "off", False) or hasattr(c, "x") or isinstance(c, dict):
        (out ** 2).sum().backward()
""",
    "instance_flag": """\
class T:
    def __init__(self): self.aux, self.h = False, None
    def step(self, x):
        out = net(x)
        out.sum().backward()
        if self.aux:
            (out ** 2).sum().backward()
t = T()
for _ in range(3): t.step(torch.randn(2, 4))
""",
    "dict_dataclass_enum": """\
import dataclasses, enum
class Mode(enum.Enum):
    A = 1
    B = 2
@dataclasses.dataclass
class C:
    mode: Mode = Mode.A
    extra: bool = False
c, d = C(), {"extra": False, "n": 0}
for _ in range(3):
    out = net(torch.randn(2, 4))
    out.sum().backward()
    if c.mode is Mode.B or c.extra or d["extra"] or d.get("n") or c.mode == Mode.B:
        (out ** 2).sum().backward()
""",
    "break": """\
h = net(torch.randn(2, 4))
for i in range(10):
    (h ** 2).sum().backward()
    if i == 0:
        break
""",
    "break_unknown": """\
h = net(torch.randn(2, 4))
for i in range(10):
    loss = (h ** 2).sum()
    loss.backward()
    if loss.item() > -1:
        break
""",
    "every_k": """\
cell, h = nn.RNNCell(4, 4), torch.zeros(2, 4)
for i in range(6):
    if i % 1 == 0:
        h = h.detach()
    h = cell(torch.randn(2, 4), h)
    h.sum().backward()
""",
    "length": """\
queue = []
for i in range(3):
    out = net(torch.randn(2, 4))
    out.sum().backward()
    if len(queue) > 5:
        (out ** 2).sum().backward()
    queue.append(i)
""",
    "short_circuit": """\
opts = {"a": None}
for i in range(3):
    out = net(torch.randn(2, 4))
    out.sum().backward()
    if opts["a"] is not None and opts["a"].on or (i > 5 and True):
        (out ** 2).sum().backward()
""",
    "global_counter": """\
count = 0
def tick():
    global count
    count += 1
def step():
    out = net(torch.randn(2, 4))
    out.sum().backward()
    tick()
    if count > 100:
        (out ** 2).sum().backward()
for _ in range(3): step()
""",
}
"""Nothing fails in these."""

ADVICE = {
    "norm": "`net[0].weight.grad.norm() > 1e9` is true",
    "while": "`done` is false",
    "break_unknown": "`loss.item() > -1` is false",
    "except": "`x.isnan().any()` is true",
}
"""What would have to hold for one of these to fail, where the code cannot tell."""

TAKEN = {
    "cut_stops_at_start": """\
cell, h = nn.RNNCell(4, 4), torch.zeros(2, 4)
for i in range(60):
    if i < 49:
        h = h.detach()
    h = cell(torch.randn(2, 4), h)
    h.sum().backward()
""",
    "cut_stops_late": """\
cell = nn.RNNCell(4, 4)
opt = torch.optim.SGD(cell.parameters(), lr=0.1)
def train(steps, last):
    state = torch.zeros(2, 4)
    for i in range(steps):
        opt.zero_grad()
        state = cell(torch.randn(2, 4), state)
        state.sum().backward()
        opt.step()
        if i < last:
            state = state.detach()
train(60, 40)
""",
    "flag": NOT_TAKEN["namespace"].replace("aux=False", "aux=True"),
    "third": NOT_TAKEN["later_iteration"]
    .replace("range(4)", "range(6)")
    .replace("i == 1000", "i == 2"),
    "param": NOT_TAKEN["parameter"].replace("train(3)", "train(3, aux=True)"),
    "cut_stops": """\
cell, h = nn.RNNCell(4, 4), torch.zeros(2, 4)
for i in range(12):
    h = cell(torch.randn(2, 4), h)
    h.sum().backward()
    if i < 3:
        h = h.detach()
""",
    "callee": NOT_TAKEN["callee"].replace("aux=False", "aux=True"),
    "lstm": """\
lstm, state, kind = nn.LSTM(4, 4), None, "LSTM"
for i in range(3):
    x = torch.randn(5, 2, 4)
    opt.zero_grad()
    if kind == "T":
        out = x
    else:
        out, state = lstm(x, state)
    out.sum().backward()
    opt.step()
""",
    "while": NOT_TAKEN["while_counter"].replace("i < 1", "i < 3"),
    "while_true": """\
h = net(torch.randn(2, 4))
while True:
    (h ** 2).sum().backward()
""",
    "generator": """\
def batches(n):
    for i in range(n):
        yield torch.randn(2, 4)
h = net(torch.randn(2, 4))
for x in batches(3):
    (h * x).pow(2).sum().backward()
""",
    "loader": """\
from torch.utils.data import DataLoader, TensorDataset
h = net(torch.randn(2, 4))
for (x,) in DataLoader(TensorDataset(torch.randn(7, 4)), batch_size=2, shuffle=True):
    (h * x[:1]).pow(2).sum().backward()
""",
    "epochs": """\
from torch.utils.data import DataLoader, TensorDataset
h = net(torch.randn(2, 4))
loader = DataLoader(TensorDataset(torch.randn(2, 4)), batch_size=2)
for epoch in range(2):
    for (x,) in loader:
        (h * x).pow(2).sum().backward()
""",
    "enumerate_zip": """\
h = net(torch.randn(2, 4))
for i, (x, y) in enumerate(zip([torch.randn(2, 4)] * 2, [1, 2])):
    (h * x).pow(2).sum().backward()
""",
    "one_line": NOT_TAKEN["one_line"].replace("prev = False", "prev = True"),
    "method": """\
class T:
    def __init__(self, keep): self.keep, self.h = keep, torch.zeros(2, 4)
    def step(self, x):
        self.h = net(x + self.h)
        self.h.sum().backward()
        if not self.keep:
            self.h = self.h.detach()
    def fit(self):
        for x in torch.randn(3, 2, 4): self.step(x)
T(True).fit()
""",
    "validation_between": """\
cell, h = nn.RNNCell(4, 4), torch.zeros(2, 4)
log = []
for i in range(4):
    h = cell(torch.randn(2, 4), h)
    loss = h.sum()
    loss.backward()
    if i % 2 == 0:
        log.append(loss.item())
        print(f"{loss.item():.3f}")
    if not torch.isfinite(loss):
        raise ValueError("loss")
    assert loss.item() < 1e9
""",
    "moved_to_another_key": """\
seen = {"now": None, "before": None}
def remember(module, args, output):
    seen["before"], seen["now"] = seen["now"], output
net[0].register_forward_hook(remember)
for i in range(3):
    loss = net(torch.randn(2, 4)).pow(2).mean()
    if seen["before"] is not None:
        loss = loss + (seen["now"].mean(0) - seen["before"].exp().mean(0)).pow(2).sum()
    loss.backward()
""",
    "average_by_the_names_of_a_module": """\
from torch.func import functional_call
teacher = {k: v.detach().clone() for k, v in net.named_parameters()}
for i in range(3):
    x = torch.randn(2, 4)
    loss = (net(x) - functional_call(net, teacher, (x + 0.05,))).pow(2).mean()
    loss.backward()
    teacher = {k: 0.9 * teacher[k] + 0.1 * v for k, v in net.named_parameters()}
""",
    "each_by_its_own_key": """\
states = {k: torch.randn(2, 4) for k in ("a", "b")}
for i in range(3):
    states = {k: net(states[k]).tanh() for k in states}
    sum(states[k].sum() for k in states).backward()
""",
    "inputs_behind_what_is_freed": """\
h = net(torch.randn(2, 4)).exp()
h.sum().backward()
torch.autograd.grad((h ** 2).sum(), list(net.parameters()))
""",
    "the_same_inputs_again": """\
loss = net(torch.randn(2, 4)).pow(2).sum()
loss.backward(inputs=[net[0].bias], retain_graph=False)
loss.backward(inputs=[net[0].weight])
""",
    "except": NOT_TAKEN["except"].replace("if x.isnan().any(): raise", "raise"),
    "user_iterator": """\
class It:
    def __init__(self): self.n = 0
    def __iter__(self): return self
    def __next__(self):
        self.n += 1
        if self.n > 3: raise StopIteration
        return torch.randn(2, 4)
h = net(torch.randn(2, 4))
for x in It():
    (h * x).pow(2).sum().backward()
""",
}
"""These fail, and every way on leads there: a warning comes before."""

UNKNOWN = {
    "norm": NOT_TAKEN["norm"].replace("1e9", "1e-9"),
}
"""These fail, which nothing at hand could tell for certain before."""


def watched(body: str, folder: Path, *, fails: bool = False) -> Scope:
    """Run a program in a watch."""
    path = folder / "program.py"
    path.write_text(HEAD + body, encoding="utf-8")
    expected = pytest.raises(RuntimeError, match="second time") if fails else nullcontext()
    with gradscope.watch() as scope:
        with expected:  # not a `try`, which could catch what the program raises itself
            runpy.run_path(str(path), run_name="__main__")
        assert not scope.recording().summary.notes
    return scope


def said(body: str, folder: Path, *, fails: bool) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the findings of a program and their notes."""
    scope = watched(body, folder, fails=fails)
    found = [(finding.code, finding.severity.value) for finding in scope.findings]
    return found, [note.message for finding in scope.findings for note in finding.related]


@pytest.mark.parametrize("name", NOT_TAKEN)
def test_a_branch_that_is_not_taken_is_no_warning(name: str, tmp_path: Path) -> None:
    found, notes = said(NOT_TAKEN[name], tmp_path, fails=False)
    assert found == ([("GS102", "advice")] if name in ADVICE else [])
    if name in ADVICE:
        assert any(note.startswith(f"if {ADVICE[name]}, ") for note in notes)


@pytest.mark.parametrize("name", TAKEN)
def test_what_every_way_leads_to_is_a_warning(name: str, tmp_path: Path) -> None:
    found, _ = said(TAKEN[name], tmp_path, fails=True)
    assert found == [("GS102", "warning"), ("GS101", "error")]


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_known_is_no_warning(name: str, tmp_path: Path) -> None:
    found, notes = said(UNKNOWN[name], tmp_path, fails=True)
    assert found[-1] == ("GS101", Severity.ERROR)
    assert {severity for _, severity in found[:-1]} <= {Severity.ADVICE}
    assert len(found) == 1 or any(note.startswith("if ") for note in notes)


RUNS_ON = "if i >= 0: loss = loss + out.pow(2).sum()"
STORES = {
    "never_run": (RUNS_ON.replace("i >= 0", "net is None"), "loss = out.sum()"),
    "run": (RUNS_ON, RUNS_ON),
    "a_later_iteration": ("if i > 10: loss = out.max()", "loss = out.sum()"),
}


@pytest.mark.parametrize("name", STORES)
def test_a_holder_is_told_from_a_line_that_was_run(name: str, tmp_path: Path) -> None:
    line, expected = STORES[name]
    body = NOT_TAKEN["norm"].replace("    loss.backward()", f"    {line}\n    loss.backward()", 1)
    (found,) = watched(body, tmp_path).findings
    (held,) = (note for note in found.related if note.message.endswith("from here on"))
    assert (HEAD + body).splitlines()[known(held.site).line - 1].strip() == expected


HELPERS = """\
import functools
import torch

SETTING = False

def repackage(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage(v) for v in h)

def scaled(scale, h):
    return repackage(h) if scale else h

def apply(function, h):
    return function(h)

def by_setting(h):
    return h if SETTING else h.detach()

def without_history(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        with torch.no_grad():
            return function(*args, **kwargs)
    return inner

@without_history
def decorated(h):
    return h * 1.0

class Cutter:
    def __init__(self, keep=False):
        self.keep = keep
    def __call__(self, h):
        return self.cut(h)
    def cut(self, h):
        return h if self.keep else repackage(h)
    @staticmethod
    def static(h):
        return repackage(h)
    @classmethod
    def of_class(cls, h):
        return cls.static(h)

partial = functools.partial(scaled, 2.0)
cut_it = lambda h: h.detach()
cutter, keeper = Cutter(), Cutter(keep=True)
bound = cutter.cut
table = {"cut": repackage}
"""
"""A module of functions that cut a state off from its graph, or do not."""

CUT_ELSEWHERE = (
    *("repackage(h)", "renamed(h)", "helpers.repackage((h,))[0]", "repackage(h=h)", "partial(h)"),
    *("cut_it(h)", "table['cut'](h)", "bound(h)", "cutter.cut(h)", "cutter(h)", "by_setting(h)"),
    *("Cutter.static(h)", "Cutter.of_class(h)", "decorated(h)", "scaled(1, h)"),
    *("apply(repackage, h)", "apply(lambda a: a.detach(), h)"),
)
KEPT_ELSEWHERE = ("keeper.cut(h)", "scaled(0, h)", "apply(lambda a: a, h)")

ELSEWHERE = """\
from helpers import *
import helpers
from helpers import repackage as renamed
cell, h = nn.RNNCell(4, 4), torch.zeros(2, 4)
for i in range(4):
    h = {cut}
    h = cell(torch.randn(2, 4), h)
    h.pow(2).sum().backward()
"""


@pytest.fixture(params=["of the user", "of a library"])
def helpers(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Put a module next to the program, or where libraries are installed."""
    folder = tmp_path / "installed"
    folder.mkdir()
    (folder / "helpers.py").write_text(HELPERS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    if request.param == "of a library":
        monkeypatch.setattr(sites, "_INSTALLED", (*sites._INSTALLED, f"{folder}/"))
    yield
    sys.modules.pop("helpers", None)


@pytest.mark.usefixtures("helpers")
def test_a_helper_does_what_its_code_says_wherever_it_lies(tmp_path: Path) -> None:
    for cut in CUT_ELSEWHERE:
        assert said(ELSEWHERE.format(cut=cut), tmp_path, fails=False) == ([], []), cut
    for kept in KEPT_ELSEWHERE:
        found, _ = said(ELSEWHERE.format(cut=kept), tmp_path, fails=True)
        assert found == [("GS102", "warning"), ("GS101", "error")], kept


@pytest.mark.usefixtures("helpers")
def test_what_is_not_read_to_its_end_is_no_warning(tmp_path: Path) -> None:
    found, _ = said(ELSEWHERE.format(cut="Cutter().cut(h)"), tmp_path, fails=False)
    assert set(found) <= {("GS102", "advice")}


AGENT = """\
import torch
from torch import nn

class Agent:
    def __init__(self, room):
        self.net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
        self.buffer, self.room = [], room
    def act(self, state):
        return int(self.net(state).argmax())
    def run(self, state, learning=True):
        action = self.act(state)
        self.buffer.append(state)
        if learning and len(self.buffer) == self.room:
            self.train_model()
        return action
    def train_model(self):
        self.net(torch.stack(self.buffer)).pow(2).mean().backward()
        self.buffer.clear()
"""
RUNS = {
    "never_full": ("for i in range(10): agent.run(torch.randn(4))", ""),
    "full_at_last": ("for i in range(40): agent.run(torch.randn(4))", "act"),
    "warmed_up": (
        "for i in range(9): agent.run(torch.randn(4))\nfor i in range(9): agent.run(torch.randn(4))",
        "act",
    ),
    "told_not_to_learn": (
        "for i in range(20): agent.run(torch.randn(4))\n"
        "for i in range(40): agent.run(torch.randn(4), learning=False)",
        "run",
    ),
    "trains_now_and_then": (
        "for i in range(10):\n"
        "    loss = agent.net(torch.randn(8, 4)).pow(2).mean()\n"
        "    if i % 100 == 99: loss.backward()",
        "",
    ),
}
"""What runs an agent, and what may be called under no_grad as it has shown not to train."""


@pytest.mark.parametrize("name", RUNS)
def test_no_line_is_named_that_may_yet_train(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, untrained = RUNS[name]
    (tmp_path / "agent_at_hand.py").write_text(AGENT, encoding="utf-8")
    (tmp_path / "main.py").write_text(
        f"import torch\nfrom agent_at_hand import Agent\nagent = Agent(16)\n{body}\n", "utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with gradscope.watch() as scope:
        runpy.run_path(str(tmp_path / "main.py"), run_name="__main__")
    sys.modules.pop("agent_at_hand", None)
    named = [finding.site for finding in scope.findings if finding.code == "GS305"]
    lines = [source.line_of(site.file, site.line) for site in named if site is not None]
    assert len(lines) == bool(untrained)
    assert all(f".{untrained}(" in line for line in lines)


ADJOINT = """\
import torch

class Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, y, *parameters):
        ctx.function = function
        ctx.save_for_backward(y, *parameters)
        with torch.no_grad():
            return y + function(y)
    @staticmethod
    def backward(ctx, grad):
        y, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            y = y.detach().requires_grad_(True)
            f = ctx.function(y)
            found = torch.autograd.grad(
                f, (y, *parameters), grad, allow_unused=True, retain_graph=True
            )
        return (None, grad + found[0], *found[1:])

def solve(function, y):
    return Adjoint.apply(function, y, *function.parameters())
"""


def test_a_retain_of_a_library_is_not_the_user_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "adjoint.py").write_text(ADJOINT, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    body = """\
from adjoint import solve
for i in range(5):
    solve(net, torch.randn(2, 4)).pow(2).mean().backward()
"""
    try:
        assert said(body, tmp_path, fails=False)[0] == [("GS303", "advice")]
        sys.modules.pop("adjoint")
        monkeypatch.setattr(sites, "_INSTALLED", (*sites._INSTALLED, str(tmp_path / "adjoint")))
        assert said(body, tmp_path, fails=False)[0] == []
    finally:
        sys.modules.pop("adjoint", None)


HOLDER = """\
import torch
class Holder:
    def __init__(self, net):
        self.net, self.state = net, torch.zeros(2, 4)
    def step(self, x):
        y = self.net(x)
        self.state = self.state + y
        return y.pow(2).mean()
    def fit(self, x):
        self.step(x).backward()
"""


def test_one_thing_by_two_names_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "holder.py").write_text(HOLDER, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    fit = "for i in range(30): o.fit(torch.randn(2, 4))\n"
    step = "for i in range(30): o.step(torch.randn(2, 4)).backward()\n"
    for body in (fit + step, step + fit):
        body = f"from holder import Holder\no = Holder(net)\n{body}"
        assert [code for code, _ in said(body, tmp_path, fails=False)[0]] == ["GS302"]
    sys.modules.pop("holder", None)


def test_waste_of_a_few_bytes_is_counted_and_not_told(tmp_path: Path) -> None:
    body = """\
large = nn.Linear(4, 4)
for i in range(5):
    w = torch.ones(2, requires_grad=True)
    w.exp().sum().backward(retain_graph={retain})
    large(torch.randn({rows}, 4)).pow(2).sum().backward()
"""
    for rows, left_out in ((2, 0), (200, 1)):
        scope = watched(body.format(retain=True, rows=rows), tmp_path)
        assert len(scope.findings) == 1 - left_out
        assert scope.recording().summary.left_out == left_out


def test_ways_that_leave_the_same_are_one_way(tmp_path: Path) -> None:
    body = """\
class Learner:
    use_replay = "inequality"
    def step(self, x, x_):
        loss_replay = net(x_).abs().mean()
        if self.use_replay in ("inequality", "both"):
            loss_replay.backward()
            grads = []
            for p in net.parameters():
                if p.requires_grad:
                    grads.append(p.grad.data.view(-1))
        loss_cur = net(x).pow(2).mean()
        if x is None or self.use_replay == "normal":
            loss_cur = loss_cur + loss_replay
        loss_cur.backward()
        angle, index = torch.cat(grads).sum(), 0
        if angle < 0:
            for p in net.parameters():
                if p.requires_grad:
                    p.grad.copy_(p.grad * angle)
                    index += p.numel()
        return {"now": loss_cur.item(), "replay": loss_replay.item() if x is not None else 0}
learner = Learner()
for i in range(3):
    learner.step(torch.randn(2, 4), torch.randn(2, 4))
"""
    assert said(body, tmp_path, fails=False) == ([], [])
    body = body.replace('== "normal"', '== "inequality"')
    found, _ = said(body, tmp_path, fails=True)
    assert found == [("GS102", "warning"), ("GS101", "error")]
