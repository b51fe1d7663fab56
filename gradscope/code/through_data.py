"""Finds the lines of a file that may write to a tensor through ``.data``, and the names of these tensors."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from gradscope.code import source
from gradscope.code.statements import modified_names, with_functions


@dataclass(frozen=True, slots=True)
class ThroughData:
    """The tensors that a line uses the ``.data`` of, by name, and whether it looks as if it wrote to one.

    The name is empty where it cannot be told before the line runs.
    """

    names: frozenset[str]
    writes: bool


@lru_cache(maxsize=256)
def data_lines(file: str) -> dict[int, ThroughData]:
    """The lines of statements that may write to a tensor through ``.data``; whether anything is written shows when they run.

    A variable that was got by way of ``.data`` stands for the tensor as well.
    """
    if not any(".data" in line for line in linecache.getlines(file)):
        return {}
    aliases: dict[str, set[str]] = {}
    loops: dict[int, set[str]] = {}
    statements = [
        (n, function)
        for n, function in with_functions(source.tree(file))
        if isinstance(n, ast.stmt)
    ]
    statements.sort(key=lambda entry: entry[0].lineno)
    for node, function in statements:
        if isinstance(node, ast.For):
            loops.setdefault(node.lineno, set()).update(_names_stored([node.target]))
        value = node.iter if isinstance(node, ast.For) else getattr(node, "value", None)
        known = aliases.setdefault(function, set())
        if (
            isinstance(node, ast.For | ast.Assign)
            and value is not None
            and _with_data(value, known)
        ):
            known |= _names_stored([node.target] if isinstance(node, ast.For) else node.targets)
    found: dict[int, ThroughData] = {}
    for node, function in statements:
        if hasattr(node, "body") or isinstance(node, ast.Match) or not _may_write(node):
            continue
        of_loop = loops.get(node.lineno, set())  # for p in net.parameters(): p.data -= 0.1
        names = {
            "" if _root(name) in of_loop else name for name in _with_data(node, aliases[function])
        }
        writes = any(modified_names(n) or _is_data_stored(n) for n in ast.walk(node))
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1) if names else ():
            before = found.get(line, ThroughData(frozenset(), False))
            found[line] = ThroughData(before.names | names, before.writes or writes)
    return found


def _is_data_stored(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute) and node.attr == "data" and isinstance(node.ctx, ast.Store)
    )


def _names_stored(targets: Sequence[ast.expr]) -> set[str]:
    return {
        n.id
        for target in targets
        for n in ast.walk(target)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def _root(path: str) -> str:
    return re.split(r"\W", path, maxsplit=1)[0]


def _with_data(node: ast.AST, aliases: set[str]) -> frozenset[str]:
    """What the code takes ``.data`` of, gradients left out, and the names in it that stand for such a thing."""
    data = {
        ast.unparse(n.value)
        for n in ast.walk(node)
        if isinstance(n, ast.Attribute) and n.attr == "data"
    }
    known = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in aliases}
    return frozenset(name for name in data | known if not name.endswith(".grad"))


def _may_write(statement: ast.stmt) -> bool:
    targets = getattr(statement, "targets", ())
    stores = isinstance(statement, ast.AugAssign) or any(
        isinstance(t, ast.Attribute | ast.Subscript) for t in targets
    )
    return stores or any(isinstance(n, ast.Call) for n in ast.walk(statement))
