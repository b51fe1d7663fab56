"""Finds the lines of a file that may write to a tensor through ``.data``, and the names used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from gradscope.code import changes, source
from gradscope.code.source import Source


@dataclass(frozen=True, slots=True)
class ThroughData:
    """The names of the tensors whose ``.data`` a line uses, and whether the line seems to write to
    one.

    A name is empty where it is not known before the line runs.
    """

    names: frozenset[str]
    writes: bool


def data_lines(file: str) -> dict[int, ThroughData]:
    """Return the lines of statements that may write to a tensor through ``.data``; running them
    shows what is written.

    A variable that was assigned from a ``.data`` stands for the tensor as well.
    """
    return _data_lines(source.parsed(file))


def writes_data(file: str) -> bool:
    """Return whether the file modifies tensors through ``.data``, unseen by their versions."""
    return any(
        isinstance(node, ast.AugAssign | ast.Call)
        and changes.modified_names(node) is not None
        and _is_data(changes.modified(node))
        for node, _, _ in source.parsed(file).nodes
    )


@lru_cache(maxsize=256)
def _data_lines(file: Source) -> dict[int, ThroughData]:
    if not any(".data" in line for line in file.lines):
        return {}
    statements = [(n, function) for n, function, _ in file.nodes if isinstance(n, ast.stmt)]
    statements.sort(key=lambda entry: entry[0].lineno)
    aliases, loops = _aliases(statements)
    found: dict[int, ThroughData] = {}
    for node, function in statements:
        if hasattr(node, "body") or isinstance(node, ast.Match) or not _may_write(node):
            continue
        of_loop = loops.get(node.lineno, set())  # for p in net.parameters(): p.data -= 0.1
        used = _with_data(node, aliases[function])
        names = {"" if re.split(r"\W", name)[0] in of_loop else name for name in used}
        if names:
            writes = any(
                changes.modified_names(n) or _is_data(n, ast.Store) for n in ast.walk(node)
            )
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                before = found.get(line, ThroughData(frozenset(), False))
                found[line] = ThroughData(before.names | names, before.writes or writes)
    return found


def _aliases(
    statements: list[tuple[ast.stmt, str]],
) -> tuple[dict[str, set[str]], dict[int, set[str]]]:
    """Return the names that stand for a ``.data``, by function, and loop variables, by line."""
    aliases: dict[str, set[str]] = {}
    loops: dict[int, set[str]] = {}
    for node, function in statements:
        known = aliases.setdefault(function, set())
        if isinstance(node, ast.For):
            loops.setdefault(node.lineno, set()).update(_names_stored([node.target]))
            value, targets = node.iter, [node.target]
        elif isinstance(node, ast.Assign):
            value, targets = node.value, node.targets
        else:
            continue
        if _with_data(value, known):
            known |= _names_stored(targets)
    return aliases, loops


def _is_data(node: ast.AST | None, how: type[ast.expr_context] = ast.expr_context) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "data" and isinstance(node.ctx, how)


def _names_stored(targets: Iterable[ast.expr]) -> set[str]:
    return {
        n.id
        for target in targets
        for n in ast.walk(target)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def _with_data(node: ast.AST, aliases: set[str]) -> frozenset[str]:
    """Return what the code takes ``.data`` of, and the aliases in it, without gradients."""
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
    return stores or any(source.calls_in(statement))
