"""A program run by gradscope prints, raises and leaves exactly as it does when Python runs it."""

from __future__ import annotations

import py_compile
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.command import ENVIRONMENT, ran

PROGRAMS = Path(__file__).parent / "programs"
QUIETLY = {"PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True)
class Run:
    stdout: str
    stderr: str
    status: int


class Place:
    """A directory with copies of the programs, in which programs are run with and without gradscope."""

    def __init__(self, path: Path) -> None:
        self.path = path / "here"
        shutil.copytree(PROGRAMS, self.path)
        shutil.copy(self.path / "identity.py", self.path / "package" / "__main__.py")
        self.report = path / "report.txt"
        self.watched = ["-m", "gradscope", "run", "--output", str(self.report)]

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(textwrap.dedent(text))

    def run(self, *command: str, stdin: str = "", **environment: str) -> Run:
        done = ran(sys.executable, *command, cwd=self.path, given=stdin, **QUIETLY, **environment)
        return Run(_scrub(done.stdout), _scrub(done.stderr), done.returncode)

    def same(
        self, *program: str, flags: tuple[str, ...] = (), stdin: str = "", **environment: str
    ) -> Run:
        """Run ``program`` both ways, see that nothing differs, and return what it did."""
        plain = self.run(*flags, *program, stdin=stdin, **environment)
        watched = self.run(*flags, *self.watched, *program, stdin=stdin, **environment)
        assert watched == plain
        return plain


def _scrub(text: str) -> str:
    """Take out addresses and process numbers, which no two runs share."""
    return re.sub(r"0x[0-9a-f]+", "0x", text)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.full(but=2)
@pytest.mark.parametrize(
    "path",
    ["identity.py", "./identity.py", "../here/identity.py", "package", "package/__main__.py"],
)
def test_a_script_finds_the_state_that_python_gives_it(place: Place, path: str) -> None:
    done = place.same(path, "one", "--two", "-m", "--", "-c", "", stdin="typed")
    assert done.status == 0
    assert "'one', '--two', '-m', '--', '-c', ''" in done.stdout


def test_an_absolute_path_a_link_and_another_directory(place: Place) -> None:
    (place.path / "links").mkdir()
    (place.path / "links" / "linked.py").symlink_to("../identity.py")
    place.same(str(place.path / "identity.py"))
    assert f"'{place.path}'" in place.same("links/linked.py").stdout


def test_modules_packages_and_code(place: Place) -> None:
    assert "__spec__ ('identity'" in place.same("-m", "identity", "-m", "-x").stdout
    assert "package imported" in place.same("-m", "package", "--help").stdout
    assert place.same("-mpackage.nested.failing", "a").status == 1
    code = (place.path / "identity.py").read_text()
    assert "['-c', '--help', '-c']" in place.same("-c", code, "--help", "-c").stdout
    place.same("-cprint(1)", "-x")
    place.same("-c", "-1")
    place.same("-c", "def f():\n  raise ValueError(1)\nf()")
    place.same("-c", "x = 1 +")
    place.same("-c", "")
    place.same(
        "-c",
        "import inspect\ndef f(): pass\ntry: print(inspect.getsource(f))\nexcept OSError as e: print(e)",
    )


def test_archives_and_compiled_scripts(place: Place) -> None:
    with zipfile.ZipFile(place.path / "app.zip", "w") as archive:
        archive.writestr(
            "__main__.py",
            "import sys, helper\nprint(sys.argv, sys.path[0], __file__)\nhelper.fail()",
        )
        archive.writestr("helper.py", "def fail():\n    raise ValueError('in the archive')")
    assert "in the archive" in place.same("app.zip", "x").stderr
    py_compile.compile(str(place.path / "chained.py"), cfile=str(place.path / "chained.pyc"))
    assert place.same("chained.pyc").status == 1


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    "flags", [("-P",), ("-O",), ("-W", "error"), ("-X", "dev"), ("-u",), ("-B", "-bb", "-q")]
)
def test_the_interpreters_own_flags(place: Place, flags: tuple[str, ...]) -> None:
    place.same("identity.py", flags=flags)
    place.same("package", flags=flags)
    place.same(
        "-m",
        "package.nested.failing" if "-P" not in flags else "json.tool",
        flags=flags,
        stdin="{}",
    )
    place.same("-c", "import sys; print(sys.path, sys.flags)", flags=flags)


def test_a_safe_path_from_the_environment(place: Place) -> None:
    assert f"'{place.path}'" not in place.same("identity.py", PYTHONSAFEPATH="1").stdout


@pytest.mark.full(but=2)
@pytest.mark.parametrize(
    "program", ["chained.py", "context.py", "group.py", "missing_import.py", "stack.py"]
)
def test_tracebacks(place: Place, program: str) -> None:
    done = place.same(program)
    assert "Traceback" in done.stderr


@pytest.mark.full
def test_programs_that_do_not_compile(place: Place) -> None:
    place.write("broken.py", "print('never')\nif True\n    pass\n")
    place.write("tabs.py", "if 1:\n\tpass\n        pass\n")
    place.write("imports_broken.py", "import broken\n")
    place.write("warns.py", 'import sys\nprint(1 is 1, "\\d")\nassert (1, "always true")\n')
    place.write("latin.py", "# -*- coding: latin-1 -*-\nprint(len('é'))\n")
    place.write("marked.py", "\N{BYTE ORDER MARK}print('é')\n")
    assert "SyntaxError" in place.same("broken.py").stderr
    assert "TabError" in place.same("tabs.py").stderr
    for program in ("imports_broken.py", "warns.py", "latin.py", "marked.py"):
        place.same(program)
    place.same("warns.py", flags=("-W", "error"))
    place.same("-m", "broken")


@pytest.mark.full(but=5)
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("sys.exit()", 0),
        ("sys.exit(0)", 0),
        ("sys.exit(3)", 3),
        ("sys.exit(True)", 1),
        ("sys.exit(256)", 0),
        ("sys.exit(-1)", 255),
        ("sys.exit('a message')", 1),
        ("sys.exit(Odd())", 1),
        ("sys.exit((1, 2))", 1),
        ("raise MyExit(5)", 5),
        ("raise SystemExit", 0),
        ("exit(6)", 6),
        ("import os; sys.stdout.flush(); os._exit(8)", 8),
        ("import os; os.abort()", -signal.SIGABRT),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("raise GeneratorExit", 1),
        ("raise EOFError", 1),
        ("raise BrokenPipeError", 1),
        ("class B(BaseException): pass\nraise B('own')", 1),
    ],
)
def test_ways_to_leave(place: Place, code: str, status: int) -> None:
    assert place.same("exit_with.py", code).status == status


@pytest.mark.full(but=1)
@pytest.mark.parametrize("hook", ["quiet", "failing", "exiting", "missing"])
def test_exception_hooks(place: Place, hook: str) -> None:
    assert place.same("hooks.py", hook).status == (7 if hook == "exiting" else 1)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("how", ["", "exit", "raise"])
def test_what_is_held_is_released_in_the_same_order(place: Place, how: str) -> None:
    assert place.same("teardown.py", how).stdout.count("released") == 5
    assert place.same("-m", "teardown", how).stdout.count("released") == 5


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    "code", ["", "raise ValueError(1)", "raise KeyboardInterrupt", "sys.exit(3)"]
)
def test_exit_handlers(place: Place, code: str) -> None:
    assert "in an exit handler" in place.same("atexit_raises.py", code).stderr


def test_threads(place: Place) -> None:
    done = place.same("threads.py")
    assert done.stdout.splitlines() == [
        "main ends",
        "the thread ends False False",
        "exit handler 1 False",
    ]
    assert place.same("executor.py").status == 0


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL", "SIGHUP"])
def test_signals(place: Place, name: str) -> None:
    done = place.same("interrupted.py", name)
    assert done.status == -getattr(signal, name)
    assert ("cleaned up" in done.stdout) == (name == "SIGINT")


def test_an_interrupt_while_threads_are_waited_for(place: Place) -> None:
    done = place.same("interrupted_waiting.py")
    assert "KeyboardInterrupt" in done.stderr
    assert done.status == 0


@pytest.mark.full(but=2)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("program", [("children.py",), ("-m", "children")])
def test_processes(place: Place, method: str, program: tuple[str, ...]) -> None:
    assert "Job(number=3)" in place.same(*program, method).stdout


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    "code", ["pass", "sys.exit(5)", "raise ValueError('child')", "raise KeyboardInterrupt"]
)
def test_a_forked_child_that_comes_to_its_end(place: Place, code: str) -> None:
    done = place.same("children.py", "os.fork", code)
    assert done.stdout.count("child left with") == 1
    assert place.report.read_text().count("gradscope") == 1


@pytest.mark.full(but=3)
@pytest.mark.parametrize(
    "code",
    [
        "sys.stderr.close()",
        "sys.stdout.close()",
        "sys.stdout = None",
        "sys.stderr = None; sys.exit('unseen')",
        "import os; os.close(1)",
        "import os; os.close(2)",
        "sys.stdout = open('other.txt', 'w'); print('elsewhere')",
        "sys.argv[:] = []; sys.path.clear(); sys.modules['__main__'] = None",
        "import os; os.chdir('/')",
        "sys.exit = exit = print",
    ],
)
def test_programs_that_change_the_interpreter(place: Place, code: str) -> None:
    place.same("streams.py", code)


def test_nobody_reads_what_is_printed(place: Place) -> None:
    results = []
    for command in (["big_output.py"], [*place.watched, "big_output.py"]):
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=place.path,
            env=ENVIRONMENT | QUIETLY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        results.append((process.stderr.read(), process.wait()))
        process.stderr.close()
    assert results[0] == results[1]
    assert "BrokenPipeError" in results[0][0]


def test_an_interrupt_while_torch_is_imported(place: Place) -> None:
    place.write("torch.py", "raise KeyboardInterrupt\n")
    place.write("imports.py", "import torch\n")
    place.write("imports_in_function.py", "def load():\n    import torch\n\nload()\n")
    assert "importlib" not in place.same("imports.py").stderr
    place.same("imports_in_function.py")
    place.write("torch.py", "import no_such_module\n")
    place.same("imports.py")
    place.write("torch.py", "def broken(:\n")
    place.same("imports.py")


@pytest.mark.full
def test_the_console_script_is_not_taken_for_the_program(place: Place) -> None:
    """It is outermost on the stack; what the program leaves is looked for in the program's own variables."""
    place.write(
        "kept.py",
        """
        import torch
        layer = torch.nn.Linear(2, 1)
        kept = []
        for episode in range(8):
            for _ in range(40):
                kept.append(torch.tanh(layer(torch.ones(2))))
            for _ in range(5):
                layer(torch.ones(2)).backward()
        """,
    )
    start = "import sys; from gradscope.cli import main; sys.exit(main())"
    (place.path / "gradscope").write_text(start)  # what an installer writes has no suffix
    as_module = place.run("-m", "gradscope", "run", "kept.py")
    assert "warning[GS302]: `kept`" in as_module.stderr
    for other in (["gradscope"], ["-c", start]):
        assert place.run(*other, "run", "kept.py").stderr == as_module.stderr
