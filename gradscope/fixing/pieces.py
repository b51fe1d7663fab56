"""Puts pieces of text into files: several changes of one statement become one edit of its lines."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby

from gradscope.code import source
from gradscope.fixing.patch import Source, apply, bare
from gradscope.model import Edit
from gradscope.units import gathered


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """A text in the place of what stands from ``start`` to ``end`` in a file.

    Both are a line, from 1, and a column in bytes of UTF-8, from 0, as in ``ast``.
    """

    file: str
    start: tuple[int, int]
    end: tuple[int, int]
    text: str


Pieces = tuple[Piece, ...]


def written(*pieces: Piece) -> tuple[Edit, ...]:
    """Return the edits that put the pieces in; none if there is none, if two contradict each
    other, or if a file cannot be parsed with them.
    """
    found: list[Edit] = []
    for file, of_file in groupby(sorted(set(pieces)), key=lambda piece: piece.file):
        clusters: list[list[Piece]] = []
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


def together(*parts: Pieces) -> Pieces:
    """Return the pieces of all parts; none if there is one that cannot be written."""
    return tuple(chain.from_iterable(parts)) if all(parts) else ()


def all_of(parts: Iterable[Pieces]) -> tuple[Edit, ...]:
    """Return the edits of all parts; none if there is one that cannot be written."""
    return written(*together(*parts))


def _edit(file: str, pieces: Sequence[Piece]) -> Edit:
    last = min(pieces[-1].end[0], len(source.parsed(file).lines))
    return Edit(file, pieces[0].start[0], _replaced(file, pieces), last)


def _replaced(file: str, pieces: Sequence[Piece]) -> str:
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


def instead_of(node: ast.AST, file: str, text: str) -> Piece:
    """Return the piece that replaces an expression."""
    return Piece(file, start_of(node), end_of(node), text)


def text_of(node: ast.AST, file: str, within: Pieces = ()) -> str:
    """Return an expression as it is written, over several lines if it is so, with pieces in it."""
    start, end = start_of(node), end_of(node)
    width = len(bare(source.parsed(file).lines[end[0] - 1]).encode())
    before, behind = Piece(file, (start[0], 0), start, ""), Piece(file, end, (end[0], width), "")
    return _replaced(file, (before, *sorted(within), behind))


def start_of(node: ast.AST) -> tuple[int, int]:
    """Return the line and the column where a node starts."""
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def end_of(node: ast.AST) -> tuple[int, int]:
    """Return the line and the column where a node ends."""
    return getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)


# statements


def before(node: ast.stmt, file: str, lines: Iterable[str]) -> Pieces:
    """Return the piece that puts lines above a statement; none if others share its line."""
    at, lines = (first_line(node), 0), [*lines]
    indent = _indent(node, file)
    if indent is None or not lines:
        return ()
    return (Piece(file, at, at, "".join(f"{indent}{line}\n" for line in lines)),)


def after(node: ast.stmt, file: str, lines: Iterable[str]) -> Pieces:
    """Return the piece that puts lines below a statement; none if others share its lines."""
    indent, lines = _indent(node, file), [*lines]
    if indent is None or not lines or not _stands_alone(node, file):
        return ()
    text = "".join(f"\n{indent}{line}" for line in lines)
    return (Piece(file, end_of(node), end_of(node), text),)


def removed(node: ast.stmt, file: str) -> Pieces:
    """Return the piece that takes a statement out; none if others share its lines."""
    if not _stands_alone(node, file):
        return ()
    if len(block_with(file, node)) < 2:
        return (Piece(file, start_of(node), end_of(node), "pass"),)
    return (Piece(file, (first_line(node), 0), (end_of(node)[0] + 1, 0), ""),)


def under(node: ast.stmt, file: str, context: str) -> Pieces:
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
    parts = [Piece(file, (line, 0), (line, 0), step) for line in filled]
    head = f"{indent}with {context}:\n{step}"
    return (Piece(file, (lines[0], 0), (lines[0], 0), head), *parts)


def only(block: Sequence[ast.stmt], node: ast.stmt, file: str) -> Pieces:
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
    parts = [Piece(file, (at, 0), (at, width), "") for at in filled]
    head = Piece(file, start_of(node), (first_line(first), start[1]), "")
    return (head, *parts, Piece(file, end_of(last), end_of(node), ""))


def _has_wide_text(node: ast.AST) -> bool:
    """Return whether a text of several lines is in a statement: it changes with its indentation."""
    texts = (n for n in ast.walk(node) if isinstance(n, ast.Constant | ast.JoinedStr))
    return any(text.end_lineno != text.lineno for text in texts)


def lines_of(node: ast.stmt, file: str, within: Pieces = ()) -> list[str]:
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
