"""What a program reads of a freed graph is told, with the advice to read it earlier."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import gradscope
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
    ("body", "mended"),
    [
        (
            "    loss.backward()\n    describe(loss.grad_fn)",
            "    describe(loss.grad_fn)\n    loss.backward()",
        ),
        (
            "    loss.backward()\n    print('done')\n    describe(\n        loss.grad_fn,  # all of it\n    )",
            "    describe(\n        loss.grad_fn,  # all of it\n    )\n    loss.backward()\n    print('done')",
        ),
        (
            "    (lambda: loss.backward())()\n    describe(loss.grad_fn)",
            "    describe(loss.grad_fn)\n    (lambda: loss.backward())()",
        ),
    ],
)
def test_the_read_is_to_go_before_the_call_that_frees(
    body: str, mended: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(body=body))
    finding = explained(program)
    words = "read saved tensors before the backward call, or pass retain_graph=True to it"
    assert [(fix.kind, fix.message, fix.edits) for fix in finding.fixes] == [("reorder", words, ())]
    program.write_text(PROGRAM.format(body=mended))
    with gradscope.watch() as scope:
        runpy.run_path(str(program))
    assert scope.findings == []
