"""Decides what a statement stores, modifies in place, or adds to a container."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradscope.code import places, source
from gradscope.code.statements import Statement, found_in
from gradscope.model import Site

_IN_PLACE = re.compile(r"[a-z](\w*[a-z0-9])?_")
_NOT_IN_PLACE = frozenset(
    {"requires_grad_", "share_memory_", "retain_grad_", "rename_", "pin_memory_", "train_", "eval_"}
)
_WRITES_INTO_TENSORS = frozenset({"load_state_dict", "vector_to_parameters"})
_MODULES = frozenset({"torch", "nn", "F", "functional", "init"})

ADDS_ONE = frozenset({"append", "appendleft"})
"""Methods that add what they are given to a container, as one element."""

ADDS_IF_DROPPED = frozenset({"add", "update", "push"})
"""Methods that add to a container if their result is thrown away: of tensors, ``x.add(y)``."""

ADDS = ADDS_ONE | frozenset({"extend", "extendleft", "insert", "put", "put_nowait", "setdefault"})
"""Methods that add to a container, whatever becomes of their result."""


ADDS_TO_FIRST = frozenset(
    {"heappush", "heappushpop", "heapreplace", "insort", "insort_left", "insort_right", "setitem"}
)
"""Functions that put something into what they are given first."""


def is_in_place(method: str) -> bool:
    """Return whether torch's naming makes a method or function of this name in place."""
    return _IN_PLACE.fullmatch(method) is not None and method not in _NOT_IN_PLACE


def targets_of(statement: ast.AST) -> frozenset[str]:
    """Return the names and paths that a statement stores, as written."""
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor):
        targets = [statement.target]
    elif isinstance(statement, ast.With | ast.AsyncWith):
        targets = [item.optional_vars for item in statement.items if item.optional_vars is not None]
    else:
        return frozenset()
    return frozenset(ast.unparse(each) for target in targets for each in unpacked(target))


def unpacked(target: ast.expr) -> Iterator[ast.expr]:
    """Yield the single targets of an assignment to several."""
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from unpacked(part)
    elif isinstance(target, ast.Starred):
        yield from unpacked(target.value)
    else:
        yield target


def stores_in(region: ast.AST, name: str) -> list[ast.stmt]:
    """Return the statements in a region's own scope that store the name or what holds it."""
    return [s for s in source.statements_of(region) if stores(s, name)]


def stores(statement: ast.AST, name: str) -> bool:
    """Return whether a statement stores the name or what holds it."""
    wholes = targets_of(statement)
    return any(name == each or name.startswith((f"{each}.", f"{each}[")) for each in wholes)


def modified(node: ast.AST) -> list[ast.expr]:
    """Return what a node modifies: ``x`` of ``x += 1``, ``x[0] = 1`` and ``torch.relu_(x)``."""
    found: list[ast.expr] = []
    match node:
        case ast.AugAssign(target=target):
            found.append(target)
        case ast.Assign(targets=targets):
            found += [each for each in targets if isinstance(each, ast.Subscript)]
        case ast.Call(func=func, args=args, keywords=keywords):
            name = source.called_name(node)
            if isinstance(func, ast.Attribute) and is_in_place(name):
                found += args[:1] if _is_module(func.value) else [_first(func.value)]
            elif name in _WRITES_INTO_TENSORS:
                found.append(func.value if isinstance(func, ast.Attribute) else func)
            found += [each.value for each in keywords if each.arg == "out"]
            if any(each.arg == "inplace" and _is_true(each.value) for each in keywords):
                found += args[:1]
    return [_whole(each) for each in found]


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and bool(value.value)


def _is_module(owner: ast.expr) -> bool:
    """Return whether an expression is a module of torch's: ``torch``, ``torch.nn.init``."""
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    return isinstance(owner, ast.Name) and owner.id in _MODULES


def _first(target: ast.expr) -> ast.expr:
    """Return what a chain of operations in place begins with: ``self.mean.mul_(0.9).add_(x)``."""
    while isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
        target = target.func.value
    return target


def _whole(target: ast.expr) -> ast.expr:
    while isinstance(target, ast.Subscript):
        target = target.value
    return target


def in_place_statements(file: str) -> tuple[Statement, ...]:
    """Return all statements of a file that would modify a tensor in place."""
    return found_in(file, modified)


def changed_by(site: Site) -> Statement:
    """Return the statement at a line that looks as if it modified a tensor, else all of it."""
    outer: list[Statement] = []
    end = (0, 0)
    for each in in_place_statements(site.file):
        own = each.site
        is_there = own.line <= site.line <= own.end_line and own.function == site.function
        if is_there and (own.line, own.column) >= end:  # else it is within the one before
            outer.append(each)
            end = own.end_line, own.end_column
    if len(outer) == 1:
        return outer[0]
    whole = source.statement_at(site)
    if whole is None or hasattr(whole, "body"):
        return Statement(site, frozenset())
    return Statement(places.of_node(whole, site.file, site.function), frozenset())
