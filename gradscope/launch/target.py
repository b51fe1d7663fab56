"""What a command line asks to run: a script, a module, a piece of code, or what stdin has."""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.model import Header
from gradscope.record import header


@dataclass(frozen=True, slots=True)
class Script:
    """``python path args``: a file, or a directory or zip file with a ``__main__.py``."""

    path: str
    args: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class Module:
    """``python -m name args``."""

    name: str
    args: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"-m {self.name}"


@dataclass(frozen=True, slots=True)
class Code:
    """``python -c text args``."""

    text: str
    args: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-c"


@dataclass(frozen=True, slots=True)
class Input:
    """``python - args``: a program on standard input, as it was read from there."""

    content: bytes
    args: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-"


Target = Script | Module | Code | Input


def header_of(target: Target, hooks: bool) -> Header:
    """Return the header for a program that is about to run, and has no torch yet."""
    code = target.text if isinstance(target, Code) else None
    return header.header_of(str(target), target.args, hooks=hooks, code=code)
