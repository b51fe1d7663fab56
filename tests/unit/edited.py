"""Writes a program to a file, edits it at places that are given by their text, and runs it."""

from __future__ import annotations

import functools
import io
import linecache
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

from gradscope.fixing.patch import apply, decoded
from gradscope.model import Edit, Site

At = Callable[[str], Site]
Write = Callable[[At], tuple[Edit, ...]]


def place(file: str, code: str, text: str) -> Site:
    """Where a text stands for the first time, or for the second where it begins with ``2:``."""
    second = text.startswith("2:")
    text = text.removeprefix("2:")
    start = code.index(text)
    start = code.index(text, start + 1) if second else start
    before, end = code[:start], code[: start + len(text)]
    line, column = before.count("\n") + 1, start - before.rfind("\n")
    return Site(file, line, column, end.count("\n") + 1, len(end) - end.rfind("\n"))


def edited(data: bytes, write: Write, folder: Path) -> bytes:
    """The program after the edits; empty where none are written."""
    file = folder / "program.py"
    file.write_bytes(data)
    linecache.checkcache(str(file))  # it may have been another program
    source = decoded(str(file), data)
    text = "".join(line.rstrip("\r\n") + "\n" for line in source.lines)
    edits = write(functools.partial(place, str(file), text))
    assert {edit.file for edit in edits} <= {str(file)}
    return apply(source, edits).after.data if edits else b""


def after(code: str, write: Write, folder: Path) -> str:
    """The same of a text."""
    return edited(code.encode(), write, folder).decode()


def run(data: bytes) -> str:
    """What a program raises, in a word."""
    try:
        exec(compile(data, "program", "exec"), {"__name__": "program"})
    except RuntimeError as error:
        words = {"second time": "freed", "inplace operation": "stale"}
        return next((word for text, word in words.items() if text in str(error)), str(error))
    return "nothing"


def tokens(data: bytes) -> list[str]:
    """The tokens of a program but for its layout."""
    layout = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
    found = tokenize.tokenize(io.BytesIO(data).readline)
    return [token.string for token in found if token.type not in layout and token.string != ";"]


def is_part(few: list[str], many: list[str]) -> bool:
    """Whether all of the few are among the many, in this order."""
    rest: Iterator[str] = iter(many)
    return all(token in rest for token in few)
