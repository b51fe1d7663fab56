"""Programs that the engine stops: with the edit they run, and every way to write the statement can be edited."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from edited import Write, edited, run

from gradscope.fixing import calls, in_place, moves, recompute, values
from gradscope.fixing.edits import joined

LOSSES = """\
import torch
net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
scaler = torch.amp.GradScaler("cpu", enabled=False)
class self: scaler = scaler; backward = lambda loss: loss.backward()
def manual_backward(loss): loss.backward()
for step in range(2):
    h = net[:2](torch.ones(4, 3)).exp()
    a, b = net[2](h).sum(), net[2](h).pow(2).sum()
{}
"""

PAIRS = {
    "two lines": "a.backward()\nb.backward()",
    "one line": "a.backward(); b.backward()",
    "one-line body": "if step >= 0: a.backward(); b.backward()",
    "comments": "# first\na.backward()  # one\n\n# second\nb.backward()  # two",
    "several lines": "(\n    a\n).backward(\n)\n(b\n .backward())",
    "expressions": "(-a).backward()\n(0.5 * b).backward()",
    "products": "(a * 2 - 1).backward()\n(b / 3 + 1).backward()",
    "conditions": "(a if step else -a).backward()\n(b or a).backward()",
    "calls": "h.sum().backward()\nnet[2](h).mean().backward()",
    "by the module": "torch.autograd.backward(a)\ntorch.autograd.backward(b)",
    "scaled": "scaler.scale(a).backward()\nscaler.scale(b).backward()",
    "scaled by an attribute": "self.scaler.scale(a).backward(\n)\nself.scaler.scale(b).backward()",
    "by a library": "self.backward(a)\nself.backward(b)",
    "by a function": "manual_backward(a)\nmanual_backward(b)",
    "something between": "a.backward()\nprint(end='')\nb.backward()",
    "one made between": "a.backward()\nc = h.cos().sum()\nc.backward()",
    "in a with": "with torch.enable_grad():\n    a.backward()\n    b.backward()",
    "in a function": "def both():\n    a.backward()\n    b.backward()\nboth()",
    "in a lambda": "(lambda: a.backward())()\nb.backward()",
}


@pytest.mark.parametrize("name", PAIRS)
def test_two_losses_are_summed(name: str, tmp_path: Path) -> None:
    data = LOSSES.format(textwrap.indent(PAIRS[name], "    ")).encode()
    lines = [line for line in PAIRS[name].replace(";", "\n").split("\n") if "backward" in line]
    first, second = (call.partition(":")[2] if "if " in call else call for call in lines[:2])

    new = edited(data, lambda at: calls.sum_losses(at(first.strip()), at(second.strip())), tmp_path)
    assert run(data) == "freed"
    if name == "in a lambda":
        assert new == b""  # the first call may be made anywhere
    else:
        assert run(new) == "nothing"


FLAGS = {
    "plain": "a.backward()",
    "arguments": "a.backward(inputs=[*net.parameters()])",
    "lines": "a.backward(\n    inputs=[*net.parameters()],  # all\n)",
    "lines without a comma": "a.backward(\n    None,\n    inputs=[*net.parameters()]\n)",
    "false": "a.backward(retain_graph=False)",
    "by position": "a.backward(None, False)",
    "a gradient": "g = torch.autograd.grad(a, [*net.parameters()])",
    "gradients by lines": "g = torch.autograd.grad(\n    a,\n    [*net.parameters()],\n)",
    "gradients by position": "g = torch.autograd.grad(a, [*net.parameters()], None, False)",
    "the module's": "torch.autograd.backward([a], [torch.tensor(1.0)])",
    "in a comprehension": "g = [one for one in torch.autograd.grad(a, [*net.parameters()])]",
    "one-line body": "if step >= 0: a.backward(); c = 1",
    "not ASCII": "größe = 'é𝄞'; a.backward()",
}


@pytest.mark.parametrize("name", FLAGS)
def test_a_graph_is_retained_and_let_go_again(name: str, tmp_path: Path) -> None:
    text = LOSSES.format(textwrap.indent(f"{FLAGS[name]}\nb.backward()", "    "))
    call = next(s for s in ("a.backward", "torch.autograd.") if s in FLAGS[name])
    data = text.encode()
    new = edited(data, lambda at: calls.with_flag(at(call), "retain_graph"), tmp_path)
    assert run(data) == "freed"
    assert run(new) == "nothing"
    back = edited(new, lambda at: calls.without_flag(at(call), "retain_graph"), tmp_path)
    assert run(back) == "freed"


SAVED = """\
import torch
from torch.nn import functional as F
net = torch.nn.Linear(3, 3)
def f(value): return value
x = net(torch.ones(4, 3)).exp()
y = x * x
{}
(y.sum() + x.sum()).backward()
"""

METHODS = frozenset({"add", "mul", "relu", "clamp", "masked_fill", "sub", "div", "exp", "zero"})

CHANGES = {
    "sum": "x += 1",
    "sum of lines": "x += (\n    1  # one\n)",
    "difference of two": "x -= x.mean() - 1",
    "product": "x *= 2; z = 1",
    "one-line body": "if True: x /= 2",
    "method": "x.add_(1)",
    "method of lines": "x.clamp_(  # within\n    min=0.5,\n    max=2,\n)",
    "chain": "x.mul_(2).add_(1)",
    "stored": "x = x.relu_()",
    "stored elsewhere": "z = x.add_(1)",
    "keywords": "x.masked_fill_(mask=x > 1, value=0)",
    "spaces": "x  .  mul_( 2 )",
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("way", ["out of place", "what was saved"])
def test_nothing_that_is_saved_is_changed(name: str, way: str, tmp_path: Path) -> None:
    data = SAVED.format(CHANGES[name]).encode()
    start = CHANGES[name].split("\n")[0].removeprefix("if True: ")
    writes: dict[str, Write] = {
        "out of place": lambda at: in_place.out_of_place(at(start), METHODS),
        "what was saved": lambda at: joined(
            values.clone_reads(at("y = x"), "x"), values.stored_as(at("x = net"), "torch.clone")
        ),
    }
    new = edited(data, writes[way], tmp_path)
    assert run(data) == "stale"
    assert run(new) == "nothing"


MADE_ONCE = """\
import functools, torch
net = torch.nn.Linear(3, 3)
class Holder:
    z = None
    def __init__(self, net):
        self.net = net
        self.w = net.weight.exp()
    def head(self, x):
        '''Doc.'''
        return x @ self.w
    def kept(self):
        if self.z is None:  # once
            self.z = net.weight.exp()
        return self.z
    def early(self):
        if hasattr(self, "e"):
            return self.e
        self.e = net.weight.exp()
        return self.e
@functools.lru_cache(maxsize=None)  # once
def cached():
    return net.weight.exp()
memo = {{}}
def filled(key):
    if key not in memo: memo[key] = net.weight.exp()
    return memo[key]
holder = Holder(net)
# of all steps
z = net(torch.ones(4, 3)).exp()
a, b = z.cos(), z.sin()
for step in range(2):
    # one step
    {}
    loss.backward()
"""

USES: dict[str, tuple[str, Write]] = {
    "a variable": ("loss = z.sum()", lambda at: recompute.recomputed(at("loss"), ["z"])),
    "two of a tuple": (
        "loss = (a + b).sum()",
        lambda at: recompute.recomputed(at("loss"), ["z", "a", "b"]),
    ),
    "before the next": (
        "loss = a.sum()",
        lambda at: recompute.recomputed(at("for"), ["z", "a", "b"]),
    ),
    "an attribute": (
        "loss = holder.head(torch.ones(4, 3)).sum()",
        lambda at: recompute.recomputed_in(at("return x"), at("self.w =")),
    ),
    "if it is None": ("loss = holder.kept().sum()", lambda at: recompute.rebuilt(at("self.z ="))),
    "an early return": (
        "loss = holder.early().sum()",
        lambda at: recompute.rebuilt(at("self.e =")),
    ),
    "a table": ("loss = filled(1).sum()", lambda at: recompute.rebuilt(at("memo[key]"))),
    "a decorator": ("loss = cached().sum()", lambda at: recompute.uncached(at("def cached"))),
}


@pytest.mark.parametrize("name", USES)
def test_what_was_made_once_is_made_again(name: str, tmp_path: Path) -> None:
    use, write = USES[name]
    data = MADE_ONCE.format(use).encode()
    assert run(data) == "freed"
    assert run(edited(data, write, tmp_path)) == "nothing"


TWO_OPTIMIZERS = """\
import torch
G, D = torch.nn.Linear(3, 3), torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
oG, oD = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)
for step in range(2):
    fake = G(torch.randn(4, 3))
    score = D(fake).exp()
    {}
    oD.zero_grad()
    d_loss.backward(retain_graph=True)
    oD.step()  # of D
    oG.zero_grad()
    g_loss.backward()
    oG.step()
assert G.weight.grad is not None
"""


@pytest.mark.parametrize(
    "losses",
    [
        "d_loss = score.mean()\n    g_loss = -score.mean()",
        "d_loss, g_loss = score.mean(), -score.mean()",
        "d_loss = score.mean(); g_loss = -score.mean()",
        "d_loss = score.mean()\n    g_loss = (\n        -score  # not\n    ).mean()",
        "d_loss = score.mean()\n    with torch.enable_grad():\n        g_loss = -score.mean()",
    ],
)
@pytest.mark.parametrize("way", ["again", "move the step", "move the call"])
def test_a_step_between_two_losses(losses: str, way: str, tmp_path: Path) -> None:
    data = TWO_OPTIMIZERS.format(losses).encode()
    writes: dict[str, Write] = {
        "again": lambda at: recompute.forward_again(at("g_loss.backward()"), ["score"]),
        "move the step": lambda at: moves.move_after(at("oD.step()"), at("g_loss.backward()")),
        "move the call": lambda at: moves.move_before(at("g_loss.backward()"), at("oD.step()")),
    }
    assert run(data) == "stale"
    new = edited(data, writes[way], tmp_path)
    assert run(new if way != "move the call" else new.replace(b"oG.zero_grad()", b"")) == "nothing"


TOTALS = """\
import torch
net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
log = {{"loss": 0.0}}
total = 0.0  # of all
for step in range(3):
    loss = net(torch.ones(4, 3)).pow(2).sum()
    {}
    {}.backward()
"""


@pytest.mark.parametrize(
    ("add", "total"),
    [
        ("total += loss", "total"),
        ("total = total + loss", "total"),
        ("total = loss + total  # so far", "total"),
        ("total = (\n        total\n        + loss\n    )", "total"),
        ("total = 0.9 * total + 0.1 * loss", "total"),
        ("total = total + loss / 4", "total"),
        ("total = total + (loss if step >= 0 else 0.0)", "total"),
        ("log['loss'] += loss", "log['loss']"),
        ("log['loss'] = log['loss'] + loss; x = 1", "log['loss']"),
        ("if step >= 0: total += loss", "total"),
    ],
)
def test_a_total_is_a_number_or_begins_anew(add: str, total: str, tmp_path: Path) -> None:
    data = TOTALS.format(add, total).encode()
    assert run(data) == "freed"

    first = add.split("\n")[0].removeprefix("if step >= 0: ")
    new = edited(
        data,
        lambda at: joined(
            values.item_added(at(first), total),
            calls.backward_of(at(f"{total}.backward()"), "loss"),
        ),
        tmp_path,
    )
    assert run(new) == "nothing"
    again = edited(
        data, lambda at: recompute.reset_at_head(at(f"{total}.backward()"), total, "0.0"), tmp_path
    )
    assert run(again) == "nothing"
