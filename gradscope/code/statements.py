"""Finds the statement that built a node, and which statements can have run between two places."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradscope.code import places, source
from gradscope.model import Site

_OPERATORS = {"mult": "mul", "matmult": "matmul", "mod": "remainder"}
"""Of those that Python's syntax tree does not name as torch does."""
_ALSO_NAMED = dict.fromkeys(("mm", "bmm", "mv", "dot"), "matmul") | {
    "rsub": "sub",
    "addmm": "linear",
}


@dataclass(frozen=True, slots=True)
class Statement:
    """A piece of source that is a candidate: its place, and the dotted names that it changes in
    place or uses.

    ``target`` is the one that it certainly changes, if that is plain: ``x`` of ``x += 1``, ``x[0] =
    1`` and ``x.relu_()``.
    """

    site: Site
    names: frozenset[str]
    target: str = ""


def found_in(file: str, concerned: Callable[[ast.AST], Sequence[ast.AST]]) -> tuple[Statement, ...]:
    """Return the pieces of a file that concern something, which the function returns."""
    found = []
    for node, function, _ in source.parsed(file).nodes:
        if isinstance(node, ast.stmt | ast.expr) and (parts := concerned(node)):
            names = frozenset(name for part in parts for name in source.dotted_names(part))
            target = ast.unparse(parts[0]) if len(parts) == 1 and _is_plain(parts[0]) else ""
            found.append(Statement(places.of_node(node, file, function), names, target))
    return tuple(found)


def _is_plain(part: ast.AST) -> bool:
    """Return whether an expression is a variable or a chain of attributes of one."""
    return isinstance(part, ast.Name | ast.Attribute) and not any(source.calls_in(part))


def operations(file: str, node_name: str) -> tuple[Statement, ...]:
    """Return all expressions that build such a node: ``MulBackward0`` by ``a * b``,
    ``a.mul(b)``.
    """
    wanted = _operations_of(node_name)
    return found_in(file, lambda node: [node] if _operation(node) in wanted else [])


def _operation(node: ast.AST) -> str | None:
    """Return what an operator or a call computes, by torch's name."""
    if isinstance(node, ast.BinOp | ast.AugAssign):
        operator = type(node.op).__name__.lower()
        return _OPERATORS.get(operator, operator)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return "neg"
    return source.called_name(node) if isinstance(node, ast.Call) else None


def _operations_of(node_name: str) -> set[str | None]:
    """Return how source spells what a node of this name does: ``MulBackward0`` is ``mul``."""
    operation = re.sub(r"Backward\d*$", "", node_name)
    operation = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", operation).lower()
    return {operation, _ALSO_NAMED.get(operation, operation)}


def names_at(site: Site) -> frozenset[str]:
    """Return the dotted names that the simple statement at a place reads or assigns."""
    statement = source.statement_at(site)
    if statement is None or hasattr(statement, "body"):
        return frozenset()
    return source.dotted_names(statement)


def between(
    statements: tuple[Statement, ...], first: Site | None, last: Site | None
) -> tuple[Statement, ...]:
    """Return those that can have run after ``first`` and before ``last``.

    Where both lie in one function, those of that function in between: down the lines, or round the
    loop that holds both when ``last`` is above. Statements of other functions may have run at any
    time and stay.
    """
    if first is None or last is None or _holder(first) != _holder(last):
        return statements
    own = _holder(first)
    around = source.loops_around(first.file, first.line)
    loop = next((each for each in around if source.spans(each, last.line)), None)
    down = range(first.line, last.line + 1)
    lines = (s.site.line for s in statements if s.site.function == first.function)
    is_certain = loop is None or any(line in down for line in lines)

    def possible(site: Site) -> bool:
        if _holder(site) != own:
            return True
        if first.line <= last.line:
            return site.line in down or not is_certain
        is_between = last.line < site.line < first.line
        return loop is None or (source.spans(loop, site.line) and not is_between)

    return tuple(s for s in statements if possible(s.site))


def _holder(site: Site) -> tuple[str, str]:
    return site.file, site.function
