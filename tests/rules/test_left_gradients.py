"""GS504 at the call that adds: to what another optimizer's loss has left, or the closure's run before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rules.saying import LOOP, check_wording, findings_of

CLOSURE = """
net = Net()
opt = torch.optim.LBFGS(net.parameters(), 0.1, max_iter=4, line_search_fn={search!r})
def closure():
    {inside}
    loss = F.mse_loss(net(x), y)
    loss.backward()  # adds
    return loss
for _ in range(3):
    opt.zero_grad()
    opt.step(closure)
"""
PAIR = """
g, d = nn.Linear(4, 4), nn.Linear(4, 1)
g_opt, d_opt = torch.optim.SGD(g.parameters(), 0.1), torch.optim.SGD(d.parameters(), 0.1)
for _ in range(5):
    {first}
    d_loss = F.mse_loss(d(x), y) - d(g(x).detach()).mean()
    d_loss.backward()  # adds
    d_opt.step()
    {after}
    g_loss = d(g(x)).mean()
    g_loss.backward()
    g_opt.step()
    g_opt.zero_grad()
"""
HEADS = """
body, one, two = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
opts = [torch.optim.SGD(each.parameters(), 0.1) for each in (body, one, two)]
for _ in range(5):
    for opt in opts:
        opt.zero_grad()
    F.mse_loss(one(body(x)), y).backward()
    opts[1].step()
    two(body(x)).mean().backward()
    opts[2].step()
    opts[0].step()
"""


def check_added(source: str, folder: Path) -> None:
    (found,), error = findings_of(LOOP + source, folder)
    assert (found.code, error) == ("GS504", "")
    assert found.site is not None
    lines = (LOOP + source).split("\n")
    assert lines[found.site.line - 1].endswith("# adds")
    check_wording(found)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_a_closure_that_resets_nothing_is_found(search: str | None, tmp_path: Path) -> None:
    check_added(CLOSURE.format(search=search, inside="pass"), tmp_path)


@pytest.mark.parametrize("reset", ["opt.zero_grad()", "opt.zero_grad(set_to_none=False)"])
def test_a_closure_that_resets_is_healthy(reset: str, tmp_path: Path) -> None:
    source = CLOSURE.format(search="strong_wolfe", inside=reset)
    assert findings_of(LOOP + source, tmp_path) == ([], "")


def test_what_the_generators_loss_leaves_is_found(tmp_path: Path) -> None:
    check_added(PAIR.format(first="pass", after="d_opt.zero_grad()"), tmp_path)


@pytest.mark.parametrize("reset", ["d_opt.zero_grad()", "d.zero_grad(set_to_none=False)"])
def test_what_is_reset_before_the_call_is_healthy(reset: str, tmp_path: Path) -> None:
    source = PAIR.format(first=reset, after="pass")
    assert findings_of(LOOP + source, tmp_path) == ([], "")


def test_a_body_that_two_heads_train_in_turn_is_healthy(tmp_path: Path) -> None:
    assert findings_of(LOOP + HEADS, tmp_path) == ([], "")
