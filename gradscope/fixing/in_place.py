"""Has an operation make a new tensor instead of changing one in place, or change a copy."""

from __future__ import annotations

import ast
from collections.abc import Container
from typing import Any

import libcst as cst

from gradscope.code import changes, source
from gradscope.fixing.drafts import Draft
from gradscope.fixing.edits import CannotBeWrittenError, written
from gradscope.fixing.values import statement
from gradscope.model import Edit, Site

_OPERATORS: dict[type[cst.BaseAugOp], cst.BaseBinaryOp] = {
    cst.AddAssign: cst.Add(),
    cst.SubtractAssign: cst.Subtract(),
    cst.MultiplyAssign: cst.Multiply(),
    cst.DivideAssign: cst.Divide(),
    cst.PowerAssign: cst.Power(),
    cst.MatrixMultiplyAssign: cst.MatrixMultiply(),
}
_TIGHT = cst.Name | cst.Attribute | cst.Call | cst.Subscript | cst.Integer | cst.Float


@written
def out_of_place(at: Site, methods: Container[str]) -> tuple[Edit, ...]:
    """Write ``x += y`` as ``x = x + y`` and ``x.relu_()`` as ``x = x.relu()``, for a variable that
    nothing else knows.
    """
    draft, found = Draft(at.file), statement(at)
    name = _modified(found)
    if not name or not is_known_here_only(name, found, at):
        raise CannotBeWrittenError
    match found:
        case ast.AugAssign():
            draft.change(found, _as_sum)
        case ast.Expr(value=ast.Call() as call):
            _rename(draft, call, methods)
            draft.change(found, lambda updated: _assigned(name, updated.value))
        case ast.Assign(targets=[ast.Name(id=target)], value=ast.Call() as call):
            _rename(draft, call, methods)
            if target != name:
                draft.change(found, lambda updated: _also(name, updated))
        case _:
            raise CannotBeWrittenError
    return draft.edits()


def _modified(found: ast.stmt) -> str:
    """Return the variable that a statement changes in place."""
    if isinstance(found, ast.AugAssign):
        return found.target.id if isinstance(found.target, ast.Name) else ""
    call = getattr(found, "value", None)
    owner = changes.modified(call) if isinstance(call, ast.Call) else None
    return owner.id if isinstance(owner, ast.Name) else ""


def _as_sum(updated: cst.AugAssign) -> cst.Assign:
    """Return ``x = x + y`` for ``x += y``."""
    operator = _OPERATORS.get(type(updated.operator))
    if operator is None:
        raise CannotBeWrittenError
    value = updated.value
    if not isinstance(value, _TIGHT) and not value.lpar:
        value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    target = updated.target
    made = cst.BinaryOperation(cst.ensure_type(target.deep_clone(), cst.Name), operator, value)
    return cst.Assign(
        [cst.AssignTarget(cst.ensure_type(target, cst.Name))], made, semicolon=updated.semicolon
    )


def _rename(draft: Draft, call: ast.Call, methods: Container[str]) -> None:
    """Call the forms that make new tensors, all along a chain ``x.mul_(2).add_(1)``."""
    at: ast.expr = call
    is_first = True
    while isinstance(at, ast.Call) and isinstance(at.func, ast.Attribute):
        method = at.func.attr
        if method.endswith("_") and method[:-1] in methods:
            draft.change(at.func, _renamed(method[:-1]))
        elif is_first or method.endswith("_"):
            raise CannotBeWrittenError
        if not isinstance(at.func.value, ast.Call):
            break
        at, is_first = at.func.value, False


def _renamed(method: str) -> Any:
    return lambda updated: updated.with_changes(attr=cst.Name(method))


def _assigned(name: str, value: cst.BaseExpression) -> cst.Assign:
    return cst.Assign([cst.AssignTarget(cst.Name(name))], value)


def _also(name: str, updated: cst.Assign) -> cst.Assign:
    """Return ``y = x = …``, so that the variable itself is the new tensor as well."""
    return updated.with_changes(targets=[*updated.targets, cst.AssignTarget(cst.Name(name))])


def is_known_here_only(name: str, found: ast.stmt, at: Site) -> bool:
    """Return whether a variable was computed in this function and stored nowhere else, so that
    another tensor may take its place.

    An argument, or what a loop runs over, is known to the caller or the container too: they would
    not see the change.
    """
    statements = source.statements_of(source.function_around(at))
    before = [s for s in statements if s.lineno < found.lineno]
    stores = [i for i, s in enumerate(before) if name in changes.targets_of(s)]
    first = next((i for i in reversed(stores) if isinstance(before[i], ast.Assign)), -1)
    made = before[first] if first >= 0 else None
    if not isinstance(made, ast.Assign):
        return False
    if not isinstance(made.value, ast.Call | ast.BinOp | ast.UnaryOp):
        return False
    if any(not isinstance(before[i], ast.Assign | ast.AugAssign) for i in stores):
        return False
    return not any(_gives_away(name, s) for s in before[first:])


def _gives_away(name: str, each: ast.stmt) -> bool:
    """Return whether a statement stores the very tensor somewhere, or puts it into something."""
    targets = getattr(each, "targets", ())
    value = getattr(each, "value", None)
    if any(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
        return _is_named(name, each)
    if isinstance(each, ast.Assign):
        is_display = isinstance(each.value, ast.Name | ast.Tuple | ast.List | ast.Dict)
        return is_display and _is_named(name, each.value)
    if isinstance(each, ast.Expr) and isinstance(value, ast.Call):
        return any(isinstance(arg, ast.Name) and arg.id == name for arg in value.args)
    return False


def _is_named(name: str, region: ast.AST) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(region))
