"""Reads in the source what a loss is computed from: the statements that lead to a backward call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from gradscope.code import changes, source
from gradscope.model import Site

_MOST_STATEMENTS = 200
_CONDITIONS = (ast.If, ast.Try, ast.For, ast.While)
_AS_TARGET = ("loss", "crit", "mse", "bce", "ce", "l1", "huber", "kl", "kl_div", "nll", "xent")
"""What a function whose second argument is a target is called, or a part of its name."""


@dataclass(slots=True)
class Slice:
    """The statements of one function that a loss is computed by, the last first.

    ``reads`` has them by the names and paths that they read; ``file`` is theirs.
    """

    file: str
    statements: list[ast.stmt] = field(default_factory=list)
    reads: dict[str, list[ast.AST]] = field(default_factory=dict)

    def takes_as_target(self, name: str) -> bool:
        """Return whether a loss function takes the name as its target, or a ratio divides by it."""
        reads = (each for node in self.reads.get(name, ()) for each in targets_in(node))
        return any(ast.unparse(node) == name for each in reads for node in source.reads_of(each))


def slice_of(site: Site) -> Slice:
    """Return what leads to the backward call at a site, within its function."""
    way = Slice(site.file)
    call, statement = source.call_at(site), source.statement_at(site)
    if call is None or statement is None:
        return way
    region = source.function_around(site)
    statements = sorted(source.statements_of(region), key=lambda each: each.lineno)
    roots: list[ast.expr] = [*call.args]
    if isinstance(call.func, ast.Attribute):
        roots.append(call.func.value)
    waiting = [(name, site.line) for root in roots for name in _read_by(way, root, statement)]
    known: set[tuple[str, int]] = set()
    while waiting and len(way.statements) < _MOST_STATEMENTS:
        name, line = waiting.pop(0)
        for store in _stores_before(way, statements, name, line):
            if (name, store.lineno) in known:
                continue
            known.add((name, store.lineno))
            if all(store is not each for each in way.statements):
                way.statements.append(store)
            waiting += [(each, store.lineno) for each in _read_by(way, _value(store), store)]
    way.statements.sort(key=lambda each: -each.lineno)
    return way


def _read_by(way: Slice, value: ast.AST, statement: ast.stmt) -> list[str]:
    """Book what an expression of a statement reads; return the names."""
    called = {id(call.func) for call in source.calls_in(value)}
    names = []
    for node in source.reads_of(value):
        name = ast.unparse(node)
        found = way.reads.setdefault(name, [])
        if all(statement is not each for each in found):
            found.append(statement)
        if id(node) not in called or isinstance(node, ast.Attribute):
            names.append(name)
    return names


def _stores_before(way: Slice, statements: list[ast.stmt], name: str, line: int) -> list[ast.stmt]:
    """Return what may have given a name its value at a line: the last store, and all before it
    that the store may have left in place.
    """
    found: list[ast.stmt] = []
    for each in reversed(statements):
        if each.lineno >= line:
            continue
        if _adds_to(each, name):
            found.append(each)
        elif changes.stores(each, name):
            found.append(each)
            if name in changes.targets_of(each) and _replaces(way, each, line):
                break
    return found


def _replaces(way: Slice, store: ast.stmt, line: int) -> bool:
    """Return whether nothing is left of what the name held before: the store was run, too."""
    if not isinstance(store, ast.Assign | ast.AnnAssign):
        return False
    around = source.enclosing(way.file, store.lineno)
    return all(not isinstance(s, _CONDITIONS) or source.spans(s, line) for s in around)


def _adds_to(statement: ast.stmt, name: str) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    return call.func.attr in changes.ADDS and ast.unparse(call.func.value) == name


def _value(statement: ast.stmt) -> ast.AST:
    """Return the part of a statement that is computed before it stores."""
    if isinstance(statement, ast.For | ast.AsyncFor):
        return statement.iter
    value = getattr(statement, "value", None)
    return value if isinstance(value, ast.AST) else ast.Pass()


def targets_in(statement: ast.AST) -> Iterator[ast.expr]:
    """Yield what a statement compares with: the targets of loss functions, divisors of ratios."""
    for node in ast.walk(statement):
        match node:
            case ast.Call(args=[_, second, *_]) if _computes_loss(node):
                yield second
            case ast.Call(keywords=given):
                yield from (k.value for k in given if k.arg in ("target", "targets", "labels"))
            case ast.BinOp(op=ast.Sub(), right=right) if _is_ratio(node, statement):
                yield right


def _computes_loss(call: ast.Call) -> bool:
    name = source.called_name(call).lower()
    parts = name.split("_")
    return any(word in (name if len(word) > 3 else parts) for word in _AS_TARGET)


def _is_ratio(difference: ast.BinOp, statement: ast.AST) -> bool:
    """Return whether a difference is raised: ``(new - old).exp()``, ``torch.exp(new - old)``."""
    calls = [call for call in source.calls_in(statement) if source.called_name(call) == "exp"]
    inside = [e for c in calls for e in (*c.args, getattr(c.func, "value", c))]
    return any(node is difference for each in inside for node in ast.walk(each))
