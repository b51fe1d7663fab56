"""Tools to write edits with; edits are offered only if every file still parses with them."""

from __future__ import annotations

import ast
import symtable

from gradscope.code import places, source
from gradscope.fixing.patch import Source, apply
from gradscope.model import Edit, Site


class CannotBeWrittenError(Exception):
    """The edit cannot be written down, or would be wrong."""


def checked(*edits: Edit) -> tuple[Edit, ...]:
    """Return the edits if each file can be parsed with all of them; none otherwise."""
    for file in {edit.file for edit in edits}:
        own = [edit for edit in edits if edit.file == file]
        lines = [line for edit in own for line in edit.lines]
        before = Source(file, tuple(source.parsed(file).lines))
        if len(set(lines)) < len(lines) or max(lines) > len(before.lines):
            return ()
        after = apply(before, own).after
        try:
            symtable.symtable("".join(after.lines), file, "exec")
        except (SyntaxError, ValueError):
            return ()
    return edits


def indent_of(file: str, line: int) -> str:
    """Return the white space that a line begins with."""
    text = source.line_of(file, line)
    return text[: len(text) - len(text.lstrip())]


def is_alone(file: str, node: ast.stmt) -> bool:
    """Return whether no other statement is on the lines of this one."""
    lines = source.parsed(file).lines[node.lineno - 1 : node.end_lineno]
    indented = lines[0][:1].isspace()
    try:
        body = ast.parse("".join(["if True:\n", *lines] if indented else lines)).body
    except (SyntaxError, ValueError):
        return False
    if indented and isinstance(body[0], ast.If):
        body = body[0].body
    return len(body) == 1 and type(body[0]) is type(node)


def line_alone(site: Site | None) -> ast.stmt | None:
    """Return the statement at a site if it is one line, and the only one on it."""
    statement = None if site is None else source.statement_at(site)
    if site is None or statement is None or statement.lineno != statement.end_lineno:
        return None
    return statement if is_alone(site.file, statement) else None


def detached(value: ast.expr, file: str) -> str:
    """Return the line of an expression that ends on it, with the expression detached."""
    line = source.line_of(file, value.lineno)
    start, end = places.columns(value, file)
    text = line[start:end]
    simple = isinstance(value, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return f"{line[:start]}{text if simple else f'({text})'}.detach(){line[end:]}"


def reads_followed_by(suffix: str, name: str, statement: ast.AST, site: Site) -> str:
    """Return a line with the suffix after every read of a name; empty where there is none."""
    reads = [node for node in source.reads_of(statement) if ast.unparse(node) == name]
    line = source.line_of(site.file, site.line)
    for end in sorted((places.columns(node, site.file)[1] for node in reads), reverse=True):
        line = f"{line[:end]}{suffix}{line[end:]}"
    return line if reads else ""


def added_to(total: str, sum_of: ast.BinOp) -> ast.expr | None:
    """Return what a sum of two adds to a total; None unless exactly one of them is the total."""
    left, right = ast.unparse(sum_of.left), ast.unparse(sum_of.right)
    if total not in (left, right) or left == right:
        return None
    return sum_of.right if left == total else sum_of.left
