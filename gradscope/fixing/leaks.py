"""Writes down what ends a leak as edits of the user's lines, where one line is enough and nothing else can be meant."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradscope.code import places
from gradscope.code.stores import lines_of, parsed, places_like
from gradscope.detect.leaks.suspects import Suspect
from gradscope.model import Edit, Site
from gradscope.program.reach import Origin

_APPENDS = ("append", "appendleft")
_REGIONS = (ast.For, ast.While, ast.AsyncFor, ast.FunctionDef, ast.AsyncFunctionDef)


def without_retain(site: Site | None) -> tuple[Edit, ...]:
    """Leave ``retain_graph=True`` out of the call at a site."""
    line = None if site is None else _without_retain(site)
    return () if line is None or site is None else _checked(Edit(site.file, site.line, line))


def detached_after(site: Site | None, suspect: Suspect) -> tuple[Edit, ...]:
    """Leave ``retain_graph=True`` out, and cut the tensor off once the call is over."""
    if site is None or not isinstance(_statement_at(site), ast.Expr):
        return ()
    line = _without_retain(site)
    names = suspect.names if suspect.is_direct else suspect.names[:1] if suspect.is_tuple else ()
    known = (
        name.text
        for name in names
        if name.origin.file == site.file and _is_known_at(name.origin, site)
    )
    name = next((text for text in known if re.fullmatch(r"[^\W\d][\w.]*", text)), None)
    if line is None or name is None or not _is_handed_on(name, site):
        return ()
    indent = line[: len(line) - len(line.lstrip())]
    cut = f"{name}.detach()" if suspect.is_direct else f"tuple(t.detach() for t in {name})"
    return _checked(Edit(site.file, site.line, f"{line}\n{indent}{name} = {cut}"))


def detached_where_stored(store: Site | None, suspect: Suspect) -> tuple[Edit, ...]:
    """Store the tensor cut off, if there is one place that stores it."""
    if store is None or not suspect.is_direct:
        return ()
    there = (
        (n, _stored(n, suspect.is_container))
        for n in ast.walk(parsed(store.file))
        if places.is_at(n, store)
    )
    node, value = next(((node, value) for node, value in there if value is not None), (None, None))
    if node is None or value is None or places_like(store.file, node) != 1:
        return ()
    line = _line(store)
    if line is None or value.end_lineno != value.lineno:
        return ()
    start, end = places.columns(value, store.file)
    text = line[start:end]
    simple = isinstance(value, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    new = f"{text if simple else f'({text})'}.detach()"
    return _checked(Edit(store.file, store.line, f"{line[:start]}{new}{line[end:]}"))


def _stored(node: ast.AST, in_container: bool) -> ast.expr | None:
    """The tensor that a statement or call stores: into a container, or in the place of what was there."""
    match node:
        case ast.Call(func=ast.Attribute(attr=method), args=[value], keywords=[]) if (
            in_container and method in _APPENDS
        ):
            return None if isinstance(value, ast.Starred) else value
        case ast.Assign(targets=[ast.Subscript()], value=value) if in_container:
            return value
        case ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=value) if (
            not in_container
        ):
            return _added(value, ast.unparse(target))
        case ast.AugAssign(
            target=ast.Name() | ast.Attribute(), op=ast.Add() | ast.Sub(), value=value
        ) if not in_container:
            return value
    return None


def _added(value: ast.expr, total: str) -> ast.expr:
    """What is added to a total, or all of the value where it is none."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        left, right = ast.unparse(value.left), ast.unparse(value.right)
        if total in (left, right) and left != right:
            return value.right if left == total else value.left
    return value


def _without_retain(site: Site) -> str | None:
    """The line of a call without its ``retain_graph=True``; None if it is not written so."""
    line = _line(site)
    call = next(
        (
            n
            for n in ast.walk(parsed(site.file))
            if isinstance(n, ast.Call) and places.is_at(n, site)
        ),
        None,
    )
    if line is None or call is None or call.end_lineno != call.lineno:
        return None
    given: list[ast.expr | ast.keyword] = sorted(
        [*call.args, *call.keywords], key=lambda each: each.col_offset
    )
    at = next((i for i, each in enumerate(given) if _is_retain(each)), None)
    if at is None:
        return None
    spans = [places.columns(each, site.file) for each in given]
    if at:
        return line[: spans[at - 1][1]] + line[spans[at][1] :]
    return line[: spans[0][0]] + line[spans[1][0] if len(spans) > 1 else spans[0][1] :]


def _is_retain(given: ast.expr | ast.keyword) -> bool:
    if not isinstance(given, ast.keyword) or given.arg != "retain_graph":
        return False
    return isinstance(given.value, ast.Constant) and given.value.value is True


def _line(site: Site) -> str | None:
    """The line of a site, if there is one."""
    lines = lines_of(site.file)
    line = lines[site.line - 1].rstrip("\r\n") if 0 < site.line <= len(lines) else ""
    return line or None


def _statement_at(site: Site) -> ast.stmt | None:
    """The statement that has the line of a site for itself."""
    found = [
        n for n in _statements(parsed(site.file)) if n.lineno <= site.line <= (n.end_lineno or 0)
    ]
    alone = len([n for n in found if n.lineno == site.line]) == 1
    return found[-1] if found and alone and found[-1].lineno == found[-1].end_lineno else None


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.stmt))


def _is_known_at(origin: Origin, site: Site) -> bool:
    """Whether a variable can be assigned at a site under its name."""
    if site.function == "<module>":
        return origin.owner == "global"
    return origin.owner == "local" and origin.function == site.function


def _is_handed_on(name: str, site: Site) -> bool:
    """Whether an iteration reads the name before it stores it, and does not store it after the call."""
    around = [
        n for n in ast.walk(parsed(site.file)) if isinstance(n, _REGIONS) and _spans(n, site.line)
    ]
    region = max(around, key=lambda node: node.lineno, default=None)
    if region is None:
        return False
    uses = [
        n
        for n in ast.walk(region)
        if isinstance(n, ast.Name | ast.Attribute) and ast.unparse(n) == name
    ]
    reads = [n.lineno for n in uses if isinstance(n.ctx, ast.Load)]
    stores = [n.lineno for n in uses if isinstance(n.ctx, ast.Store)]
    if not uses:
        return "." in name  # a module does it, somewhere in its forward
    return bool(reads and stores) and min(reads) <= min(stores) and max(stores) <= site.line


def _spans(node: ast.stmt, line: int) -> bool:
    return node.lineno < line <= (node.end_lineno or 0)


def _checked(edit: Edit) -> tuple[Edit, ...]:
    """The edit, if the file is still Python with it."""
    lines = [line.rstrip("\r\n") for line in lines_of(edit.file)]
    try:
        ast.parse("\n".join([*lines[: edit.line - 1], edit.replacement, *lines[edit.line :]]))
    except (SyntaxError, ValueError):
        return ()
    return (edit,)
