"""Fixes an operation in place that changes what a graph saved: out of place, or on another tensor than the one saved."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import torch

from gradscope.code import places, source
from gradscope.code.statements import Statement
from gradscope.fixing.shared_graph import _alone
from gradscope.model import Edit, Fix, Site
from gradscope.rules.base import place

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Pow: "**",
    ast.MatMult: "@",
}


def fix_for(change: Statement, made: Sequence[Site], computed: bool) -> Fix:
    """What an expert would do, with edits where they can be written down.

    Only a tensor that an operation has ``computed`` is replaced by another; a buffer or a table must stay the tensor that it is, as
    others may know it.
    """
    site = change.site
    name = change.target
    edits = _out_of_place(site) if computed else ()
    if edits:
        return Fix("clone", f"at {place(site)}, use the out-of-place form of the operation", edits)
    edits = _clone_where_saved(name, made) if name else ()
    if edits:
        saved = ", ".join(place(each) for each in made)
        return Fix(
            "clone",
            f"let {saved} use `{name}.clone()`, or change `{name}` after the backward call",
            edits,
        )
    where = f" at {place(made[0])}" if made else ""
    return Fix(
        "clone",
        f"save a clone(){where}, or at {place(site)} use the out-of-place form of the operation or change a clone()",
    )


def fix_for_hidden(change: Statement, made: Sequence[Site]) -> Fix | None:
    """The fix of a write through ``.data`` to a buffer or an activation: let its graph save a clone. None where that is not plain."""
    name = change.target.removesuffix(".data")
    edits = _clone_where_saved(name, made) if name else ()
    if not edits:
        return None
    saved = ", ".join(place(each) for each in made)
    return Fix(
        "clone",
        f"let {saved} use `{name}.clone()`, or write to `{name}.data` after the backward call",
        edits,
    )


def _out_of_place(site: Site) -> tuple[Edit, ...]:
    """``x += y`` as ``x = x + y`` and ``x.relu_()`` as ``x = x.relu()``, where ``x`` is a variable."""
    statement = source.statement_at(site)
    if (
        statement is None
        or statement.lineno != statement.end_lineno
        or not _alone(site.file, statement)
    ):
        return ()
    name, value = _value(statement)
    if name is None or not _is_known_here_only(name, statement, site):
        return ()
    line = source.line_of(site.file, statement.lineno)
    return (
        Edit(
            site.file, statement.lineno, f"{line[: len(line) - len(line.lstrip())]}{name} = {value}"
        ),
    )


def _value(statement: ast.stmt) -> tuple[str | None, str]:
    """The variable that a statement changes in place, and the expression that computes the same anew."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        operator = _OPERATORS.get(type(statement.op))
        operand = ast.unparse(statement.value)
        if not isinstance(
            statement.value, ast.Name | ast.Constant | ast.Call | ast.Attribute | ast.Subscript
        ):
            operand = f"({operand})"
        return (
            (statement.target.id, f"{statement.target.id} {operator} {operand}")
            if operator
            else (None, "")
        )
    call: ast.expr | None = None
    target = ""
    if isinstance(statement, ast.Expr):
        call = statement.value
    elif (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
    ):
        call, target = statement.value, statement.targets[0].id
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None, ""
    function = call.func
    if not isinstance(function.value, ast.Name) or not hasattr(
        torch.Tensor, function.attr.removesuffix("_")
    ):
        return None, ""
    if (
        not function.attr.endswith("_")
        or function.attr.endswith("__")
        or (target and target != function.value.id)
    ):
        return None, ""
    arguments = ", ".join(ast.unparse(each) for each in (*call.args, *call.keywords))
    return function.value.id, f"{function.value.id}.{function.attr[:-1]}({arguments})"


def _is_known_here_only(name: str, statement: ast.stmt, site: Site) -> bool:
    """Whether a variable was computed in this function and given to nobody else since, so that another tensor may take its place.

    An argument, or what a loop runs over, is known to the caller or the container too: they would not see the change.
    """
    before = [
        s for s in source.statements_of(source.function_around(site)) if s.lineno < statement.lineno
    ]
    stores = [i for i, s in enumerate(before) if name in source.targets_of(s)]
    if not stores:
        return False
    first = next((i for i in reversed(stores) if isinstance(before[i], ast.Assign)), -1)
    made = before[first]
    if (
        first < 0
        or not isinstance(made, ast.Assign)
        or not isinstance(made.value, ast.Call | ast.BinOp | ast.UnaryOp)
    ):
        return False
    if any(not isinstance(before[i], ast.Assign | ast.AugAssign) for i in stores):
        return False
    return not any(_gives_away(name, s) for s in before[first:])


def _gives_away(name: str, statement: ast.stmt) -> bool:
    """Whether a statement stores the very tensor somewhere, or puts it into something."""
    if any(
        isinstance(target, ast.Attribute | ast.Subscript)
        for target in getattr(statement, "targets", ())
    ):
        return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(statement))
    value = getattr(statement, "value", None)
    if isinstance(statement, ast.Assign) and isinstance(
        value, ast.Name | ast.Tuple | ast.List | ast.Dict
    ):
        return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(value))
    if isinstance(statement, ast.Expr) and isinstance(value, ast.Call):
        return any(
            isinstance(argument, ast.Name) and argument.id == name for argument in value.args
        )
    return False


def _clone_where_saved(name: str, made: Sequence[Site]) -> tuple[Edit, ...]:
    """Let the lines that saved a tensor use a clone of it, where they name it."""
    edits: dict[int, Edit] = {}
    for site in made:
        statement = source.statement_at(site)
        if (
            statement is None
            or statement.lineno != statement.end_lineno
            or not _alone(site.file, statement)
        ):
            return ()
        line = source.line_of(site.file, statement.lineno)
        value = getattr(statement, "value", None)
        if not isinstance(value, ast.expr) or isinstance(statement, ast.AugAssign):
            return ()
        reads = [
            n
            for n in ast.walk(value)
            if isinstance(n, ast.Name | ast.Attribute)
            and isinstance(n.ctx, ast.Load)
            and ast.unparse(n) == name
        ]
        if not reads:
            return ()
        for node in sorted(reads, key=lambda n: -n.col_offset):
            _, end = places.columns(node, site.file)
            line = f"{line[:end]}.clone(){line[end:]}"
        edits[statement.lineno] = Edit(site.file, statement.lineno, line)
    return tuple(edits.values())
