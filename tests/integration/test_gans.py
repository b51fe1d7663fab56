"""In both orders of a GAN's calls and its usual layouts, the written fix trains as the right program does."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path

import pytest

from tests.command import ran_well
from tests.integration.test_rehearsal_run import rehearsed
from tests.zygote import python

HEAD = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)
G = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 6))
D = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
og, od = (torch.optim.Adam(net.parameters(), 0.01) for net in (G, D))
one, zero = torch.ones(8, 1), torch.zeros(8, 1)
bce = F.binary_cross_entropy_with_logits
"""
TAIL = """
print([p.detach().double().sum().item().hex() for net in (G, D) for p in net.parameters()])
"""
LOOP = """
for _ in range(5):
    real, fake = torch.randn(8, 6), G(torch.randn(8, 4))
"""


def losses(form: str, of_fake: tuple[str, str], lines: str) -> tuple[str, str]:
    """Return what trains D and G: ``of_fake`` is what D says of the fake, in each of the losses."""
    here = "self." if form == "methods" else ""
    d_fake, g_fake = (text.replace("pred", f"{here}pred") for text in of_fake)
    whole = f"d_loss = bce(D(real), one) + bce({d_fake}, zero)\n"
    split = (
        f"on_real = bce(D(real), one)\non_fake = bce({d_fake}, zero)\nd_loss = on_real + on_fake\n"
    )
    steps = "o{0}.zero_grad()\n{0}_loss.backward()\no{0}.step()\n"
    d = (whole if lines == "one" else split) + steps.format("d")
    on_g = "" if lines == "one" else f"score = {g_fake}\n"
    g = f"{on_g}g_loss = bce({g_fake if lines == 'one' else 'score'}, one)\n" + steps.format("g")
    return d, g


def program(order: str, shared: str, form: str, lines: str, *, right: bool) -> str:
    """Return a program of five steps that shares ``fake`` or ``pred``; or as it should be."""
    of_fake = ("D(fake.detach())", "D(fake)") if right else {
        "fake": ("D(fake)", "D(fake)"), "pred": ("pred", "pred")
    }[shared]  # fmt: skip
    d, g = losses(form, of_fake, lines)
    has_pred = shared == "pred" and not right
    first, second = (d, g) if order == "D first" else (g, d)
    made = "pred = D(fake)\n" if has_pred else ""
    if form == "plain":
        return HEAD + LOOP + textwrap.indent(made + first + second, "    ") + TAIL
    given = "real, fake, pred" if has_pred else "real, fake"
    if form == "functions":
        both = "".join(
            f"\n\ndef train_{name}({given}):\n{textwrap.indent(body, '    ')}"
            for name, body in (("d", d), ("g", g))
        )
        names = ("d", "g") if order == "D first" else ("g", "d")
        calls = made + "".join(f"train_{name}({given})\n" for name in names)
        return HEAD + both + "\n" + LOOP + textwrap.indent(calls, "    ") + TAIL
    train = "self.train_d(real, fake)\nself.train_g(real, fake)\n".splitlines(keepends=True)
    body = made.replace("pred", "self.pred") + "".join(train if order == "D first" else train[::-1])
    methods = (("step", body), ("train_d", d), ("train_g", g))
    text = "".join(
        f"\n    def {name}(self, real, fake):\n{textwrap.indent(body, ' ' * 8)}"
        for name, body in methods
    )
    loop = LOOP + "    trainer.step(real, fake)\n"
    return f"{HEAD}\n\nclass Trainer:{text}\n\ntrainer = Trainer()\n{loop}{TAIL}"


LAYOUTS = list(
    itertools.product(
        ("D first", "G first"),
        ("fake", "pred"),
        ("plain", "functions", "methods"),
        ("one", "several"),
    )
)


@pytest.mark.full(but=2)
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_both_nets_train_as_they_should(layout: tuple[str, str, str, str], tmp_path: Path) -> None:
    file, right = tmp_path / "train.py", tmp_path / "right.py"
    file.write_text(program(*layout, right=False))
    right.write_text(program(*layout, right=True))
    rehearsed("fix", "--yes", "--write", file, cwd=tmp_path)
    assert ran_well(python(), file).stdout == ran_well(python(), right).stdout
