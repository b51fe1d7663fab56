"""Runs programs about the elements of containers under a watch."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from gradscope.model import Finding, Severity
from tests import watching

HEAD = """\
import collections
import itertools
import random
import numpy as np
import torch
net = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), 1e-3)
def one(): return torch.softmax(net(torch.randn(4)), 0)[0]
def rollout(n=6): return [(1.0, one()) for _ in range(n)]
def probs(n=6): return [one() for _ in range(n)]
"""


def found_in(body: str, folder: Path, error: str = "") -> list[Finding]:
    """Return what is found in a program about its backward calls, but advice."""
    path = folder / "program.py"
    path.write_text(HEAD + body, encoding="utf-8")
    torch.manual_seed(2)
    random.seed(0)
    found, raised, _ = watching.found_in(path)
    assert error in raised
    assert bool(error) == bool(raised)
    loud = [f for f in found if f.severity is not Severity.ADVICE]
    return [f for f in loud if not f.code.startswith("GS3")]
