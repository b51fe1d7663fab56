"""Random loops with flags, counters and branches: a prediction made as a warning comes true."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import torch

from gradscope.model import Severity
from tests import known
from tests.watching import found_in

HEAD = """\
import argparse
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
args = argparse.Namespace(aux={aux}, every={every}, stop={stop})
options, log, kept = {{"cut": {cut}, "kind": "{kind}"}}, [], None
def data(n):
    for i in range(n):
        yield torch.randn(1, 2)
def extra(x, on=False):
    if on:
        (x * 2).exp().sum().backward()
def train(steps, flag={flag}):
    global kept
    h, i = torch.zeros(1, 2), -1
"""

LOOPS = (
    ("for i in range(steps):",),
    ("for i, x in enumerate(data(steps)):",),
    ("for i, x in enumerate([1, 2, 3][:steps]):",),
    ("while i + 1 < steps:", "i += 1"),
    ("while True:", "i += 1", "if i == steps: break"),
)
CONDITIONS = (
    *("flag", "not flag", "args.aux", "i == args.stop", "i < args.stop", "i % args.every == 0"),
    *("options['cut']", "options.get('kind') == 'a'", "len(log) > args.stop", "kept is None"),
    *("kept is not None and flag", "flag or i > args.stop", "torch.rand(()).item() < 0.5"),
    *("options['kind'] in ('a', 'c')", "isinstance(flag, bool) and args.aux"),
)
STATEMENTS = (
    *("h = h.detach()", "h = net(torch.randn(1, 2))", "kept = out", "kept = None", "log.append(i)"),
    *("(out ** 2).sum().backward()", "extra(out)", "extra(out, on=args.aux)", "continue", "break"),
    *("kept = h.detach()", "return", "loss = loss + h.exp().sum()", "out.exp().sum().backward()"),
)


def program(seed: int) -> str:
    """Return a random training program."""
    chance = random.Random(seed)
    lines = [*chance.choice(LOOPS)]
    body = [
        *lines[1:],
        chance.choice(("h = net(h)", "h = net(torch.randn(1, 2))")),
        "out = net(h)",
        chance.choice(("loss = out.sum()", "loss = out.exp().sum()")),
    ]
    for _ in range(chance.randrange(2)):
        body += branch(chance)
    body.append("loss.backward()")
    for _ in range(chance.randrange(1, 4)):
        body += branch(chance)
    if chance.random() < 0.3:
        body.append("if kept is not None: (kept * h).exp().sum().backward()")
    head = HEAD.format(
        aux=chance.random() < 0.4,
        every=chance.randrange(1, 4),
        stop=chance.randrange(4),
        cut=chance.random() < 0.5,
        kind=chance.choice("abc"),
        flag=chance.random() < 0.5,
    )
    text = "".join(f"        {line}\n" for line in body)
    return f"{head}    {lines[0]}\n{text}train({chance.randrange(1, 5)})\n"


def branch(chance: random.Random) -> list[str]:
    """Return a statement, most often under a condition."""
    inner = chance.choice(STATEMENTS)
    if chance.random() < 0.15 and inner not in ("continue", "break", "return"):
        return [inner]
    found = [f"if {chance.choice(CONDITIONS)}:", f"    {inner}"]
    if chance.random() < 0.25:
        found += ["else:", f"    {chance.choice(STATEMENTS)}"]
    return found


def check(seed: int, folder: Path) -> tuple[int, int]:
    """Return how many failures were predicted as warnings, and how many there were."""
    path = folder / f"random_{seed}.py"
    path.write_text(program(seed), encoding="utf-8")
    found, raised, _ = found_in(path)
    errors = [f for f in found if f.severity is Severity.ERROR]
    assert bool(errors) == ("second time" in raised), program(seed)
    warned = [f for f in found if f.severity is Severity.WARNING and f.code in ("GS102", "GS103")]
    for warning in warned:
        assert errors, f"{warning}\n{program(seed)}"
        sites = {note.role: note.site for note in warning.related}
        expected = known(sites.get("failing_node") or sites["next_read"])
        assert expected.line == known(errors[0].site).line, (
            f"{warning}\n{errors[0]}\n{program(seed)}"
        )
    return bool(warned), bool(errors)


@pytest.mark.full
def test_what_is_predicted_comes_true(tmp_path: Path) -> None:
    results = [check(seed, tmp_path) for seed in range(60)]
    predicted, failed = map(sum, zip(*results, strict=True))
    assert failed >= 15
    assert predicted >= failed // 2


@pytest.mark.long
def test_what_is_predicted_comes_true_in_many(tmp_path: Path) -> None:
    for seed in itertools.islice(itertools.count(1_000), 2_000):
        check(seed, tmp_path)
        torch.manual_seed(seed)
