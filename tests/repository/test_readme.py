"""The README shows what a real run prints, in the words of torch, and counts right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.command import ENVIRONMENT, ROOT

EXAMPLE = "examples/multi_task_hazard.py"


def console_block(page: str, command: str) -> list[str]:
    """Return the lines that a page shows below a command."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.search(
        rf"^```console\n(?:\$ .*\n)*\$ {re.escape(command)}\n(.*?)^```$", text, re.M | re.S
    )
    assert found, f"{page} does not show `{command}`"
    return found[1].splitlines()


def output(command: str, folder: Path, columns: int) -> str:
    """Return what a ``gradscope`` command prints on both streams in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=folder,
        env=ENVIRONMENT | {"COLUMNS": str(columns), "NO_COLOR": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    return done.stdout


def test_readme_shows_the_finding_of_a_real_run() -> None:
    command = f"gradscope run {EXAMPLE}"
    shown = "\n".join(console_block("README.md", command))
    printed = output(command, ROOT, columns=100)
    assert 10 <= len(shown.splitlines()) <= 16
    at = 0
    for part in shown.split("\n…\n"):  # an ellipsis on its own line stands for lines left out
        at = printed.find(part + "\n", at)
        assert at >= 0, f"not in the output:\n{part}\n\noutput:\n{printed}"
        at += len(part)


def test_readme_opens_with_the_words_of_torch() -> None:
    opening = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split("```")[1].split())
    errors = [error.strip() for error in opening.split("RuntimeError: ") if error]
    for error, cause in zip(errors, ("freed", "changed", "detached"), strict=True):
        hidden = torch.ones(2, requires_grad=True).exp()
        loss = hidden.sum()
        if cause == "freed":
            loss.backward(retain_graph=False)
        elif cause == "changed":
            hidden += 1
        else:
            loss = loss.detach()
        with pytest.raises(RuntimeError, match=re.escape(error)):
            loss.backward()


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_question_pages_are_counted(page: str) -> None:
    pages = set((ROOT / "docs/questions").glob("*.md")) - {ROOT / "docs/questions/README.md"}
    assert f"{len(pages)} questions" in " ".join((ROOT / page).read_text("utf-8").split())


GUIDES = ("README.md", "CONTRIBUTING.md", "docs/index.md", "docs/tutorial.md", "docs/fix.md")


@pytest.mark.parametrize("page", GUIDES)
def test_guides_promise_no_durations(page: str) -> None:
    # How long it takes depends on the machine, so no test could try it.
    text = (ROOT / page).read_text(encoding="utf-8")
    assert not re.findall(r".*\bminutes\b.*", text)
