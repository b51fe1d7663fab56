"""Runs programs about the elements of containers under a watch."""

from __future__ import annotations

import random
import runpy
from pathlib import Path

import torch

import gradscope
from gradscope.model import Finding, Severity

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
    raised = ""
    with gradscope.watch() as scope:
        try:
            runpy.run_path(str(path), run_name="__main__")
        except RuntimeError as caught:
            raised = str(caught)
        assert not scope.recording().summary.notes
    assert error in raised
    assert bool(error) == bool(raised)
    found = [f for f in scope.findings if f.severity is not Severity.ADVICE]
    return [f for f in found if not f.code.startswith("GS3")]
