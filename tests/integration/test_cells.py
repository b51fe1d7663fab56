"""A watch that stays on while code comes piece by piece: in a notebook, a console, a debugger.

What a piece left behind is read again only if another piece does so, and nobody knows the next one.
"""

from __future__ import annotations

import ast
import asyncio
import code
import contextlib
import io
import linecache
import logging
import pdb
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

import pytest
import torch

import gradscope
from gradscope.model import Finding, Severity

Session = Callable[[Sequence[str], ModuleType], None]
"""Runs pieces of code one by one, in one module."""


def in_a_console(cells: Sequence[str], module: ModuleType) -> None:
    lines = iter([line for cell in cells for line in (*cell.splitlines(), "")])

    class Console(code.InteractiveConsole):
        def raw_input(self, prompt: str = "") -> str:
            try:
                return next(lines)
            except StopIteration:
                raise EOFError from None

    with contextlib.redirect_stderr(io.StringIO()):
        Console(module.__dict__).interact("", "")


def in_a_debugger(cells: Sequence[str], module: ModuleType) -> None:
    # A debugger takes one line at a time.
    typed = "".join(f"!exec({cell!r})\n" for cell in cells) + "continue\n"
    debugger = pdb.Pdb(stdin=io.StringIO(typed), stdout=io.StringIO(), nosigint=True, readrc=False)
    debugger.runctx("x = 1\ny = 2", module.__dict__, module.__dict__)


@pytest.fixture(autouse=True)
def no_loop_runs() -> Iterator[None]:
    """Playwright, in another test of this process, leaves its event loop running."""
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(running)


def in_an_event_loop(cells: Sequence[str], module: ModuleType) -> None:
    """As a kernel of Jupyter does."""

    async def run_all() -> None:
        for number, cell in enumerate(cells, 1):
            file = f"<cell {number}>"
            linecache.cache[file] = len(cell), None, cell.splitlines(keepends=True), file
            asyncio.get_running_loop().call_soon(exec, compile(cell, file, "exec"), module.__dict__)
            await asyncio.sleep(0)

    logging.disable(logging.CRITICAL)
    try:
        asyncio.run(run_all())
    finally:
        logging.disable(logging.NOTSET)


def in_ipython(cells: Sequence[str], module: ModuleType) -> None:
    shells = pytest.importorskip("IPython.core.interactiveshell", reason="needs IPython")
    shell = shells.InteractiveShell(user_ns=module.__dict__)

    async def run_all() -> None:
        for cell in cells:
            text = shell.transform_cell(cell)
            await shell.run_cell_async(cell, silent=True, transformed_cell=text)

    with contextlib.redirect_stdout(io.StringIO()):
        asyncio.run(run_all())


def statement_by_statement(cells: Sequence[str], module: ModuleType) -> None:
    """As a console does, from Python 3.13 on, with what was pasted."""
    for number, cell in enumerate(cells, 1):
        file = f"<python-input-{number}>"
        linecache.cache[file] = len(cell), None, cell.splitlines(keepends=True), file
        for statement in ast.parse(cell).body:
            code_of_one = compile(ast.Interactive([statement]), file, "single")
            with contextlib.suppress(RuntimeError):
                exec(code_of_one, module.__dict__)


SESSIONS = [in_a_console, in_a_debugger, in_an_event_loop, in_ipython]

SETUP = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
opt = torch.optim.SGD(net.parameters(), 0.1)
x = torch.randn(8, 4)
"""
STEP = ["out = net(x).exp()", "loss = out.pow(2).mean()", "opt.zero_grad()", "loss.backward()"]
LOOP = """
for i in range(3):
    loss = net(x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
STATE = """
h = torch.tanh(net[0](h))
h.sum().backward()
h = h.detach()
"""
FUNCTION = """
def train(n):
    for i in range(n):
        loss = net(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss
"""

HEALTHY = {
    "one line a cell": [*STEP, "opt.step()", *STEP, "opt.step()"],
    "a cell run again": ["\n".join(STEP)] * 3,
    "a loop": [LOOP, LOOP, "loss.item()"],
    "a state that is detached": ["h = torch.zeros(1, 4)", STATE, STATE, STATE],
    "a function": [FUNCTION, "last = train(2)", "last = train(2)", "last.item()"],
    "losses in a list": ["losses = []", *[*STEP, "losses.append(loss)"] * 2, "float(losses[0])"],
}


def findings_of(session: Session, cells: Sequence[str]) -> list[Finding]:
    torch.manual_seed(0)
    watch = gradscope.watch()
    scope = watch.__enter__()
    try:
        session([textwrap.dedent(cell).strip() for cell in (SETUP, *cells)], ModuleType("__main__"))
    finally:
        watch.__exit__(None, None, None)
    return [f for f in scope.findings if f.severity is not Severity.ADVICE]


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("session", SESSIONS)
def test_nothing_is_found_in_a_healthy_session(session: Session, name: str) -> None:
    assert findings_of(session, HEALTHY[name]) == []


@pytest.mark.parametrize("session", SESSIONS)
def test_a_hazard_across_cells_is_found(session: Session) -> None:
    cells = ["z = net(x).exp()", "z.sum().backward()", "z.pow(2).sum().backward()"]
    assert [f.code for f in findings_of(session, cells)] == ["GS101"]


@pytest.mark.parametrize("session", [in_an_event_loop, in_ipython])
def test_a_hazard_within_a_cell_is_told_early(session: Session) -> None:
    cells = ["h = torch.zeros(1, 4)", "for i in range(3):\n" + STATE.replace("\n", "\n    ")]
    broken = [cell.replace("h = h.detach()", "pass") for cell in cells]
    assert findings_of(session, cells) == []
    assert [f.code for f in findings_of(session, broken)] == ["GS102", "GS101"]


FIRST, SECOND = "z = net(x).exp()\nz.sum().backward()\n", "z.pow(2).sum().backward()"
AHEAD = {  # by what the rest of the cell is
    "a later statement": ([FIRST + SECOND], "GS102"),
    "a cell that ends in a value": ([f"{FIRST}{SECOND}\nopt"], "GS102"),
    "after a loop that is one statement": (
        [f"z = net(x).exp()\nfor i in range(1):\n    z.sum().backward()\n{SECOND}"],
        "GS102",
    ),
    "after a function's call": (
        [f"def f(z):\n    z.sum().backward()\nz = net(x).exp()\nf(z)\n{SECOND}"],
        "GS102",
    ),
    "in a function with what it is given by default": (
        [f"def f(z, again=True):\n    if again:\n        {SECOND}\n{FIRST}f(z)"],
        "GS102",
    ),
    "after what warns": ([f"if 1 is 2: pass\n{FIRST}{SECOND}"], "GS102"),
    "a step between": (
        ["loss = net(x).mean()\nloss.backward(retain_graph=True)\nopt.step()\nloss.backward()"],
        "GS202",
    ),
    "another cell": ([FIRST, SECOND], ""),
    "what binds the name anew": ([f"{FIRST}z = net(x).exp()\n{SECOND}"], ""),
    "what may not come": ([f"import os\n{FIRST}if os.environ.get('NO'):\n    {SECOND}"], ""),
}
BY_IPYTHON = {
    "await": ([f"import asyncio\n{FIRST}await asyncio.sleep(0)\n{SECOND}"], "GS102"),
    "%%time": ([f"%%time\n{FIRST}{SECOND}"], "GS102"),
    "%%time, a value at the end": ([f"%%time\n{FIRST}{SECOND}\n7"], "GS102"),
    "%%capture": ([f"%%capture\n{FIRST}{SECOND}"], "GS102"),
    "a magic": ([f"%autoawait\n{FIRST}!true\n{SECOND}"], "GS102"),
    "autoreload": (["%load_ext autoreload\n%autoreload 2", FIRST + SECOND], "GS102"),
}


@pytest.mark.parametrize(
    ("session", "name"),
    [
        *((s, name) for s in (statement_by_statement, in_ipython) for name in AHEAD),
        *((in_ipython, name) for name in BY_IPYTHON),
    ],
)
def test_the_way_ahead_is_the_rest_of_the_cell(session: Session, name: str) -> None:
    cells, early = (AHEAD | BY_IPYTHON)[name]
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = findings_of(session, cells)
    codes = [f.code for f in found]
    late = {"GS202": "GS201", "GS102": "GS101"}.get(early, "GS101")
    surely = early or name == "another cell"
    assert codes == [code for code in (early, late if surely else "") if code]
    assert sum("literal" in str(each.message) for each in warned) == ("warns" in name)


def test_a_coroutine_is_not_started_anew_when_it_goes_on() -> None:
    features = torch.ones(3, requires_grad=True).exp()

    async def train() -> None:
        await asyncio.sleep(0)
        features.exp().sum().backward()

    with gradscope.watch() as scope:
        asyncio.run(train())
    assert scope.findings == []
