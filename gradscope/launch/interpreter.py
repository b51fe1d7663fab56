"""Reads the command lines by which a program starts Python once more."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import NamedTuple

from gradscope.launch.target import Code, Module, Script, Target

_FLAGS = frozenset("bBdEIOPqsSuv")
"""Options of the interpreter that take no value and that gradscope's own start leaves in force."""

_HELPERS = ("from multiprocessing.resource_tracker", "torch._inductor", "torch/_inductor")
"""What Python and torch start for themselves; no backward call is made there."""

_STARTERS = re.compile(r"(python|torchrun|accelerate)[\d.]*")
_SHELL_TALK = re.compile(r"[|&;<>$`()]")


class Command(NamedTuple):
    """A command line of this interpreter: its options, and what it runs with its arguments."""

    options: list[str]
    program: list[str]


def command_of(executable: str, argv: Sequence[str]) -> Command | None:
    """Return what a command line has this interpreter run; None for any other command line."""
    if _is_this_interpreter(executable):
        at = _first_of_program(argv)
        if at is None or _is_helper(argv[at : at + 2]):
            return None
        return Command(list(argv[1:at]), list(argv[at:]))
    if _is_script_of_this_interpreter(executable):
        return Command([], [executable, *argv[1:]])
    return None


def target_of(program: Sequence[str]) -> Target:
    """Return what a command line runs."""
    first, *rest = program
    if first == "-m":
        return Module(rest[0], tuple(rest[1:]))
    if first == "-c":
        return Code(rest[0], tuple(rest[1:]))
    return Script(first, tuple(rest))


def watched(argv: Sequence[str]) -> str | None:
    """Return the command that would watch what this one starts; None if it starts no Python."""
    if len(argv) > 2 and argv[1] == "-c" and os.path.basename(argv[0]).endswith("sh"):
        text = argv[2]
        try:
            inner = None if _SHELL_TALK.search(text) else watched(shlex.split(text))
        except ValueError:  # a quote that is not closed
            inner = None
        return inner
    program = os.path.basename(argv[0]) if argv else ""
    if not _STARTERS.fullmatch(program):
        return None
    if program == "torchrun":
        return shlex.join(["gradscope", "run", "-m", "torch.distributed.run", *argv[1:]])
    if program == "accelerate":
        return shlex.join(
            ["gradscope", "run", "-m", "accelerate.commands.accelerate_cli", *argv[1:]]
        )
    at = _first_of_program(argv)
    if at is None or _is_helper(argv[at : at + 2]):
        return None
    return shlex.join([*argv[:at], "-m", "gradscope", "run", *argv[at:]])


def _is_helper(program: Sequence[str]) -> bool:
    return any(helper in word for word in program for helper in _HELPERS)


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
    if executable == sys.executable:
        return True
    same_folder = os.path.dirname(executable) == os.path.dirname(sys.executable)
    return same_folder and os.path.realpath(executable) == os.path.realpath(sys.executable)


def _is_script_of_this_interpreter(executable: str) -> bool:
    """Return whether it is a script beside this Python that begins by naming it: ``torchrun``."""
    if os.path.dirname(executable) != os.path.dirname(sys.executable):
        return False
    try:
        with open(executable, "rb") as file:
            first = file.readline(512)
    except OSError:
        return False
    return first.startswith(b"#!") and _is_this_interpreter(os.fsdecode(first[2:].strip()))
