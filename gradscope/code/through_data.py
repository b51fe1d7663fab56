"""Finds the lines of a file that may write to a tensor through ``.data``, and the names used."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from gradscope.code import changes, source
from gradscope.code.source import SourceFile


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


@lru_cache(maxsize=256)
def _data_lines(file: SourceFile) -> dict[int, ThroughData]:
    if not any(".data" in line for line in file.lines):
        return {}
    aliases: dict[str, set[str]] = defaultdict(set)  # names that stand for a ``.data``, by function
    stored: dict[int, set[str]] = defaultdict(set)  # for p in net.parameters(): p.data -= 0.1
    found: dict[int, ThroughData] = {}
    for node, function, _ in file.nodes:
        known = aliases[function]
        match node:
            case ast.For(target=target, iter=value):
                stored[node.lineno] |= _names_stored([target])
                known |= _names_stored([target]) if _with_data(value, known) else set()
            case ast.Assign(targets=targets, value=value) if _with_data(value, known):
                known |= _names_stored(targets)
        if not isinstance(node, ast.stmt) or hasattr(node, "body"):
            continue
        writes = any(changes.modified(n) or _stores_data(n) for n in ast.walk(node))
        if not writes and not any(source.calls_in(node)):
            continue
        before_it = stored[node.lineno]
        used = _with_data(node, known)
        names = {"" if re.split(r"\W", name)[0] in before_it else name for name in used}
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1 if names else 0):
            before = found.get(line, ThroughData(frozenset(), False))
            found[line] = ThroughData(before.names | names, before.writes or writes)
    return found


def _stores_data(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and (node.attr, type(node.ctx)) == ("data", ast.Store)


def _names_stored(targets: Iterable[ast.expr]) -> set[str]:
    nodes = (node for target in targets for node in ast.walk(target))
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _with_data(node: ast.AST, aliases: set[str]) -> frozenset[str]:
    """Return what the code takes ``.data`` of, and the aliases in it, without gradients."""
    nodes = [*ast.walk(node)]
    owners = (n.value for n in nodes if isinstance(n, ast.Attribute) and n.attr == "data")
    known = (n.id for n in nodes if isinstance(n, ast.Name) and n.id in aliases)
    names = (*map(ast.unparse, owners), *known)
    return frozenset(name for name in names if not name.endswith(".grad"))
