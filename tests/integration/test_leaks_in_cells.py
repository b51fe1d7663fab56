"""Leaks in the cells of a notebook, and in other code that exists only in memory."""

from __future__ import annotations

import linecache
import textwrap
from types import ModuleType

import pytest

import gradscope
from gradscope.model import Finding
from tests import known

SETUP = """
import torch
net, log = torch.nn.Linear(4, 1), []
"""
LOOP = """
for step in range(30):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    log.append(loss)
"""
STEP = """
def step():
    loss = net(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    record(loss)
"""
RECORD = """
class Log:
    def __init__(self):
        self.losses = []
    def add(self, loss):
        self.losses.append(loss)
log = Log()
def record(loss):
    log.add(loss)
"""
CALLS = """
for _ in range(30):
    step()
"""


def executed(names: str, *cells: str) -> list[Finding]:
    """Run cells as a notebook does: each a file in memory, in a namespace that is no file's."""
    module = ModuleType("__main__")
    with gradscope.watch() as scope:
        for number, cell in enumerate(cells, 1):
            name = names.format(number)
            linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
            exec(compile(cell, name, "exec"), vars(module))
    return scope.findings


@pytest.mark.parametrize("names", ["<ipython-input-{}-0a1b2c>", "/tmp/ipykernel_7/{}.py"])
@pytest.mark.parametrize(
    ("cells", "cell", "line"),
    [((SETUP, LOOP), 2, 5), ((SETUP, RECORD, STEP, CALLS), 2, 6), ((SETUP + LOOP,), 1, 8)],
)
def test_the_line_that_stores_is_named(
    names: str, cells: tuple[str, ...], cell: int, line: int
) -> None:
    (finding,) = executed(names, *cells)
    assert finding.code == "GS302"
    assert finding.site is not None
    assert (finding.site.file, finding.site.line) == (names.format(cell), line)


def test_code_without_a_source_names_the_call() -> None:
    module = ModuleType("__main__")
    with gradscope.watch() as scope:
        exec(compile(SETUP + LOOP, "<made up>", "exec"), vars(module))
    (finding,) = scope.findings
    assert (finding.code, known(finding.site).line) == ("GS302", 7)


def test_in_a_shell_of_ipython() -> None:
    shells = pytest.importorskip("IPython.core.interactiveshell")
    shell = shells.InteractiveShell.instance()
    try:
        shell.user_ns["gradscope"] = gradscope
        for cell in (SETUP, "with gradscope.watch() as scope:\n" + textwrap.indent(LOOP, "    ")):
            shell.run_cell(cell, store_history=True).raise_error()
        (finding,) = shell.user_ns["scope"].findings
    finally:
        shells.InteractiveShell.clear_instance()
    assert finding.site is not None
    assert finding.site.line == 6
    assert linecache.getline(finding.site.file, 6).strip() == "log.append(loss)"
