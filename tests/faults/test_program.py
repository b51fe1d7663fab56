"""Programs that do unusual things to themselves print, raise and exit as they do without gradscope."""

from __future__ import annotations

import ast
import re
import signal
from pathlib import Path

from tests import known
from tests.command import ran
from tests.faults.tries import Tries, fault
from tests.zygote import python

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
SAME = "what it prints and raises, and its exit status, are the same as without gradscope"
TERMINATED = re.compile(r"(terminate called (recursively|without an active exception)\n)+")
MODES: tuple[tuple[str, ...], ...] = ((), ("--no-hooks",))


def run(*command: str | Path) -> tuple[int, str, str]:
    done = ran(python(), *command, cwd=PROGRAMS, OMP_NUM_THREADS="1")
    if command[-1] != PROGRAMS / "daemons.py":
        return done.returncode, done.stdout, done.stderr
    # Whether daemon threads end the process so before it is gone by itself is up to chance.
    aborted = done.returncode == -signal.SIGABRT and TERMINATED.search(done.stderr)
    return 0 if aborted else done.returncode, done.stdout, TERMINATED.sub("", done.stderr)


def is_the_same(name: str, tries: Tries, tmp_path: Path) -> None:
    program = PROGRAMS / f"{name}.py"
    assert ast.get_docstring(ast.parse(program.read_text())) == tries.fault.what
    plain = run(program)
    assert plain[1]
    for number, _ in enumerate(tries):
        mode = MODES[number % 2]
        report = tmp_path / "report.txt"
        options = ["--fail-on", "never", "--output", str(report), *mode]
        assert run("-m", "gradscope", "run", *options, program) == plain
        text = report.read_text()
        assert "backward call" in text
        assert "please report" not in text
        tries.came("the same")


def program(name: str, many: int) -> None:
    what = known(ast.get_docstring(ast.parse((PROGRAMS / f"{name}.py").read_text())))

    @fault("The program", what, SAME, few=2, many=many)
    def test(tries: Tries, tmp_path: Path) -> None:
        is_the_same(name, tries, tmp_path)

    globals()[f"test_{name}"] = test


for name, many in {
    "excepthook": 4,
    "patched": 4,
    "hooks_left": 4,
    "at_exit": 4,
    "exits_in_hooks": 4,
    "interrupted_pack": 4,
    "recursion": 4,
    "handlers": 4,
    "daemons": 20,
    "forks": 10,
}.items():
    program(name, many)
