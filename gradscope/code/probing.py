"""Says what becomes of the result of an ``autograd.grad``: it is read, or trained through."""

from __future__ import annotations

import ast

from gradscope.code import changes, source
from gradscope.code.losses import Way
from gradscope.model import Site

_CUTS = frozenset({"detach", "item", "data", "tolist", "numpy"})
_MEASURES = frozenset({"norm", "pow", "square", "abs", "sum", "mean", "flatten", "vector_norm"})


def use_of(site: Site, way: Way) -> tuple[bool, bool]:
    """Return whether what the call at a site gives is a part of the loss, and whether it is only
    taken off parameters (``w - lr * g``) on the way there.
    """
    statement = source.statement_at(site)
    known = set(changes.targets_of(statement)) if statement is not None else set()
    enters = updates = False
    for each in sorted(way.statements, key=lambda one: one.lineno):
        if each.lineno <= site.line or not known & _taken(each):
            continue
        known |= changes.targets_of(each)
        if _is_update(each, known):
            updates = True
        else:
            enters = True
    return enters and not updates, updates


def _taken(statement: ast.stmt) -> set[str]:
    """Return the names that a statement reads with their graph."""
    cut: set[int] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute) and node.attr in _CUTS:
            cut |= {id(inner) for inner in ast.walk(node.value)}
        elif isinstance(node, ast.Call) and _detaches(node):
            cut |= {id(inner) for inner in ast.walk(node)}
    return {ast.unparse(node) for node in source.reads_of(statement) if id(node) not in cut}


def _detaches(call: ast.Call) -> bool:
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in _CUTS
    return is_method or source.called_name(call) == "float"


def _is_update(statement: ast.stmt, known: set[str]) -> bool:
    """Return whether the gradient is taken off something, times a rate."""
    for node in ast.walk(statement):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            reads = {ast.unparse(each) for each in source.reads_of(node.right)}
            measured = any(source.called_name(c) in _MEASURES for c in source.calls_in(statement))
            if not measured and (known & reads or _is_comprehension(statement)):
                return True
    return False


def _is_comprehension(statement: ast.stmt) -> bool:
    kinds = ast.ListComp | ast.DictComp | ast.GeneratorExp
    return any(isinstance(node, kinds) for node in ast.walk(statement))
