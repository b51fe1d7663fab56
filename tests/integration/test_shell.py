"""The command line in a shell: completion, programs on stdin, the colours and lines of a terminal."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.command import ENVIRONMENT, ran, ran_well
from tests.zygote import python

pty = pytest.importorskip("pty")

COMPLETING = {
    "bash": {"COMP_WORDS": "gradscope {words}", "COMP_CWORD": "{last}"},
    "zsh": {"_TYPER_COMPLETE_ARGS": "gradscope {words}"},
    "fish": {
        "_TYPER_COMPLETE_ARGS": "gradscope {words}",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    },
}
NO_TORCH = "import sys; sys.modules['torch'] = None; from gradscope.cli import main; main()"


@pytest.mark.full(but=1)
@pytest.mark.parametrize("shell", COMPLETING)
def test_a_shell_completes_commands_options_and_values(shell: str) -> None:
    def completed(words: str) -> set[str]:
        asked = {
            key: value.format(words=words, last=len(words.split(" ")))
            for key, value in COMPLETING[shell].items()
        }
        done = ran(sys.executable, "-c", NO_TORCH, **asked, _GRADSCOPE_COMPLETE=f"complete_{shell}")
        assert done.stderr == ""
        return set(re.findall(r"-*[a-z]+", done.stdout))

    assert {"run", "report", "rules"} <= completed("r")
    assert "draw" not in completed("r")
    assert {"sarif", "github"} <= completed("report --format ")


@pytest.mark.parametrize(
    ("shell", "begins"),
    [
        ("bash", "complete -o"),
        ("zsh", "#compdef gradscope"),
        ("fish", "complete --command gradscope"),
    ],
)
def test_each_shell_gets_its_script(shell: str, begins: str) -> None:
    script = ran_well(
        sys.executable, "-m", "gradscope", _GRADSCOPE_COMPLETE=f"source_{shell}"
    ).stdout
    assert begins in script
    assert "_GRADSCOPE_COMPLETE" in script


ON_INPUT = """\
import sys
print(sys.argv, sys.path[0], {k: v for k, v in vars().items() if k != "__builtins__"})
print(repr(sys.stdin.read()))
def fail():
    import torch
    loss = torch.ones(3, requires_grad=True).exp().sum()
    loss.backward()
    loss.backward()
fail()
"""


def test_a_program_on_stdin_runs_as_under_python() -> None:
    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return ran(python(), *args, "-", "--x", "-", given=ON_INPUT)

    plain, watched = run(), run("-m", "gradscope", "run", "--format", "json")
    assert (watched.returncode, watched.stdout) == (plain.returncode, plain.stdout)
    assert watched.stderr.startswith(plain.stderr)
    assert '"path": "-"' in watched.stderr
    assert '"code": "GS101"' in watched.stderr
    assert '"file": "<stdin>"' in watched.stderr


def test_versions_are_those_of_the_environment() -> None:
    done = ran_well(
        sys.executable,
        "-c",
        NO_TORCH.replace("main()", "sys.argv[1:] = ['--version']; main()"),
    )
    number = r"\d+\.\d+\S*"
    assert re.fullmatch(rf"gradscope {number}, torch {number}, Python {number}\n", done.stdout)


def test_colours_are_as_wanted() -> None:
    def rules(**environment: str) -> str:
        return ran_well(sys.executable, "-m", "gradscope", "rules", **environment).stdout

    plain = rules()
    assert "\x1b" not in plain
    coloured = rules(FORCE_COLOR="1", TERM="xterm")
    assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == plain
    assert "\x1b[1m" in coloured


def on_terminal(*args: str | Path, **environment: str) -> str:
    """Return what a command prints on a terminal of 24 lines."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    process = subprocess.Popen(
        [sys.executable, "-m", "gradscope", *args],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=ENVIRONMENT | {"TERM": "xterm-256color", "LINES": "24"} | environment,
    )
    os.close(theirs)
    printed = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux' way to say that nobody writes any more
            break
        if not part:
            break
        printed += part
    process.wait()
    os.close(ours)
    return printed.decode().replace("\r\n", "\n")


def test_a_finding_begins_a_line_below_a_progress_bar(tmp_path: Path) -> None:
    program = tmp_path / "bar.py"
    program.write_text(
        "import sys, torch\nloss = torch.ones(3, requires_grad=True).exp().sum()\n"
        "loss.backward()\nsys.stderr.write('\\r 50%|####|')\nloss.backward()\n",
    )
    printed = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal("run", program))
    below = " " * 80 + "\r"
    assert f"\r 50%|####|{below}error[GS101]" in printed
    assert f"calling backward.\n{below}1 error, 1 warning in" in printed
