"""Loops whose iterations are never alike run without hooks too, and what begins in them late is called all the same."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from test_hook_suspension import recognizing

import gradscope
from gradscope.api.scope import Scope
from gradscope.collect.hook_suspension import HookSuspension
from tests.needs import DETACHED_IS_TOLD, SAVED_IS_TOLD, has

HEALTHY = 200

HEAD = f"""
import random, torch
from torch import nn
torch.manual_seed(0)
draw = random.Random(0)
cell, head = nn.RNNCell(3, 4), nn.Linear(4, 1)
opt = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.01)
errors = []
def attempt(loss, **options):
    try:
        loss.backward(**options)
    except RuntimeError as error:
        errors.append(str(error))
def unroll(h):
    for _ in range(draw.randrange(2, 9)):
        h = cell(torch.randn(len(h), 3), h)
    return h
def new():
    return torch.zeros(draw.randrange(2, 6), 4)
def written(h):
    h = h.clone()
    h[0] = h[0] * 2
    return h
def iterations(late=10):
    for i in range({HEALTHY} + late):
        yield i, i >= {HEALTHY}
"""

RECURRENT = """
for i, late in iterations():
    h = unroll(new())
    opt.zero_grad()
    {before}
    loss = head(h).pow(2).mean()
    {after}
    attempt(loss)
    {then}
    opt.step()
"""


def recurrent(before: str = "pass", after: str = "pass", then: str = "pass") -> str:
    return RECURRENT.format(before=before, after=after, then=then)


BY_ERROR: dict[str, dict[str, str]] = {
    "": {
        "nothing": recurrent(),
        "retained for nothing": recurrent(after="if late: attempt(loss, retain_graph=True)"),
        "a longer sequence": recurrent(before="h = unroll(unroll(unroll(h))) if late else h"),
        "a custom function": """
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g
for i, late in iterations():
    h = unroll(new())
    loss = Square.apply(h).mean()
    if late and i % 2:
        h.detach().add_(1)
    attempt(loss)
    if late and not i % 2:
        attempt(loss)
""",
        "an inner loop": """
for i, late in iterations():
    weight = head.weight
    for _ in range(draw.randrange(1, 4)):
        inner = (unroll(new()).detach() @ weight.T).pow(2).mean()
        (slope,) = torch.autograd.grad(inner, weight, create_graph=True)
        weight = weight - 0.1 * slope
    outer = (unroll(new()) @ weight.T).pow(2).mean()
    if late and i % 2:
        weight.detach().mul_(2)
    opt.zero_grad()
    attempt(outer)
    if late and not i % 2:
        attempt(inner)
    opt.step()
""",
    },
    "second time": {
        "backward twice": recurrent(then="if late: attempt(loss)"),
        "a second root": recurrent(then="if late: attempt(h.exp().sum())"),
        "a retained graph": recurrent(
            after="if late: attempt(loss, retain_graph=True)",
            then="if i % 2 and late: attempt(loss)",
        ),
        "freed by grad": recurrent(
            after="if late: torch.autograd.grad(loss, list(head.parameters()))"
        ),
        "another kind of node": recurrent(
            after="loss = loss.exp() if late else loss", then="if late: attempt(loss)"
        ),
        "a view modified": recurrent(
            before="h = written(h) if late else h", then="if late: attempt(loss)"
        ),
        "state carried over": """
state = torch.zeros(4, 4)
for i, late in iterations():
    h = unroll(state)
    opt.zero_grad()
    attempt(head(h).pow(2).mean())
    opt.step()
    state = h if late else h.detach()
""",
        "a loss of long ago": """
kept = []
for i, late in iterations():
    loss = head(unroll(new())).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i == 150:
        kept.append(loss)
    if late:
        attempt(kept[0])
""",
        "two networks taking turns": """
critic = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
second = torch.optim.SGD(critic.parameters(), lr=0.01)
for i, late in iterations():
    fake = unroll(new())
    second.zero_grad()
    first_loss = critic(fake if late else fake.detach()).mean()
    attempt(first_loss)
    second.step()
    opt.zero_grad()
    second_loss = critic(fake).mean()
    attempt(second_loss)
    opt.step()
""",
        "two losses of one graph": """
for i, late in iterations():
    h = unroll(new())
    opt.zero_grad()
    attempt(head(h).pow(2).mean(), retain_graph=True)
    attempt(h.exp().mean())
    if late:
        attempt(head(h).mean())
    opt.step()
""",
        "a probe that keeps no more": """
for i, late in iterations():
    loss = head(unroll(new())).pow(2).mean()
    opt.zero_grad()
    torch.autograd.grad(loss, list(cell.parameters()), retain_graph=not late)
    attempt(loss)
    opt.step()
""",
        "a gradient penalty": """
for i, late in iterations():
    start = new().requires_grad_()
    out = head(unroll(start))
    (slope,) = torch.autograd.grad(out.sum(), start, create_graph=True)
    loss = out.mean() + slope.pow(2).mean()
    opt.zero_grad()
    attempt(loss)
    if late:
        attempt(slope.pow(2).mean() if i % 2 else loss)
    opt.step()
""",
        "by new hooks of its own": """
for i, late in iterations():
    h = unroll(new())
    if late:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            h = unroll(h)
    loss = head(h).mean()
    attempt(loss)
    if late:
        attempt(loss)
""",
    },
    "modified by an inplace": {
        "saved, then modified": recurrent(after="if late: h.detach().mul_(2)"),
        "a step in between": recurrent(
            after="if late: attempt(loss, retain_graph=True); opt.step()"
        ),
        "a critic that steps too early": """
critic = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
second = torch.optim.SGD(critic.parameters(), lr=0.01)
for i, late in iterations():
    fake = unroll(new())
    early = critic(fake).mean() if late else None
    second.zero_grad()
    first_loss = critic(fake.detach()).mean()
    attempt(first_loss)
    second.step()
    opt.zero_grad()
    attempt(critic(fake).mean() if early is None else early)
    opt.step()
""",
    },
    "detached in-place": {
        "detached in place": recurrent(after="if late: h.detach_()"),
    },
}
"""Programs by the error that the engine raises of each."""

TRAINED = """
    opt.zero_grad()
    loss = head(h).pow(2).mean()
    {{after}}
    attempt(loss)
    {{then}}
    opt.step()
"""

CHECKPOINTED = (
    """
from torch.utils.checkpoint import checkpoint
def segment(h):
    return cell(torch.randn(len(h), 3), h)
for i, late in iterations():
    h = start = new().requires_grad_()
    for _ in range(draw.randrange(1, 5)):
        middle, h = h, checkpoint(segment, h, use_reentrant={reentrant})
"""
    + TRAINED
)

UNDER_HOOKS = (
    """
hooks = {hooks}
for i, late in iterations():
    with hooks:
        h = unroll(new())
"""
    + TRAINED
)

PACKED = {
    "checkpoints": CHECKPOINTED.format(reentrant=False),
    "saved elsewhere": UNDER_HOOKS.format(hooks="torch.autograd.graph.save_on_cpu()"),
    "numbers for tensors": """
table = dict()
def pack(tensor):
    table[len(table)] = tensor.detach()
    return len(table) - 1
"""
    + UNDER_HOOKS.format(hooks="torch.autograd.graph.saved_tensors_hooks(pack, table.__getitem__)"),
}
"""Loops in which hooks of the program's own pack what is saved, at every iteration."""

WITHIN = {"reentrant checkpoints": CHECKPOINTED.format(reentrant=True)}
"""Loops in which backward calls run within others."""

for each, loop in (PACKED | WITHIN).items():

    def program(after: str = "pass", then: str = "pass", loop: str = loop) -> str:
        return loop.format(after=after, then=then)

    early = "if late: attempt(loss, retain_graph=True); opt.step()"
    no_error, freed, modified = (BY_ERROR[e] for e in ("", "second time", "modified by an inplace"))
    no_error[f"{each}, nothing"] = program()
    no_error[f"{each}, twice without what was not packed"] = program(
        then="if late: attempt(h.sum())"
    )
    freed[f"{each}, backward twice"] = program(then="if late: attempt(loss)")
    modified[f"{each}, a step in between"] = program(after=early)
    if "checkpoints" in each:
        modified[f"{each}, an input modified"] = program(after="if late: middle.detach().mul_(2)")

HAZARDS = {name: (text, each[name]) for text, each in BY_ERROR.items() for name in each}

MIXED = (
    *("a custom function", "an inner loop"),
    *(f"{each}, twice without what was not packed" for each in PACKED | WITHIN),
)
"""Programs that meet errors of both kinds, or of a kind that depends on torch."""


def run(source: str) -> tuple[Scope, list[str], int]:
    """Run a program in a watch: the errors that the engine raised, and how many calls were not looked at."""
    scope, variables, recognized = recognizing(HEAD + textwrap.dedent(source))
    return scope, variables["errors"], recognized


def called(scope: Scope) -> list[tuple[str, int]]:
    return [
        (finding.code, finding.count)
        for finding in scope.recording().findings
        if finding.certainty == "certain" and finding.code in ("GS101", "GS201")
    ]


@pytest.mark.full(but=5)
@pytest.mark.parametrize("name", HAZARDS)
def test_what_begins_late_is_called_before_the_engine_raises_it(name: str) -> None:
    if "detached" in name and not has(DETACHED_IS_TOLD):
        pytest.skip("this torch does not tell without hooks what was detached in place")
    if name.startswith(tuple(PACKED)) and not has(SAVED_IS_TOLD):
        pytest.skip("this torch does not show what hooks of the program's have packed")
    text, source = HAZARDS[name]
    scope, errors, recognized = run(source)
    assert recognized > HEALTHY / 2
    raised = {
        "GS101": sum("second time" in error for error in errors),
        "GS201": sum("second time" not in error for error in errors),
    }
    assert all(text in error for error in errors)
    assert bool(errors) == bool(text) or name in MIXED
    counts = {"GS101": 0, "GS201": 0}
    for code, count in called(scope):
        counts[code] += count
    assert counts == raised
    assert not [finding for finding in scope.findings if finding.missed]


@pytest.mark.full(but=3)
@pytest.mark.parametrize("name", BY_ERROR["second time"])
def test_who_freed_it_and_where_it_was_made_is_what_the_hooks_would_say(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope, _, _ = run(HAZARDS[name][1])
    monkeypatch.setattr(HookSuspension, "after_hooked", lambda *_: None)
    hooked, _, recognized = run(HAZARDS[name][1])
    assert recognized == 0
    light, full = (
        [
            {(r.role, r.site.line) for r in finding.related if r.site is not None}
            for finding in each.findings
            if finding.certainty == "certain"
        ]
        for each in (scope, hooked)
    )
    # Of what was built inside a backward call it is not always known where; nothing else is said.
    assert len(light) >= len(full)
    for one in light:
        assert any(
            one <= other and {role for role, _ in other - one} <= {"created"} for other in full
        )


@pytest.mark.parametrize("look", [gradscope.check, gradscope.snapshot, gradscope.saved_tensors])
def test_a_look_that_the_program_asks_for_counts_no_node_twice(look: Any) -> None:
    def total(look: Any) -> tuple[int, int, int]:
        net = torch.nn.Linear(3, 1)
        with gradscope.watch() as scope:
            for _ in range(HEALTHY):
                loss = net(torch.ones(2, 3)).tanh().sum()
                look(loss)
                loss.backward()
        summary = scope.summary
        return summary.nodes, summary.nodes_destroyed, summary.saved_tensors

    assert total(look) == total(lambda loss: None)
