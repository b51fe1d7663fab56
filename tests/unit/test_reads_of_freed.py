"""What a program reads of a freed graph is told with an edit that reads it earlier, where that means the same."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import gradscope
from gradscope.fixing.patch import apply, read
from gradscope.model import Finding

PROGRAM = """
import torch

def describe(node):
    for name in dir(node):
        if name.startswith("_saved_"):
            getattr(node, name)
    for following, _ in node.next_functions:
        if following is not None:
            describe(following)

def main():
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Sigmoid(), torch.nn.Linear(4, 1))
    loss = net(torch.ones(5, 3)).pow(2).mean()
{body}

main()
"""


def explained(program: Path) -> Finding:
    with pytest.raises(RuntimeError, match="second time"), gradscope.watch() as scope:
        runpy.run_path(str(program))
    (finding,) = scope.findings
    assert finding.code == "GS101"
    return finding


@pytest.mark.parametrize(
    "body",
    [
        "    loss.backward()\n    describe(loss.grad_fn)",
        "    loss.backward()\n    print('done')\n    describe(\n        loss.grad_fn,  # all of it\n    )",
        "    loss.backward(); describe(loss.grad_fn)",
    ],
)
def test_the_read_goes_before_the_call_that_frees(
    body: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(body=body))
    finding = explained(program)
    assert finding.fix is not None
    edited = apply(read(str(program)), finding.fix.edits).after
    program.write_text("".join(edited.lines))
    with gradscope.watch() as scope:
        runpy.run_path(str(program))
    assert scope.findings == []
    assert ("done" in capsys.readouterr().out) == ("done" in body)


@pytest.mark.parametrize(
    "body",
    [
        "    loss.backward()\n    node = loss.grad_fn\n    describe(node)",
        "    (lambda: loss.backward())()\n    describe(loss.grad_fn)",
    ],
)
def test_a_read_that_cannot_come_earlier_is_not_moved(body: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(body=body))
    finding = explained(program)
    assert finding.fix is not None
    assert finding.fix.edits == ()
