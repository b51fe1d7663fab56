"""Writes down the ends of leaks as edits, where one line is enough and has one meaning."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from gradscope.code import changes, places, source
from gradscope.code.stores import places_like
from gradscope.fixing import primitives, spots
from gradscope.model import Edit, Site
from gradscope.model.paths import Origin, Path


def without_retain(site: Site | None) -> tuple[Edit, ...]:
    """Leave ``retain_graph=True`` out of the call at a site."""
    return primitives.without_flag(site, "retain_graph") if site is not None else ()


def detached_after(
    site: Site | None, names: Iterable[Path], *, in_tuple: bool = False
) -> tuple[Edit, ...]:
    """Leave ``retain_graph=True`` out, and detach the tensor after the call by one of its names.

    ``in_tuple``: the names are those of a tuple of tensors.
    """
    if site is None or not isinstance(spots.statement_at(site), ast.Expr):
        return ()
    known = (n.text for n in names if n.origin.file == site.file and _is_known_at(n.origin, site))
    name = next((text for text in known if re.fullmatch(r"[^\W\d][\w.]*", text)), None)
    if name is None or not _is_handed_on(name, site):
        return ()
    return primitives.detach_after(site, [name], elements=in_tuple, without="retain_graph")


def detached_where_stored(store: Site | None, *, in_container: bool) -> tuple[Edit, ...]:
    """Store the tensor detached, if there is one place that stores it."""
    if store is None:
        return ()
    for node in ast.walk(source.tree(store.file)):
        if places.is_at(node, store) and (total := _stores(node, in_container)) is not None:
            if places_like(store.file, node) != 1:
                return ()
            added = primitives.detach_added(store, total) if total else ()
            return added or primitives.detach_stored(store)
    return ()


def _stores(node: ast.AST, in_container: bool) -> str | None:
    """Return the total that a node adds to, or an empty text if it stores something else.

    None where it stores nothing that could be detached: into a container, or over what was there.
    """
    match node:
        case ast.Call(func=ast.Attribute(attr=method), args=[value], keywords=[]) if in_container:
            adds = method in changes.ADDS_ONE and not isinstance(value, ast.Starred)
            return "" if adds else None
        case ast.Assign(targets=[ast.Subscript()]) if in_container:
            return ""
        case ast.Assign(targets=[ast.Name() | ast.Attribute() as target]) if not in_container:
            return ast.unparse(target)
        case ast.AugAssign(
            target=ast.Name() | ast.Attribute() as target, op=ast.Add() | ast.Sub()
        ) if not in_container:
            return ast.unparse(target)
    return None


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
