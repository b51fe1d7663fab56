"""Decides what a statement stores, modifies in place, or adds to a container."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradscope.code import places, source
from gradscope.code.names import is_part
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
    return any(name == target or is_part(name, target) for target in targets_of(statement))


def modified_names(node: ast.AST) -> frozenset[str] | None:
    """Return the dotted names of what a node modifies in place; None if it modifies nothing."""
    changed: list[ast.expr] = []
    if isinstance(node, ast.AugAssign):
        changed.append(node.target)
    elif isinstance(node, ast.Assign):
        changed += [t for t in node.targets if isinstance(t, ast.Subscript)]
    elif isinstance(node, ast.Call):
        name = source.called_name(node)
        if isinstance(node.func, ast.Attribute) and is_in_place(name):
            changed += [node.func.value, *node.args[:1]]
        elif name in _WRITES_INTO_TENSORS:
            changed.append(node.func.value if isinstance(node.func, ast.Attribute) else node.func)
        for keyword in node.keywords:
            if keyword.arg == "out":
                changed.append(keyword.value)
            elif keyword.arg == "inplace" and _is_true(keyword.value):
                changed += node.args[:1]
    if not changed:
        return None
    return frozenset(name for each in changed for name in source.dotted_names(each))


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and bool(value.value)


def modified(node: ast.AST) -> ast.expr | None:
    """Return what is modified: ``x`` of ``x += 1``, ``x[0] = 1`` and ``torch.relu_(x)``."""
    target: ast.expr | None = None
    if isinstance(node, ast.AugAssign):
        target = node.target
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        target = node.func.value
        while (
            isinstance(target, ast.Call)
            and isinstance(target.func, ast.Attribute)
            and source.called_name(target).endswith("_")
        ):
            target = target.func.value  # self.mean.mul_(0.9).add_(x)
        first = target
        while isinstance(first, ast.Attribute):
            first = first.value
        if isinstance(first, ast.Name) and first.id in _MODULES:
            target = node.args[0] if node.args else None  # torch.relu_(x), nn.init.zeros_(x)
    while isinstance(target, ast.Subscript):
        target = target.value
    return target


def in_place_statements(file: str) -> tuple[Statement, ...]:
    """Return all statements of a file that would modify a tensor in place."""
    return found_in(file, modified_names, _target)


def _target(node: ast.AST) -> str:
    target = modified(node)
    has_call = isinstance(target, ast.Attribute) and any(source.calls_in(target))
    return (
        ast.unparse(target) if isinstance(target, ast.Name | ast.Attribute) and not has_call else ""
    )


def changed_by(site: Site) -> Statement:
    """Return the statement at a line that looks as if it modified a tensor, else all of it."""
    found = [
        s
        for s in in_place_statements(site.file)
        if s.site.line <= site.line <= s.site.end_line and s.site.function == site.function
    ]
    outer = [s for s in found if not any(_is_within(s.site, o.site) for o in found)]
    if len(outer) == 1:
        return outer[0]
    around = [
        node
        for node in ast.walk(source.tree(site.file))
        if isinstance(node, ast.stmt)
        and source.spans(node, site.line)
        and not hasattr(node, "body")
    ]
    where = places.of_node(around[-1], site.file, site.function) if around else site
    return Statement(where, frozenset())


def _is_within(site: Site, other: Site) -> bool:
    start, end = (site.line, site.column), (site.end_line, site.end_column)
    return (
        site != other
        and (other.line, other.column) <= start
        and end <= (other.end_line, other.end_column)
    )
