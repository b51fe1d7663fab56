"""GS506, and GS502 of what is frozen: ``requires_grad`` set where autograd does not read it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradscope.rules import gs506
from tests import examples
from tests.rules.saying import LOOP, check_wording, findings_of

START = "net = Net()\nopt = torch.optim.SGD(net.parameters(), 0.1)\n"
FREEZE = "for p in net.body.parameters(): p.requires_grad = False\n"
STEPS = "for _ in range(4): step(opt, F.mse_loss(net(x), y))\n"
FOUND = {
    "a module": ("net.body.requires_grad = False", "GS506"),
    "modules in a loop": ("for each in [net.body]:\n    each.requires_grad = False", "GS506"),
    "another name": ("for p in net.body.parameters(): p.require_grad = False", "GS506"),
    "a frozen module": (FREEZE + "net.body.requires_grad = True", "GS502"),
}
HEALTHY = {
    "its parameters agree": FREEZE + "net.body.requires_grad = False",
    "thawed later": FREEZE + "net.body.requires_grad = True\nnet.body.requires_grad_(True)",
    "a method": "net.body.requires_grad_(False)",
    "an attribute of the class": """
class Own(Net):
    def forward(self, x):
        return super().forward(x) if self.requires_grad else x.sum(1, keepdim=True)
net = Own()
net.requires_grad = False
net.requires_grad_(True)
opt = torch.optim.SGD(net.parameters(), 0.1)
net.forward = super(Own, net).forward
""",
}


@pytest.mark.parametrize(("lines", "code"), FOUND.values(), ids=FOUND)
def test_what_is_set_beside_is_found_with_its_line(lines: str, code: str, tmp_path: Path) -> None:
    (found,), error = findings_of(LOOP + START + textwrap.dedent(lines) + "\n" + STEPS, tmp_path)
    assert (found.code, error) == (code, "")
    assert found.parameters == ("net.body.weight", "net.body.bias")
    assert found.site is not None
    assert found.site.line == (LOOP + START + lines).count("\n") + 1
    check_wording(found)


@pytest.mark.parametrize("lines", HEALTHY.values(), ids=HEALTHY)
def test_nothing_is_said_where_nothing_is_amiss(lines: str, tmp_path: Path) -> None:
    assert findings_of(LOOP + START + lines + "\n" + STEPS, tmp_path) == ([], "")


def test_the_examples_of_the_page(tmp_path: Path) -> None:
    findings, error = findings_of(examples.bad(gs506.RULE), tmp_path)
    assert ([f.code for f in findings], error) == (["GS506"], "")
    assert findings_of(examples.good(gs506.RULE), tmp_path) == ([], "")
