"""Findings about gradients that do not arrive, with all that a rehearsal adds: the cut, the names, the edit that holds.

The first line of each program in ``tests/cases/births`` says what is right: the kind, the line that cuts and others that are as
good, the parameters, and whether an edit is known that makes it train.
"""

from __future__ import annotations

import json
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from gradscope.fixing import births
from gradscope.fixing.runs import Bounds, Program
from gradscope.launch import origins_run, trial  # noqa: F401 - once, for all forks
from gradscope.launch.interpreter import header_of
from gradscope.model import Finding, Proof, Severity
from tests import known
from tests.command import started

PROGRAMS = sorted((Path(__file__).parents[1] / "cases" / "births").glob("*.py"))
CODES = {
    "no_graph": ["GS501"],
    "unreached": ["GS502"],
    "unused": ["GS502"],
    "not_stepped": ["GS503"],
    "not_reset": ["GS504"],
    "unused_input": ["GS505"],
    "clean": [],
}
IN_WORDS = {"objective_registry", "char_transformer", "maml_sinusoid"}
"""No edit is known that mends these: it would have to know what is meant."""


def found(file: Path) -> list[Finding]:
    """The findings about births in a program, as after a run that was rehearsed."""
    program = Program(header_of([str(file)], hooks=True), True, started)
    recording = program.run((), Bounds(200, 500)).recording
    assert recording is not None
    if any(each.is_born for each in recording.findings):
        end = time.monotonic() + 500
        recording = births.improved(recording, program, end, lambda doing: None)
    return [each for each in recording.findings if each.is_born]


@pytest.mark.full(but=6)
@pytest.mark.parametrize("file", PROGRAMS, ids=lambda file: file.stem)
def test_it_finds_the_cut_and_what_mends_it(file: Path) -> None:
    with file.open(encoding="utf-8") as lines:
        right: dict[str, Any] = json.loads(next(lines).removeprefix("# expect: "))
    findings = found(file)
    assert [each.code for each in findings] == CODES[right["kind"]]
    for each in findings:
        sites = [each.site, *(related.site for related in each.related)]
        told = {site.line for site in sites if site is not None}
        assert told & {right["cut_line"], *right["cut_also"]}
        assert all(any(fnmatch(name, own) for own in right["params"]) for name in each.parameters)
        assert all(any(fnmatch(name, own) for name in each.parameters) for own in right["params"])
        assert (each.severity is Severity.ADVICE) == (right["kind"] == "unused")
        assert each.fix is not None
        assert (each.fix.proof is Proof.HELD) == (file.stem not in IN_WORDS)
        assert not any("loss.requires_grad" in fix.message for fix in each.fixes)


HEALTHY_AND_NOT = """\
import torch
from torch import nn
import torch.nn.functional as F

enc, head, spare = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 4)
own = [*enc.parameters(), *head.parameters(), *spare.parameters()]
optimizer = torch.optim.SGD(own, 0.1)
for step in range(6):
    x = torch.randn(8, 4)
    out = head(enc(x))
    with torch.no_grad():
        shown = spare(x).mean()
    print(shown.item())
    loss = F.mse_loss(out, torch.ones(8, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_what_is_only_shown_is_advice(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(HEALTHY_AND_NOT)
    (finding,) = found(file)
    assert finding.code == "GS502"
    assert finding.severity is Severity.ADVICE
    assert finding.parameters == ("spare.weight", "spare.bias")
    assert finding.site is not None
    assert finding.site.line == 13
    assert "no loss from that" in finding.label


FROZEN = """\
import torch
from torch import nn

net, more = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), nn.Linear(2, 2)
for p in net.parameters():
    p.requires_grad = False
net[1].requires_grad = True
optimizer = torch.optim.SGD({}, 0.1)
for step in range(4):
    loss = {}.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("code", "held", "out"),
    [
        ("GS501", "net[1].parameters()", "net(torch.randn(8, 4))"),
        ("GS502", "[*net.parameters(), *more.parameters()]", "more(net(torch.randn(8, 4)))"),
    ],
)
def test_what_is_thawed_at_the_module_only_is_thawed(
    code: str, held: str, out: str, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(FROZEN.format(held, out))
    (finding,) = found(file)
    assert finding.code == code
    assert known(finding.fix).proof is Proof.HELD
    assert known(finding.fix).edits[0].replacement == "net[1].requires_grad_(True)"


TAUGHT = """\
import copy
import torch
from torch import nn

net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
teacher = copy.deepcopy(net)
for p in net.parameters():
    p.requires_grad = False
net[1].requires_grad = True
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(4):
    x = torch.randn(8, 4)
    with torch.no_grad():
        target = teacher(x).sign()
    loss = nn.functional.mse_loss(net(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_what_is_frozen_is_meant_and_not_the_labels_of_a_teacher(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(TAUGHT)
    (finding,) = found(file)
    assert (finding.code, known(finding.fix).proof) == ("GS501", Proof.HELD)
    assert known(finding.fix).edits[0].replacement == "net[1].requires_grad_(True)"


READ_ONCE = """\
import torch
from torch import nn

body, head = nn.Linear(4, 4), nn.Linear(4, 2)
own = filter(lambda p: p.requires_grad, body.parameters())
print(sum(p.numel() for p in own))
optimizer = torch.optim.SGD([{"params": own}, {"params": head.parameters()}], 0.1)
for step in range(4):
    loss = head(body(torch.randn(8, 4))).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_an_iterator_that_was_read_becomes_a_list(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(READ_ONCE)
    (finding,) = found(file)
    assert (finding.code, finding.severity) == ("GS503", Severity.WARNING)
    assert "emptied" in [each.role for each in finding.related]
    assert known(finding.fix).proof is Proof.HELD
    assert known(finding.fix).edits[0].line == 5


CLOSURE = """\
import torch
from torch import nn

net = nn.Linear(4, 1)
x, y = torch.randn(8, 4), torch.randn(8, 1)
optimizer = torch.optim.LBFGS(net.parameters(), 0.1, max_iter=4)
def closure():
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()
    return loss
for step in range(4):
    optimizer.zero_grad()
    optimizer.step(closure)
"""


def test_a_closure_resets_before_it_adds(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(CLOSURE)
    (finding,) = found(file)
    assert (finding.code, known(finding.fix).proof) == ("GS504", Proof.HELD)
    assert "optimizer.zero_grad()" in known(finding.fix).edits[0].replacement


RESET_TOO_EARLY = """\
import torch
from torch import nn
import torch.nn.functional as F

net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
def clean():
    net.zero_grad()

for step in range(6):
    loss = F.mse_loss(net(torch.randn(8, 4)), torch.ones(8, 1))
    loss.backward()
    {}
    optimizer.step()
"""


@pytest.mark.parametrize(
    "line", ["optimizer.zero_grad()", "clean()", "reset = net.zero_grad; reset()"]
)
def test_what_resets_too_early_is_moved_behind_the_step(line: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(RESET_TOO_EARLY.format(line))
    (finding,) = found(file)
    is_seen = line.startswith("optimizer")
    assert (finding.code, finding.severity) == ("GS503", Severity.WARNING)
    assert known(finding.site).line == 14 - is_seen
    assert known(finding.fix).proof is (Proof.UNTRIED if "reset" in line else Proof.HELD)


RESET_IN_PART = """\
import torch
from torch import nn
import torch.nn.functional as F

net, head = nn.Linear(4, 4), nn.Linear(4, 1)
optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], 0.1)
for step in range(12):
    loss = F.mse_loss(head(net(torch.randn(8, 4))), torch.ones(8, 1))
    net.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_what_resets_others_stays_where_gradients_are_never_reset(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(RESET_IN_PART)
    (finding,) = found(file)
    assert finding.code == "GS504"
    (edit,) = known(finding.fix).edits
    assert known(finding.fix).proof is Proof.HELD
    assert edit.replacement == "    optimizer.step()\n    optimizer.zero_grad()"


NET = """\
import torch
from torch import nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {made}

    def forward(self, x):
        {run}

net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(12):
    loss = F.mse_loss(net(torch.randn(8, 4)), torch.ones(8, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
HEAD_MADE_LATE = NET.format(
    made="self.body, self.head = nn.Linear(4, 4), None",
    run="""h = self.body(x)
        if self.head is None:
            self.head = nn.Linear(4, 1)
        return self.head(h)""",
)


def test_nothing_is_given_to_an_optimizer_before_it_is_there(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(HEAD_MADE_LATE)
    (finding,) = found(file)
    assert finding.code == "GS503"
    assert not any(fix.edits for fix in finding.fixes)


IN_A_LIST = NET.format(
    made="""self.layers, self.head = [], nn.Linear(4, 1)
        self.layers = [nn.Linear(4, 4)]
        self.layers.append(nn.Linear(4, 4))""",
    run="""for layer in self.layers:
            x = layer(x).tanh()
        return self.head(x)""",
)


def test_modules_of_a_list_are_kept_where_parameters_looks(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(IN_A_LIST)
    (finding,) = found(file)
    assert (finding.code, finding.severity) == ("GS503", Severity.WARNING)
    assert known(finding.fix).proof is Proof.HELD, "though its parameters have other names then"
    assert [edit.replacement for edit in known(finding.fix).edits] == [
        "        self.layers = nn.ModuleList([nn.Linear(4, 4)])"
    ]


MISTAKEN = NET.format(
    made="self.layer1 = nn.Linear(4, 4)\n        self.layer2 = nn.Linear(4, 4)",
    run="""x = self.layer1(x).tanh()
        return self.{}(x).mean(1, keepdim=True)""",
)


@pytest.mark.parametrize(
    ("read", "edits"),
    [("layer1", ["        return self.layer2(x)"]), ("layer1(x) + self.layer1", [])],
)
def test_what_is_read_twice_in_the_place_of_its_like_is_named(
    read: str, edits: list[str], tmp_path: Path
) -> None:
    """With a read more than there are layers, it may be meant."""
    file = tmp_path / "train.py"
    file.write_text(MISTAKEN.format(read))
    (finding,) = found(file)
    assert finding.code == "GS502"
    written = [e.replacement for fix in finding.fixes for e in fix.edits]
    assert [text.split(".mean")[0] for text in written] == edits


CUT_TWICE = """\
import torch
from torch import nn
import torch.nn.functional as F

enc, gen, net = nn.Linear(4, 3), nn.Linear(3, 4), nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters())
opt_g = torch.optim.Adam([*gen.parameters(), *enc.parameters()])
for step in range(6):
    real = torch.randn(8, 4)
    code = enc(real).detach()
    fake = gen(code)
    loss = F.softplus(-net(real)).mean() + F.softplus(net(fake.detach())).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    loss_g = F.softplus(-net(fake)).mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
"""


def test_of_two_cuts_in_a_row_the_one_is_named_behind_which_there_is_no_other(
    tmp_path: Path,
) -> None:
    file = tmp_path / "train.py"
    file.write_text(CUT_TWICE)
    (finding,) = found(file)
    assert (finding.code, finding.severity) == ("GS502", Severity.WARNING)
    assert known(finding.site).line == 10
    assert known(finding.fix).proof is Proof.HELD


ZEROS = """\
import torch
from torch import nn

net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(4):
    x = torch.rand(8, 2, requires_grad=True)
    u = net(x.detach())
    u_x, = torch.autograd.grad(u.sum(), x, create_graph=True, materialize_grads=True)
    loss = (u_x.sum(1, keepdim=True) + u).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_zeros_are_told_with_the_cut(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(ZEROS)
    (finding,) = found(file)
    assert (finding.code, finding.severity) == ("GS505", Severity.ADVICE)
    told = {known(related.site).line: related.message for related in finding.related[1:]}
    assert told == {
        12: "`loss` is computed from these zeros",
        8: "the way was cut here; behind it is `x`",
    }


NOT_ALONE = """\
import torch
from torch import nn

enc, head = nn.Linear(4, 4), nn.Linear(4, 1)
optimizer = torch.optim.SGD([*enc.parameters(), *head.parameters()], 0.1)
for step in range(6):
    loss = head(enc(torch.randn(8, 4)).detach()).pow(2).mean()
    loss = loss.detach().requires_grad_(True)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_loss_that_is_made_a_leaf_is_named(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(NOT_ALONE)
    (finding,) = found(file)
    assert finding.code == "GS502"
    assert finding.severity is Severity.WARNING
    assert finding.site is not None
    assert finding.site.line == 8
    assert "only silences the error" in finding.related[-1].message


GUIDED = """\
import torch
from torch import nn

net, scale = nn.Linear(4, 4), nn.Parameter(torch.ones(()))
seen = []
image = torch.randn(3, 4)
for step in range(2):
    image = image.detach().requires_grad_(True)
    seen.append(net(image).softmax(-1).detach())
    loss = scale * (1 - seen[-1].max())
    (grad,) = torch.autograd.grad(loss, image)
    image = image - grad
"""
FORCES = """\
import torch
from torch import nn

net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def forces(place, training):
    place = place.detach().requires_grad_(True)
    energy = net(place).sum()
    return -torch.autograd.grad(energy, place, create_graph=training)[0]


forces(torch.randn(4, 3), True).pow(2).mean().backward()
net.eval()
with torch.no_grad():
    forces(torch.randn(4, 3), False)
"""


@pytest.mark.parametrize(
    ("program", "mends"),
    [(GUIDED, "leave out detach() in line 9"), (FORCES, "torch.enable_grad()")],
    ids=["an input that a detach cuts off", "forces of an evaluation"],
)
def test_what_a_call_asks_of_its_own_inputs_is_mended(
    program: str, mends: str, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(program)
    finding = next(each for each in found(file) if each.severity is Severity.ERROR)
    assert finding.fix is not None
    assert mends in finding.fix.message
    assert finding.fix.proof is Proof.HELD
