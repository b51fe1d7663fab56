"""Puts pieces of text into source files: as edits of lines, as diffs, and written to the disk."""

from __future__ import annotations

import ast
import codecs
import difflib
import errno
import io
import os
import shutil
import symtable
import tempfile
import tokenize
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, chain, groupby
from typing import NamedTuple

from gradscope.code import source
from gradscope.errors import GradscopeError
from gradscope.formatting import gathered, lines_of
from gradscope.model import Edit

CONTEXT = 3  # lines around a change that a diff shows, as many as those of `diff -u` and git

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
    return tuple(io.StringIO(text, newline=""))


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


@dataclass(frozen=True, slots=True, order=True)
class TextEdit:
    """A text in the place of what stands from ``start`` to ``end`` in a file.

    Both are a line, from 1, and a column in bytes of UTF-8, from 0, as in ``ast``.
    """

    file: str
    start: tuple[int, int]
    end: tuple[int, int]
    text: str


TextEdits = tuple[TextEdit, ...]


def written(*pieces: TextEdit) -> tuple[Edit, ...]:
    """Return the edits that put the pieces in; none if there is none, if two contradict each
    other, or if a file cannot be parsed with them.
    """
    found: list[Edit] = []
    for file, of_file in groupby(sorted(set(pieces)), key=lambda piece: piece.file):
        clusters: list[list[TextEdit]] = []
        for piece in of_file:
            before = clusters[-1][-1] if clusters else None
            if before is not None and piece.start < before.end:
                return ()
            if before is not None and piece.start[0] <= before.end[0]:
                clusters[-1].append(piece)
            else:
                clusters.append([piece])
        found += [_edit(file, cluster) for cluster in clusters]
    return _checked(found)


def together(*parts: TextEdits) -> TextEdits:
    """Return the pieces of all parts; none if there is one that cannot be written."""
    return tuple(chain.from_iterable(parts)) if all(parts) else ()


def all_of(parts: Iterable[TextEdits]) -> tuple[Edit, ...]:
    """Return the edits of all parts; none if there is one that cannot be written."""
    return written(*together(*parts))


def _edit(file: str, pieces: Sequence[TextEdit]) -> Edit:
    last = min(pieces[-1].end[0], len(source.parsed(file).lines))
    return Edit(file, pieces[0].start[0], _put_in(file, pieces), last)


def _put_in(file: str, pieces: Sequence[TextEdit]) -> str:
    """Return the lines from the first piece to the last one, with the pieces in them."""
    lines = source.parsed(file).lines
    first = pieces[0].start[0]
    texts = [bare(line).encode() for line in lines[first - 1 : pieces[-1].end[0]]]
    starts = [*accumulate((len(text) + 1 for text in texts), initial=0)]
    data = b"\n".join(texts)
    for piece in reversed(pieces):
        begin, end = (starts[line - first] + column for line, column in (piece.start, piece.end))
        data = data[:begin] + piece.text.encode() + data[end:]
    return data.decode()


def _checked(edits: Sequence[Edit]) -> tuple[Edit, ...]:
    for file, own in gathered(edits, lambda edit: edit.file).items():
        after = apply(Source(file, tuple(source.parsed(file).lines)), own).after
        try:
            with source.quietly():
                symtable.symtable("".join(after.lines), file, "exec")
        except (SyntaxError, ValueError):
            return ()
    return tuple(edits)


def instead_of(node: ast.AST, file: str, text: str) -> TextEdit:
    """Return the piece that replaces an expression."""
    return TextEdit(file, start_of(node), end_of(node), text)


def text_of(node: ast.AST, file: str, within: TextEdits = ()) -> str:
    """Return an expression as it is written, over several lines if it is so, with pieces in it."""
    start, end = start_of(node), end_of(node)
    width = len(bare(source.parsed(file).lines[end[0] - 1]).encode())
    before = TextEdit(file, (start[0], 0), start, "")
    behind = TextEdit(file, end, (end[0], width), "")
    return _put_in(file, (before, *sorted(within), behind))


def start_of(node: ast.AST) -> tuple[int, int]:
    """Return the line and the column where a node starts."""
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def end_of(node: ast.AST) -> tuple[int, int]:
    """Return the line and the column where a node ends."""
    return getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)


# statements


def before(node: ast.stmt, file: str, lines: Iterable[str]) -> TextEdits:
    """Return the piece that puts lines above a statement; none if others share its line."""
    at, lines = (first_line(node), 0), [*lines]
    indent = _indent(node, file)
    if indent is None or not lines:
        return ()
    return (TextEdit(file, at, at, "".join(f"{indent}{line}\n" for line in lines)),)


def after(node: ast.stmt, file: str, lines: Iterable[str]) -> TextEdits:
    """Return the piece that puts lines below a statement; none if others share its lines."""
    indent, lines = _indent(node, file), [*lines]
    if indent is None or not lines or not _stands_alone(node, file):
        return ()
    text = "".join(f"\n{indent}{line}" for line in lines)
    return (TextEdit(file, end_of(node), end_of(node), text),)


def removed(node: ast.stmt, file: str) -> TextEdits:
    """Return the piece that takes a statement out; none if others share its lines."""
    if not _stands_alone(node, file):
        return ()
    if len(block_with(file, node)) < 2:
        return (TextEdit(file, start_of(node), end_of(node), "pass"),)
    return (TextEdit(file, (first_line(node), 0), (end_of(node)[0] + 1, 0), ""),)


def under(node: ast.stmt, file: str, context: str) -> TextEdits:
    """Return the pieces that run a statement under a context; none if a text of several lines is
    in it, as that would change with its indentation.
    """
    indent = _indent(node, file)
    lines = range(first_line(node), end_of(node)[0] + 1)
    hands_over = any(isinstance(n, ast.Yield | ast.YieldFrom | ast.Await) for n in ast.walk(node))
    if indent is None or not _stands_alone(node, file) or _has_wide_text(node) or hands_over:
        return ()
    step = "\t" if indent.startswith("\t") else "    "
    filled = [line for line in lines[1:] if source.parsed(file).lines[line - 1].strip()]
    parts = [TextEdit(file, (line, 0), (line, 0), step) for line in filled]
    head = f"{indent}with {context}:\n{step}"
    return (TextEdit(file, (lines[0], 0), (lines[0], 0), head), *parts)


def only(block: Sequence[ast.stmt], node: ast.stmt, file: str) -> TextEdits:
    """Return the pieces that leave one block of a statement in the place of it all; none if a text
    of several lines is in it.
    """
    first, last = block[0], block[-1]
    start, inner, outer = start_of(first), _indent(first, file), _indent(node, file)
    is_else = text_of(node, file).startswith("elif")
    if outer is None or is_else or any(map(_has_wide_text, block)):
        return ()
    width = 0 if inner is None else len(inner) - len(outer)
    lines = enumerate(source.parsed(file).lines[start[0] : end_of(last)[0]], start[0] + 1)
    filled = [at for at, line in lines if line.strip() and not line[:width].strip()]
    parts = [TextEdit(file, (at, 0), (at, width), "") for at in filled]
    head = TextEdit(file, start_of(node), (first_line(first), start[1]), "")
    return (head, *parts, TextEdit(file, end_of(last), end_of(node), ""))


def _has_wide_text(node: ast.AST) -> bool:
    """Return whether a text of several lines is in a statement: it changes with its indentation."""
    texts = (n for n in ast.walk(node) if isinstance(n, ast.Constant | ast.JoinedStr))
    return any(text.end_lineno != text.lineno for text in texts)


def statement_lines(node: ast.stmt, file: str, within: TextEdits = ()) -> list[str]:
    """Return the lines of a statement, without its indentation, with pieces in it; none if they
    cannot be moved.
    """
    if _has_wide_text(node):
        return []
    before = _indent(node, file) or ""
    indent = len(before)
    own = source.parsed(file).lines[first_line(node) - 1 : end_of(node)[0]]
    own = f"{before}{text_of(node, file, within)}".split("\n") if within else own
    return [bare(line)[indent:] if not bare(line)[:indent].strip() else bare(line) for line in own]


def first_line(node: ast.stmt) -> int:
    """Return the line where a statement begins, its decorators included."""
    return min(start_of(each)[0] for each in (node, *getattr(node, "decorator_list", ())))


def _indent(node: ast.stmt, file: str) -> str | None:
    """Return what stands before a statement; None if that is not only white space."""
    line = bare(source.parsed(file).lines[first_line(node) - 1])
    text = line.encode()[: start_of(node)[1]].decode()
    return None if text.strip() else text


def _stands_alone(node: ast.stmt, file: str) -> bool:
    line, column = end_of(node)
    rest = bare(source.parsed(file).lines[line - 1]).encode()[column:].decode().strip()
    return _indent(node, file) is not None and (not rest or rest.startswith("#"))


def block_with(file: str, statement: ast.stmt) -> list[ast.stmt]:
    """Return the block that a statement stands in."""
    return source.parsed(file).blocks.get(statement, [])
