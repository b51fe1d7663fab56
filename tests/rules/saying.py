"""What the tests of rules share: a program's findings, and how a finding is worded."""

from __future__ import annotations

import textwrap
from pathlib import Path

from gradscope.model import Finding, Fix
from tests import known
from tests.watching import found_in

LOOP = """
import copy
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
x, y = torch.randn(8, 4), torch.randn(8, 1)

class Net(nn.Module):
    def __init__(self, *names):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
        for name in names:
            setattr(self, name, nn.Linear(4, 4))
    def forward(self, x):
        return self.head(self.body(x).tanh())

def step(opt, loss):
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
"""What a program begins with that trains a small net."""


def findings_of(source: str, folder: Path) -> tuple[list[Finding], str]:
    """Return what is found in a program, and the error that ended it."""
    script = folder / "example.py"
    script.write_text(textwrap.dedent(source), encoding="utf-8")
    found, raised, _ = found_in(script)
    return found, raised


def check_wording(finding: Finding) -> None:
    """Lower case where a word begins it, no full stop at the end, and nothing left unfilled."""
    texts = [finding.message, finding.label, *(r.message for r in finding.related)]
    if finding.fix is not None:
        texts.append(finding.fix.message)
    for text in texts:
        assert text
        assert not text.endswith(".")
        assert text[0].islower() or text[0] in "`[" or text.split()[0].endswith("Backward0"), text
        assert "None" not in text
        assert "  " not in text


def fix_of(finding: Finding) -> Fix:
    """Return the first fix of a finding that is worded well."""
    check_wording(finding)
    return known(finding.fix)
