"""Runs the command line in a separate process, for all tests that use it as a user does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

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


def started(
    module: str, job: Path, folder: str, environment: dict[str, str], output: Any
) -> subprocess.Popen[bytes]:
    """Have a module of ``gradscope.launch`` do a job in a process that has torch already.

    A fork of the tests' own process will not do: torch refuses backward there once a device has
    run backward in it, as the simulated one does.
    """
    code = f"import sys, gradscope.launch.{module} as it; sys.exit(it.main({str(job)!r}))"
    streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
    return subprocess.Popen([python(), "-c", code], cwd=folder, env=environment, **streams)


SECONDS = 540
"""After which a command hangs; pytest itself ends a test after 600."""


def ran(
    *command: str | Path,
    cwd: str | Path | None = None,
    given: str | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command until all that hold its output have ended."""
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=ENVIRONMENT | environment,
        input=given,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def ran_well(*command: str | Path, **how: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command that must not fail."""
    done = ran(*command, **how)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    return done


def refused(done: subprocess.CompletedProcess[str], says: str) -> None:
    """See that a command was used wrongly, and that one line tells so."""
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gradscope: ")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def gradscope(
    *args: str | Path, cwd: Path | None = None, executable: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return ran(*command(*args, executable=executable), cwd=cwd, **environment)
