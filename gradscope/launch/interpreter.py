"""Reads the command lines by which a user or a program starts Python."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from gradscope.errors import GradscopeError
from gradscope.model import Header
from gradscope.record import __version__

Target: TypeAlias = Sequence[str]
"""A program, by the words that follow ``python`` and its options: a path (a file, or a directory or
zip file with a ``__main__.py``), ``-`` (standard input), ``-m name`` or ``-c text``; then its
arguments.
"""


def header_of(target: Target, hooks: bool) -> Header:
    """Return the header for a program that is about to run, and has no torch yet."""
    args = target[2:] if target[0] in ("-m", "-c") else target[1:]
    code = target[1] if target[0] == "-c" else None
    name = " ".join(target[:2]) if target[0] == "-m" else target[0]
    return Header.of_process(name, args, hooks, gradscope=__version__, torch="", code=code)


RECORDED = ".gscope"
"""How the names of recordings end."""

_FLAGS = frozenset("bBdEIOPqsSuv")
"""Options of the interpreter that take no value and that gradscope's start leaves as they are."""

_HELPERS = ("from multiprocessing.resource_tracker", "torch._inductor", "torch/_inductor")
"""What Python and torch start for themselves; no backward call is made there."""

_PYTHON = re.compile(r"python[\d.]*(\.exe)?")
_STARTERS = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed")
_SHELL_TALK = re.compile(r"[|&;<>$`()]")


class Command(NamedTuple):
    """A command line of Python: the interpreter with its options, and the program."""

    python: list[str]
    program: Target


def command_of(executable: str, argv: Sequence[str]) -> Command | None:
    """Return what a command line has this interpreter run; None for any other command line."""
    if _is_this_interpreter(executable):
        return _parted(argv)
    # A script beside this Python that begins by naming it, as ``torchrun`` does.
    beside = os.path.dirname(executable) == os.path.dirname(sys.executable)
    if beside and _names_this_interpreter(executable):
        return Command([argv[0]], [executable, *argv[1:]])
    return None


def watched(argv: Sequence[str]) -> str | None:
    """Return the command that would watch what this one starts; None if it starts no Python."""
    if len(argv) > 2 and argv[1] == "-c" and os.path.basename(argv[0]).endswith("sh"):
        with suppress(ValueError):  # a quote that is not closed
            return None if _SHELL_TALK.search(argv[2]) else watched(shlex.split(argv[2]))
        return None
    program = os.path.basename(argv[0]) if argv else ""
    if not _STARTERS.fullmatch(program):
        return None
    if not _PYTHON.fullmatch(program):
        return shlex.join(["gradscope", "run", *argv])
    command = _parted(argv)
    return command and shlex.join([*command.python, "-m", "gradscope", "run", *command.program])


def _parted(argv: Sequence[str]) -> Command | None:
    """Return a command line of Python in its two parts; None where that is not sure, and for a
    helper.
    """
    at = _first_of_program(argv)
    if at is None or any(helper in word for word in argv[at : at + 2] for helper in _HELPERS):
        return None
    return Command(list(argv[:at]), argv[at:])


def _first_of_program(argv: Sequence[str]) -> int | None:
    """Return where the interpreter's own options end; None where that is not sure."""
    at = 1
    while at < len(argv):
        word = argv[at]
        if word in ("-c", "-m"):
            return at if at + 1 < len(argv) else None
        if word == "-" or word.startswith("--"):
            return None
        if not word.startswith("-"):
            return at
        if word[:2] in ("-W", "-X"):
            at += 1 if len(word) > 2 else 2
        elif _FLAGS.issuperset(word[1:]):
            at += 1
        else:
            return None
    return None


def _is_this_interpreter(executable: str) -> bool:
    """Return whether it is this very Python, with the same packages."""
    if not executable or not sys.executable:
        return False
    same_folder = os.path.dirname(executable) == os.path.dirname(sys.executable)
    return same_folder and os.path.realpath(executable) == os.path.realpath(sys.executable)


def _names_this_interpreter(file: str) -> bool:
    """Return whether the first lines of a script name this very Python, and no options."""
    python = _python_of(file)
    return len(python) == 1 and _is_this_interpreter(python[0])


def _python_of(file: str) -> list[str]:
    """Return the Python and its options that the first lines of a script name, if they do."""
    import shutil

    try:
        with open(file, "rb") as script:
            first, second = (os.fsdecode(script.readline(1024)) for _ in range(2))
    except OSError:
        return []
    if not first.startswith("#!"):
        return []
    words = first[2:].split()
    if second.startswith("'''exec' "):  # as pip writes it where a path is long or has a space
        words = shlex.split(second)[1:-2]
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if word != "-S"]
        words[:1] = [shutil.which(word) or word for word in words[:1]]
    return words if words and _PYTHON.fullmatch(os.path.basename(words[0])) else []


def program_of(name: str, args: Sequence[str]) -> Target | Command:
    """Return what a user wants to run who names a script, a launcher on the PATH, or Python: a
    Command where another Python, or one with options, has to run gradscope.

    Raise GradscopeError if that is not a Python program.
    """
    import shutil

    words = [name, *args]
    if name.endswith(".ipynb"):
        first = "`%load_ext gradscope` and `%gradscope on` in its first cell"
        raise GradscopeError(f"{name} is a notebook: run it in Jupyter, with {first}")
    if name.endswith(RECORDED):
        raise GradscopeError(f"{name} is a recording: gradscope report {shlex.quote(name)}")
    is_path = os.path.dirname(name) != ""
    is_here = os.path.isfile(name) or os.path.isfile(os.path.join(name, "__main__.py"))
    python = shutil.which(name) if _PYTHON.fullmatch(os.path.basename(name)) else None
    if python and (is_path or not is_here):
        at = _first_of_program(words)
        if at is None:
            raise GradscopeError(f"{shlex.join(words)} names no program: name a script, -m or -c")
        return Command([python, *words[1:at]], words[at:])
    if is_path or is_here:
        return words
    beside = os.path.join(os.path.dirname(sys.executable), name)
    on_path = shutil.which(name)
    for file in filter(None, (beside, on_path)):
        if _names_this_interpreter(file):
            return [file, *args]
    code = _code_of_command(name)
    if code is not None:
        return ["-c", code, *args]
    if on_path is None:
        return words
    other = _python_of(on_path)
    if not other:
        put = "put `gradscope run` before the Python program that it starts"
        raise GradscopeError(f"{name} is not a Python program; {put}")
    return Command(other, [on_path, *args])


def _code_of_command(name: str) -> str | None:
    """Return what an installed command runs, if that is not a script: on Windows, say."""
    from importlib.metadata import entry_points

    for entry in entry_points(group="console_scripts", name=name):
        function = f"from {entry.module} import {entry.attr.partition('.')[0]}"
        return f"import sys\n{function}\nsys.argv[0] = {name!r}\nsys.exit({entry.attr}())"
    return None
