"""Finds the line of the source that stores something under a name: an assignment, an append, an update in place."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from gradscope.code import places
from gradscope.model import Site
from gradscope.program.reach import Path

_ADDERS = frozenset(
    {
        "append",
        "appendleft",
        "add",
        "extend",
        "insert",
        "setdefault",
        "update",
        "put",
        "push",
        "put_nowait",
    }
)
_FRAMES = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class _Place:
    """A statement, how it is nested, and what it stores to."""

    node: ast.stmt | ast.expr
    function: str
    in_loop: bool
    target: ast.expr
    reads_itself: bool
    fills: bool  # puts something into the target, which stays the same object


def find_store(names: tuple[Path, ...], *, container: bool) -> Site | None:
    """The line that stores what these names hold: the most telling one for the first name for which there is any."""
    found = _find(names, container=container)
    return (
        None
        if found is None
        else places.of_node(found[1].node, found[0].origin.file, found[1].function)
    )


def store_of(names: tuple[Path, ...]) -> tuple[Site | None, bool]:
    """The line that stores a tensor of these names, and whether it computes it from what they held before."""
    found = _find(names, container=False)
    if found is None:
        return None, False
    return places.of_node(found[1].node, found[0].origin.file, found[1].function), found[
        1
    ].reads_itself


def _find(names: tuple[Path, ...], *, container: bool) -> tuple[Path, _Place] | None:
    for name in names:
        best: tuple[tuple[int, ...], _Place] | None = None
        for place in _places(name.origin.file):
            if (match := _match(place.target, name)) == 0:
                continue
            inside = name.origin.owner != "local" or name.origin.function.endswith(place.function)
            score = (match, inside, place.in_loop, place.fills == container, place.reads_itself)
            if best is None or score > best[0]:
                best = score, place
        if best is not None:
            return name, best[1]
    return None


def find_calls(file: str, method: str) -> list[Site]:
    """The calls of a method of this name in a file."""
    found = []
    for node, function, _ in _walk(parsed(file), "<module>", False):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == method
        ):
            found.append(places.of_node(node, file, function))
    return found


def places_like(file: str, node: ast.AST) -> int:
    """How many places of the file store to the same target in the same manner."""
    wanted = {(ast.unparse(target), fills, reads) for target, fills, reads in _targets(node)}
    return sum(
        (ast.unparse(p.target), p.fills, p.reads_itself) in wanted for p in _places(file)
    ) // max(len(wanted), 1)


def lines_of(file: str) -> list[str]:
    """The lines of a file, with their ends."""
    return linecache.getlines(file)


def writes_data(file: str) -> bool:
    """True when the file changes tensors through ``.data``, which no version counter sees."""
    for node, _, _ in _walk(parsed(file), "<module>", False):
        if (
            isinstance(node, ast.AugAssign)
            and isinstance(node.target, ast.Attribute)
            and node.target.attr == "data"
        ):
            return True
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr.endswith("_")
        ):
            owner = node.func.value
            if isinstance(owner, ast.Attribute) and owner.attr == "data":
                return True
    return False


def _match(target: ast.expr, name: Path) -> int:
    """How well what is stored to fits the name: 3 as written, 2 by its last attribute, 1 by its variable, 0 not at all."""
    text = ast.unparse(target)
    if text == name.text:
        return 3
    if name.attribute is not None:
        return 2 if isinstance(target, ast.Attribute) and target.attr == name.attribute else 0
    if isinstance(target, ast.Subscript) and name.text.startswith(f"{ast.unparse(target.value)}["):
        return 2
    if name.through_frame:
        return 0
    return 1 if isinstance(target, ast.Name) and target.id == name.root else 0


@lru_cache(maxsize=32)
def parsed(file: str) -> ast.Module:
    """The parsed file; empty where there is no source, or it cannot be parsed."""
    try:
        return ast.parse("".join(lines_of(file)))
    except (SyntaxError, ValueError):  # a notebook's magic, or a file that changed since
        return ast.Module([], [])


@lru_cache(maxsize=32)
def _places(file: str) -> tuple[_Place, ...]:
    """Every place in the file that stores something."""
    found: list[_Place] = []
    for node, function, in_loop in _walk(parsed(file), "<module>", False):
        for target, fills, reads in _targets(node):
            assert isinstance(node, ast.stmt | ast.expr)
            found.append(_Place(node, function, in_loop, target, reads, fills))
    return tuple(found)


def _targets(node: ast.AST) -> Iterator[tuple[ast.expr, bool, bool]]:
    """What a statement or call stores to, whether it puts something in there, and whether it reads it."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                for each in _unpacked(target):
                    yield each, False, _reads(value, each)
                    if isinstance(each, ast.Subscript):
                        yield each.value, True, False
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, False, _reads(value, target)
        case ast.NamedExpr(target=target, value=value):
            yield target, False, _reads(value, target)
        case ast.AugAssign(target=target):
            yield target, True, True
            yield target, False, True
        case ast.Call(func=ast.Attribute(value=owner, attr=method)):
            if method in _ADDERS:
                yield owner, True, False
                if isinstance(owner, ast.Call) and isinstance(owner.func, ast.Attribute):
                    yield owner.func.value, True, False  # d.setdefault(key, []).append(x)
            elif method.endswith("_") and not method.endswith("__"):
                yield owner, False, True


def _unpacked(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _unpacked(each)
    elif isinstance(target, ast.Starred):
        yield target.value
    else:
        yield target


def _reads(value: ast.expr, target: ast.expr) -> bool:
    text = ast.unparse(target)
    return any(
        isinstance(n, ast.expr) and ast.unparse(n) == text
        for n in ast.walk(value)
        if type(n) is type(target)
    )


def _walk(node: ast.AST, function: str, in_loop: bool) -> Iterator[tuple[ast.AST, str, bool]]:
    """Every node in the order of the source, with the function around it and whether a loop is."""
    for child in ast.iter_child_nodes(node):
        yield child, function, in_loop
        if isinstance(child, _FRAMES):
            yield from _walk(child, child.name, False)
        else:
            yield from _walk(
                child, function, in_loop or isinstance(child, ast.For | ast.While | ast.AsyncFor)
            )
