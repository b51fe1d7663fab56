"""Changes one thing in a script's source, in the place where it stands, and nothing else."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

METHODS = ("detach", "item", "clone", "detach_")
"""Calls without arguments that are dropped with their dot: ``x.detach()`` becomes ``x``."""
RETAIN = ("retain_graph", "create_graph")
WITHOUT_GRADIENTS = ("no_grad", "inference_mode")


@dataclass(frozen=True)
class Mutant:
    """A script with one change; ``kind`` says which, ``line`` where."""

    kind: str
    line: int
    text: str


@dataclass(frozen=True)
class _Change:
    kind: str
    line: int
    start: int
    end: int
    replacement: str


def mutants(text: str) -> list[Mutant]:
    """Return each change that there is of a script, in the order of the lines."""
    source = text.encode()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in ast.walk(ast.parse(text)):
        for change in _changes(node, source, lambda line, column: starts[line - 1] + column):
            changed = source[: change.start] + change.replacement.encode() + source[change.end :]
            if _is_python(changed):
                found.append((change.start, Mutant(change.kind, change.line, changed.decode())))
    return [mutant for _, mutant in sorted(found, key=lambda one: (one[0], one[1].kind))]


def _is_python(source: bytes) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


Offset = Callable[[int, int], int]


def _changes(node: ast.AST, source: bytes, offset: Offset) -> Iterator[_Change]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from _of_method(node, node.func, offset)
        yield from _of_backward(node, node.func, source, offset)
    elif isinstance(node, ast.Attribute) and node.attr == "data":
        if isinstance(node.ctx, ast.Load):
            yield _cut("data", node, node.value, offset)
    elif isinstance(node, ast.With | ast.AsyncWith):
        for item in node.items:
            yield from _of_mode(item.context_expr, offset)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for decorator in node.decorator_list:
            yield from _of_mode(decorator, offset)
    elif isinstance(node, ast.Expr):
        yield from _of_statement(node, offset)


def _of_method(node: ast.Call, method: ast.Attribute, offset: Offset) -> Iterator[_Change]:
    """``x.detach()`` becomes ``x``."""
    if method.attr in METHODS and not node.args and not node.keywords:
        yield _cut(method.attr, node, method.value, offset)


def _cut(kind: str, node: ast.expr, kept: ast.expr, offset: Offset) -> _Change:
    start, end = _end(kept, offset), _end(node, offset)
    return _Change(kind, node.end_lineno or node.lineno, start, end, "")


def _of_backward(
    node: ast.Call, method: ast.Attribute, source: bytes, offset: Offset
) -> Iterator[_Change]:
    """``backward(retain_graph=True)`` becomes ``backward(retain_graph=False)``."""
    if method.attr not in ("backward", "grad"):
        return
    for keyword in node.keywords:
        value = keyword.value
        if keyword.arg in RETAIN and isinstance(value, ast.Constant) and value.value is True:
            start = offset(value.lineno, value.col_offset)
            yield _Change(str(keyword.arg), value.lineno, start, _end(value, offset), "False")
    if method.attr == "backward" and not node.args and not node.keywords:
        end = _end(node, offset)
        # the same graph once more, so that only the second call is at fault
        again = source[offset(node.lineno, node.col_offset) : end].decode()
        yield _Change("backward twice", node.lineno, end, end, f"; {again}")


def _of_mode(call: ast.expr, offset: Offset) -> Iterator[_Change]:
    """``torch.no_grad()`` becomes ``torch.enable_grad()``."""
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        name, end = call.func.attr, _end(call.func, offset)
        if name in WITHOUT_GRADIENTS and not call.args:
            yield _Change("no_grad", call.lineno, end - len(name), end, "enable_grad")


def _of_statement(node: ast.Expr, offset: Offset) -> Iterator[_Change]:
    """``optimizer.zero_grad()`` becomes ``pass``."""
    call = node.value
    method = call.func if isinstance(call, ast.Call) else None
    if isinstance(method, ast.Attribute) and method.attr == "zero_grad":
        start = offset(node.lineno, node.col_offset)
        yield _Change("zero_grad", node.lineno, start, _end(node, offset), "pass")


def _end(node: ast.expr | ast.stmt, offset: Offset) -> int:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return offset(node.end_lineno, node.end_col_offset)
