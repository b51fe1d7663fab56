"""Asks gradscope and its peers the same questions about the same programs, and makes a table of it.

``pip install memray torchviz``, then ``python benchmarks/peers.py`` prints the table, and with
``--write`` puts it into the README and ``docs/compared.md``. A cell is what the output of a real
run says; what is printed of the program's own text does not count.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/compared.md")

CRASH = """\
import torch
from torch import nn

torch.manual_seed(0)
wave = torch.sin(torch.arange(0.0, 200.0, 0.2)).reshape(-1, 20, 1)
rnn, head = nn.GRU(1, 16), nn.Linear(16, 1)
optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=0.01)
state = torch.zeros(1, 16)
for step, piece in enumerate(wave, 1):
    output, state = rnn(piece[:-1], state)
    loss = nn.functional.mse_loss(head(output), piece[1:])
    optimizer.zero_grad()
    print("before call", step, flush=True)
    loss.backward()
    optimizer.step()
"""
"""A state is carried on with its graph, from line 10: the second call, of line 14, fails."""

GROWTH = """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
kept = []
for step in range(100):
    loss = model(torch.randn(256, 64)).square().mean()
    loss.backward()
    kept.append(loss)
"""
"""A list keeps what line 7 makes."""

NAN = """\
import torch

x = torch.zeros(3, requires_grad=True)
loss = (x.sqrt() * x).sum()
loss.backward()
print("the end")
"""
"""The gradient of a root at 0 is infinite, and 0 times that is no number, from line 4."""

ANOMALY = """
import runpy, sys, torch
torch.autograd.set_detect_anomaly(True)
runpy.run_path(sys.argv[1], run_name="__main__")
"""

TORCHVIZ = """
import runpy, sys, torch, torchviz
backward = torch.Tensor.backward
def drawn(self, *args, **options):
    print(torchviz.make_dot(self, show_attrs=True, show_saved=True).source, flush=True)
    backward(self, *args, **options)
torch.Tensor.backward = drawn
runpy.run_path(sys.argv[1], run_name="__main__")
"""

WatchOptions = Callable[[Path], str]
"""What runs a program with a tool, and returns all that this prints."""


def run(folder: Path, *command: str) -> str:
    """Return what a command prints."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    env |= {"GRADSCOPE_NO_REHEARSAL": ""}  # which tests set, to be quick
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=env, check=False, **output)
    return done.stdout


def gradscope(program: Path) -> str:
    """Return the report, the fixes, and the picture."""
    folder, name = program.parent, program.name
    told = run(folder, "-m", "gradscope", "run", "--no-rehearsal", "--save", "run.gscope", name)
    told += run(folder, "-m", "gradscope", "fix", "run.gscope")
    drawn = run(folder, "-m", "gradscope", "draw", "run.gscope", "--output", "graph.dot")
    return told + drawn + (folder / "graph.dot").read_text(encoding="utf-8")


def anomaly(program: Path) -> str:
    """Return what anomaly mode prints."""
    return run(program.parent, "-c", ANOMALY, program.name)


def torchviz(program: Path) -> str:
    """Return the graphs that are drawn before each backward call, in graphviz's language."""
    return run(program.parent, "-c", TORCHVIZ, program.name)


def memray(program: Path) -> str:
    """Return the rows of memray's tables: what was allocated at the peak, and what was left."""
    run(program.parent, "-m", "memray", "run", "-q", "-f", "-o", "run.bin", program.name)
    told = ""
    for options in ((), ("--leaks",)):
        run(program.parent, "-m", "memray", "table", *options, "-f", "-o", "rows.html", "run.bin")
        html = (program.parent / "rows.html").read_text(encoding="utf-8")
        rows = re.search(r"packed_data = (.*?);?\n", html)
        assert rows is not None
        told += json.dumps(json.loads(rows[1]), indent=0)
    return told


TOOLS: dict[str, WatchOptions] = {
    "gradscope": gradscope,
    "`detect_anomaly`": anomaly,
    "torchviz": torchviz,
    "memray": memray,
}

QUESTIONS: tuple[tuple[str, str, Callable[[str], object]], ...] = (
    (
        "the line that built what a failed call needs",
        CRASH,
        lambda told: re.search(r"(built here|Error detected)[^$]*(:10\b|line 10\b)", told),
    ),
    (
        "the call that freed it, and the variable that leads to it",
        CRASH,
        lambda told: re.search(r":14\b", told) and re.search(r"\bstate\b", told),
    ),
    (
        "a word before the call fails",
        CRASH,
        lambda told: re.search(r"\b(fail|free|freed)s?\b", told.partition("before call 2")[0]),
    ),
    (
        "an edit that mends it, and that was tried",
        CRASH,
        lambda told: re.search(r"\(tried", told) and re.search(r"^\+ ", told, re.M),
    ),
    ("the variable that makes memory grow", GROWTH, lambda told: re.search(r"\bkept\b", told)),
    (
        "all that the process allocates",
        GROWTH,
        lambda told: re.search(r"importlib", told),
    ),
    ("where a NaN comes from", NAN, lambda told: re.search(r"nan values", told)),
    ("a picture of the graph", NAN, lambda told: re.search(r"^digraph", told, re.M)),
)
"""What may be asked, the program that it is asked about, and whether the output answers it."""


def available() -> list[str]:
    """Return the tools that are there."""
    needed = {"torchviz": "torchviz", "memray": "memray"}
    return [tool for tool in TOOLS if importlib.util.find_spec(needed.get(tool, "torch"))]


def answers(tools: list[str]) -> dict[str, list[bool]]:
    """Return for each question which of the tools answer it."""
    told: dict[tuple[str, str], str] = {}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "train.py")
        for text in dict.fromkeys(text for _, text, _ in QUESTIONS):
            program.write_text(text, encoding="utf-8")
            for tool in tools:
                told[tool, text] = without(text, TOOLS[tool](program))
    return {
        question: [bool(is_answer(told[tool, text])) for tool in tools]
        for question, text, is_answer in QUESTIONS
    }


def without(program: str, told: str) -> str:
    """Return an output without the lines of the program that it shows; edits stay."""
    own = [line.strip() for line in program.splitlines() if line.strip()]
    kept = []
    for line in told.splitlines():
        if not line.startswith("+"):
            for text in own:
                line = line.replace(text, "")
        kept.append(line)
    return "\n".join(kept)


def rows(tools: list[str]) -> Iterator[str]:
    """Yield the rows of the table."""
    for question, yes in answers(tools).items():
        yield f"| {question} | {' | '.join('✓' if each else ' ' for each in yes)} |"


def main() -> int:
    """Print the table, or write it into the pages."""
    if lacking := TOOLS.keys() - set(available()):
        print("install", *sorted(lacking), "first")
        return 1
    table = "\n".join(rows(list(TOOLS)))
    print(table)
    if "--write" in sys.argv[1:]:
        for page in PAGES:
            file = ROOT / page
            text = file.read_text(encoding="utf-8")
            head = r"(^\| tried .*\n\|---\|.*\n)(?:\|.*\n|<!--.*\n)*"
            file.write_text(re.sub(head, rf"\g<1>{table}\n", text, flags=re.M), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
