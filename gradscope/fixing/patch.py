"""Applies edits to the lines of a source file, and writes the difference as a unified diff."""

from __future__ import annotations

import codecs
import difflib
import errno
import io
import os
import re
import shutil
import tempfile
import tokenize
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from gradscope.errors import GradscopeError
from gradscope.model import Edit
from gradscope.units import lines_of

CONTEXT = 3  # lines around a change that a diff shows, as many as those of `diff -u` and git

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
_ENDS = "\r\n"


class Source(NamedTuple):
    """The text of a file in lines with their ends, and its encoding."""

    file: str
    lines: tuple[str, ...]
    encoding: str = "utf-8"

    @property
    def data(self) -> bytes:
        """The content of the file; raises UnicodeEncodeError if it cannot be encoded."""
        return "".join(self.lines).encode(self.encoding)


class Patch(NamedTuple):
    """A source before and after; ``origin`` has the old line's number for each new line."""

    before: Source
    after: Source
    origin: tuple[int, ...]

    @property
    def file(self) -> str:
        """The file that changes."""
        return self.before.file

    def old_line(self, line: int) -> int:
        """Return the number that a line had before, or that of the line whose edit made it."""
        return self.origin[line - 1] if 0 < line <= len(self.origin) else line


def read(file: str) -> Source:
    """Return the source in a file, in the encoding that it declares.

    Raise OSError, SyntaxError or UnicodeDecodeError if there is none.
    """
    if not os.path.isfile(file):  # a recording may name a device, which has no end
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    with open(file, "rb") as stream:
        return decoded(file, stream.read())


def decoded(file: str, data: bytes) -> Source:
    """Return the source that the content of a file is."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return Source(file, split(data.decode(encoding)), codecs.lookup(encoding).name)


def split(text: str) -> tuple[str, ...]:
    """Return the lines as Python counts them, with their ends: a form feed ends none."""
    return tuple(_LINE.findall(text))


def bare(line: str) -> str:
    """Return a line without its end."""
    return line.rstrip(_ENDS)


def apply(source: Source, edits: Iterable[Edit]) -> Patch:
    """Return the source with all edits made; each is of other lines that the source has."""
    by_line = {edit.line: edit for edit in edits}
    replaced = {line for edit in by_line.values() for line in edit.lines}
    usual = next((_end(line) for line in source.lines if _end(line)), "\n")
    lines: list[str] = []
    origin: list[int] = []
    edited: dict[int, int] = {}  # the first line of each edit, by the first that stands for it
    for number, line in enumerate(source.lines, 1):
        if number in by_line:
            edit = by_line[number]
            new = _replaced(source.lines[edit.end_line - 1], edit.replacement, usual)
            edited[len(lines)] = number
            origin += _origin(source.lines[number - 1 : edit.end_line], new, number)
            lines += new
        elif number not in replaced:
            lines.append(line)
            origin.append(number)
    # What is moved is in one edit the line that another one takes away.
    gone = {source.lines[n - 1].strip(): n for n in replaced.difference(origin)}
    known = 1
    for at, number in enumerate(origin):
        known = edited.get(at, known)
        known = origin[at] = number or gone.pop(lines[at].strip(), 0) or known
    return Patch(source, Source(source.file, tuple(lines), source.encoding), tuple(origin))


def old_place(changes: Iterable[Patch], file: str, line: int) -> tuple[str, int]:
    """Return the place that a line of the changed files had before."""
    change = next((change for change in changes if change.file == file), None)
    return file, line if change is None else change.old_line(line)


def _end(line: str) -> str:
    return line[len(bare(line)) :]


def _replaced(last: str, replacement: str, usual: str) -> list[str]:
    """Return the lines that replace some, with the file's ends; the last has that of theirs."""
    new = lines_of(replacement) if replacement else []
    return [text + (usual if at + 1 < len(new) else _end(last)) for at, text in enumerate(new)]


def _origin(old: Sequence[str], new: Sequence[str], first: int) -> list[int]:
    """Return the number of the old line that each new one is; 0 of one that is not there."""
    lines = [line.strip() for line in old], [line.strip() for line in new]
    origin = [0] * len(new)
    for match in difflib.SequenceMatcher(None, *lines, autojunk=False).get_matching_blocks():
        for step in range(match.size):
            origin[match.b + step] = first + match.a + step
    return origin


def shown_lines(edits: Iterable[Edit]) -> set[int]:
    """Return the numbers of the lines that a diff shows, and perhaps some after the last."""
    around = (range(each.line - CONTEXT, each.end_line + CONTEXT + 1) for each in edits)
    return {line for lines in around for line in lines if line > 0}


def unified_diff(change: Patch, name: str) -> list[str]:
    """Return the lines of the diff with their ends, for ``patch`` to find the file by ``name``."""
    label = f"{name}\t" if " " in name else name  # so that patch(1) knows where the name ends
    lines: list[str] = []
    both = change.before.lines, change.after.lines
    for line in difflib.unified_diff(*both, label, label, n=CONTEXT):
        if line.endswith("\n"):
            lines.append(line)
        else:
            lines += [f"{line}\n", "\\ No newline at end of file\n"]
    return lines


def same_lines(first: Sequence[str], second: Sequence[str], numbers: Iterable[int]) -> bool:
    """Return whether both texts have the same at these line numbers, or both nothing."""
    return all(first[n - 1 : n] == second[n - 1 : n] for n in numbers)


def write(changes: Sequence[Patch]) -> None:
    """Write the changes; raise GradscopeError if a file differs from what they were made for."""
    for change in changes:
        if _content(change.file) != change.before.data:
            raise GradscopeError(
                f"{change.file} was changed while the fix was tried out: "
                "nothing was written, try again"
            )
    written: list[Patch] = []
    waiting: list[tuple[Patch, str, str]] = []
    try:
        for change in changes:
            file = os.path.realpath(change.file)
            waiting.append((change, file, _beside(file, change.after.data)))
        while waiting:
            change, file, temporary = waiting[0]
            os.replace(temporary, file)
            written.append(waiting.pop(0)[0])
    except BaseException as error:
        for _, _, temporary in waiting:
            with suppress(OSError):
                os.unlink(temporary)
        for done in written:
            file = os.path.realpath(done.file)
            with suppress(OSError):
                os.replace(_beside(file, done.before.data), file)
        if not isinstance(error, OSError):
            raise
        raise GradscopeError(
            f"cannot write {change.file}: {error.strerror}; nothing was changed: make the file and"
            " its folder writable, or make the change that the diff shows yourself"
        ) from None


def _content(file: str) -> bytes | None:
    with suppress(OSError), open(file, "rb") as stream:
        return stream.read()
    return None


def _beside(file: str, content: bytes) -> str:
    """Write a new file that can take the place of an old one in one step; return its path."""
    if not os.access(file, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(file), prefix=".gradscope-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        shutil.copymode(file, temporary)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return temporary
