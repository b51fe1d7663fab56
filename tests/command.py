"""Runs the command line in a separate process, for all tests that use it as a user does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.zygote import python

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}

CAUGHT = """
import torch

weight = torch.ones(3, requires_grad=True)
loss = (weight * weight).sum()
loss.backward()
try:
    loss.backward()
except RuntimeError as error:
    print(type(error).__name__)
"""
"""A program that continues after an error that is found."""


def command(*args: str | Path, executable: str | None = None) -> list[str]:
    """Return the command line."""
    return [executable or python(), "-m", "gradscope", *map(str, args)]


def gradscope(
    *args: str | Path, cwd: Path | None = None, executable: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run it until all that hold its output have ended."""
    return subprocess.run(
        command(*args, executable=executable),
        cwd=cwd,
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
