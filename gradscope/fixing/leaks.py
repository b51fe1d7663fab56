"""Writes down the ends of leaks as edits, where one line is enough and has one meaning."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from gradscope.code import changes, places, source
from gradscope.code.stores import places_like
from gradscope.fixing.edits import added_to, checked, detached, indent_of, line_alone
from gradscope.model import Edit, Site
from gradscope.model.paths import Origin, Path


def without_retain(site: Site | None) -> tuple[Edit, ...]:
    """Leave ``retain_graph=True`` out of the call at a site."""
    line = "" if site is None else _without_retain(site)
    return checked(Edit(site.file, site.line, line)) if site is not None and line else ()


def detached_after(
    site: Site | None, names: Iterable[Path], *, in_tuple: bool = False
) -> tuple[Edit, ...]:
    """Leave ``retain_graph=True`` out, and detach the tensor after the call by one of its names.

    ``in_tuple``: the names are those of a tuple of tensors.
    """
    line = _without_retain(site) if isinstance(line_alone(site), ast.Expr) and site else ""
    if site is None or not line:
        return ()
    known = (n.text for n in names if n.origin.file == site.file and _is_known_at(n.origin, site))
    name = next((text for text in known if re.fullmatch(r"[^\W\d][\w.]*", text)), None)
    if name is None or not _is_handed_on(name, site):
        return ()
    cut = f"tuple(t.detach() for t in {name})" if in_tuple else f"{name}.detach()"
    return checked(
        Edit(site.file, site.line, f"{line}\n{indent_of(site.file, site.line)}{name} = {cut}")
    )


def detached_where_stored(store: Site | None, *, in_container: bool) -> tuple[Edit, ...]:
    """Store the tensor detached, if there is one place that stores it."""
    if store is None:
        return ()
    for node in ast.walk(source.tree(store.file)):
        if not places.is_at(node, store):
            continue
        value = _stored(node, in_container)
        if value is not None:
            if places_like(store.file, node) != 1 or value.lineno != store.line:
                return ()
            is_short = value.end_lineno == value.lineno
            return (
                checked(Edit(store.file, store.line, detached(value, store.file)))
                if is_short
                else ()
            )
    return ()


def _stored(node: ast.AST, in_container: bool) -> ast.expr | None:
    """Return the tensor that a node stores: into a container, or over what was there."""
    match node:
        case ast.Call(func=ast.Attribute(attr=method), args=[value], keywords=[]) if in_container:
            adds = method in changes.ADDS_ONE and not isinstance(value, ast.Starred)
            return value if adds else None
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
    """Return what is added to a total, or all of the value where it is none."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return added_to(total, value) or value
    return value


def _without_retain(site: Site) -> str:
    """Return the line of a call without ``retain_graph=True``; empty if it has none."""
    line = source.line_of(site.file, site.line)
    calls = source.calls_in(source.tree(site.file))
    call = next((n for n in calls if places.is_at(n, site)), None)
    if call is None or call.end_lineno != call.lineno:
        return ""
    given: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    given.sort(key=lambda each: each.col_offset)
    at = next((i for i, each in enumerate(given) if _is_retain(each)), None)
    if at is None:
        return ""
    spans = [places.columns(each, site.file) for each in given]
    if at:
        return line[: spans[at - 1][1]] + line[spans[at][1] :]
    return line[: spans[0][0]] + line[spans[1][0] if len(spans) > 1 else spans[0][1] :]


def _is_retain(given: ast.expr | ast.keyword) -> bool:
    if not isinstance(given, ast.keyword) or given.arg != "retain_graph":
        return False
    return isinstance(given.value, ast.Constant) and given.value.value is True


def _is_known_at(origin: Origin, site: Site) -> bool:
    """Return whether a variable can be assigned at a site under its name."""
    if site.function == "<module>":
        return origin.owner == "global"
    return origin.owner == "local" and origin.function == site.function


def _is_handed_on(name: str, site: Site) -> bool:
    """Return whether an iteration reads the name first, and does not store it after the call."""
    regions = (*source.LOOPS, ast.FunctionDef, ast.AsyncFunctionDef)
    around = source.enclosing(site.file, site.line)
    region = next(
        (n for n in reversed(around) if isinstance(n, regions) and n.lineno < site.line), None
    )
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
