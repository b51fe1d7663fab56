"""Says whether the code bounds what a container holds: by emptying it, or by storing under keys."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator

from gradscope.code import changes, source
from gradscope.code.stores import matches
from gradscope.model import Site
from gradscope.model.paths import Path

_TAKES_OUT = frozenset({"pop", "popleft", "popitem", "clear", "remove", "discard"})
_ALIASES = (ast.Name, ast.Attribute, ast.Subscript)


class Bound(enum.Enum):
    """How the code may keep a container from growing for ever."""

    NONE = 0
    KEYED = 1  # filled by keys, which may come again
    EMPTIED = 2  # emptied, made anew in a loop or method, or elements taken out


def bound_of(names: tuple[Path, ...], store: Site | None) -> Bound:
    """Return what bounds the container that ``store`` fills."""
    if store is None:
        return Bound.NONE
    name = names[0]
    keyed = False
    for node, function, in_loop in source.parsed(store.file).nodes:
        again = in_loop or (name.attribute is not None and not function.endswith("__init__"))
        if any(matches(target, name) for target in _emptied(node, again=again)):
            return Bound.EMPTIED
        keyed |= any(matches(target, name) for target in _keyed(node))
    return Bound.KEYED if keyed else Bound.NONE


def _emptied(node: ast.AST, *, again: bool) -> Iterator[ast.expr]:
    """Yield what a node takes elements out of. ``again``: it may run more than once."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in _TAKES_OUT:
            yield owner
        case ast.Delete(targets=targets):
            for target in targets:
                yield target.value if isinstance(target, ast.Subscript) else target
        case ast.Assign(targets=targets, value=value):
            for target in (each for one in targets for each in changes.unpacked(one)):
                text = ast.unparse(target)
                if isinstance(value, ast.Subscript) and ast.unparse(value.value) == text:
                    yield target  # kept = kept[-10:]
                elif isinstance(target, ast.Subscript):
                    if isinstance(target.slice, ast.Slice):
                        yield target.value  # kept[:] = []
                elif again and not isinstance(value, _ALIASES) and not _reads(value, text):
                    yield target


def _keyed(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a node stores into under a key."""
    match node:
        case ast.Assign(targets=targets):
            for target in (each for one in targets for each in changes.unpacked(one)):
                if isinstance(target, ast.Subscript):
                    yield target.value
        case ast.Call(func=ast.Attribute(value=owner, attr="setdefault" | "update")):
            yield owner


def _reads(value: ast.expr, text: str) -> bool:
    return any(isinstance(n, ast.expr) and ast.unparse(n) == text for n in ast.walk(value))
