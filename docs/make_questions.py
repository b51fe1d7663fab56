"""Run the programs of the question pages, and write what they print and draw into the pages.

Run it from anywhere: ``python docs/make_questions.py``; with names of pages, only those. A page
holds programs, each in a ``python`` block that begins with the name of its file, and ``console``
blocks with commands (``$ gradscope run loop.py``) and their output.

Two things are not shown as they are printed: a traceback is cut to the first sentence of its last
line, and the folder in which the programs ran is left out of paths. ``--check`` writes nothing, but
prints how the pages would change and exits with 1 if they would; ``--json`` prints the pages as
they would be written, for the tests.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch  # noqa: F401 - once for all programs, which run in forks of this process
from changes import report_changes

from gradscope import cli
from gradscope.api import watch as watching  # noqa: F401

PAGES = Path(__file__).parent / "questions"
PICTURES = PAGES / "pictures"

_PROGRAM = re.compile(r"^```python\n(# (\S+\.py)\n.*?)^```$", re.MULTILINE | re.DOTALL)
_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?: .*\n)+(.*)\n", re.MULTILINE)


def main(arguments: list[str]) -> int:
    """Run the named pages, or all, then write, compare or print them; return the exit status."""
    modes = {word for word in arguments if word.startswith("--")}
    wanted = [word for word in arguments if word not in modes]
    if modes - {"--json", "--check"}:
        sys.exit(f"unknown option: {' '.join(sorted(modes))}; there are --check and --json")
    made = {
        path: renewed(path.read_text(encoding="utf-8"))
        for path in sorted(PAGES.glob("*.md"))
        if not wanted or any(name in path.name for name in wanted)
    }
    if "--json" in modes:
        pages = {path.name: {"text": text, "pictures": svgs} for path, (text, svgs) in made.items()}
        print(json.dumps(pages))  # noqa: T201
        return 0
    files = {path: text for path, (text, _) in made.items()}
    files |= {PICTURES / name: svg for _, svgs in made.values() for name, svg in svgs.items()}
    if "--check" in modes:
        return report_changes(files)
    PICTURES.mkdir(exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return 0


def renewed(page: str) -> tuple[str, dict[str, str]]:
    """Return the page with the present output of its commands, and their pictures by name."""
    with TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for program in _PROGRAM.finditer(page):
            (folder / program[2]).write_text(program[1], encoding="utf-8")

        def block(console: re.Match[str]) -> str:
            lines = [f"$ {command}\n{shown(command, folder)}" for command in commands(console[1])]
            return "```console\n" + "\n".join(lines) + "```"

        text = _CONSOLE.sub(block, page)
        return text, {
            path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.svg"))
        }


def commands(block: str) -> Iterator[str]:
    """Return the commands of a console block."""
    return (line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ "))


def shown(command: str, folder: Path) -> str:
    """Return what a terminal shows when a command runs in a folder."""
    return tidied(run(command, folder), folder)


def tidied(output: str, folder: Path) -> str:
    """Return the output without the folder's name and with tracebacks cut to one sentence."""
    output = output.replace(f"{folder}{os.sep}", "")
    output = _TRACEBACK.sub(
        lambda found: re.sub(r"(\w)( \(or directly .*|\. .*)", r"\1 …", found[1]) + "\n", output
    )
    return output if not output or output.endswith("\n") else output + "\n"


def run(command: str, folder: Path) -> str:
    """Run ``python FILE`` or ``gradscope …`` in a fork, which has torch loaded already."""
    words = shlex.split(command)
    path = folder / ".output"
    child = os.fork()
    if not child:
        status = 1
        try:
            _become(words, folder, path)
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.waitpid(child, 0)
    return path.read_text(encoding="utf-8")


def _become(words: list[str], folder: Path, output: Path) -> None:
    os.chdir(folder)
    target = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(target, 1)
    os.dup2(target, 2)
    sys.stdout, sys.stderr = (
        os.fdopen(fd, "w", buffering=1, encoding="utf-8", closefd=False) for fd in (1, 2)
    )
    os.environ |= {"COLUMNS": "80", "NO_COLOR": "1", "GRADSCOPE_NO_REHEARSAL": "1"}
    program, *arguments = words
    if program == "gradscope":
        sys.argv = words
        cli.main()
    elif program == "python":
        sys.argv = arguments
        sys.path.insert(0, str(folder))
        main_module = sys.modules["__main__"] = types.ModuleType("__main__")
        main_module.__file__ = arguments[0]
        exec(
            compile(Path(arguments[0]).read_text(encoding="utf-8"), arguments[0], "exec"),
            vars(main_module),
        )
    else:
        raise SystemExit(f"{program}: a page runs python or gradscope")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
