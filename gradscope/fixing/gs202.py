"""Writes down the fixes of GS202: an operation out of place, or a clone for the graph to save."""

from __future__ import annotations

import ast
from collections.abc import Container, Sequence

from gradscope.code import changes, source
from gradscope.code.statements import Statement
from gradscope.fixing.edits import checked, indent_of, line_alone, reads_followed_by
from gradscope.model import Edit, Fix, FixKind, Site
from gradscope.rules.base import place

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Pow: "**",
    ast.MatMult: "@",
}


def fix_for(
    change: Statement, made: Sequence[Site], methods: Container[str], *, computed: bool
) -> Fix:
    """Return what an expert would do, with edits where they can be written down.

    Only a tensor that an operation has ``computed`` is replaced by another; a buffer or a table
    must stay the tensor that it is, as other code may know it. ``methods`` are those that a tensor
    has.
    """
    site, name = change.site, change.target
    edits = _out_of_place(site, methods) if computed else ()
    if edits:
        return Fix(
            FixKind.CLONE, f"at {place(site)}, use the out-of-place form of the operation", edits
        )
    edits = _clone_where_saved(name, made)
    if edits:
        saved = ", ".join(place(each) for each in made)
        message = f"let {saved} use `{name}.clone()`, or change `{name}` after the backward call"
        return Fix(FixKind.CLONE, message, edits)
    where = f" at {place(made[0])}" if made else ""
    form = "use the out-of-place form of the operation or change a clone()"
    return Fix(FixKind.CLONE, f"save a clone(){where}, or at {place(site)} {form}")


def fix_for_hidden(change: Statement, made: Sequence[Site]) -> Fix | None:
    """Return the fix of a write through ``.data`` to a buffer or an activation: its graph saves a
    clone.

    None where the lines that saved it do not name it.
    """
    name = change.target.removesuffix(".data")
    edits = _clone_where_saved(name, made)
    if not edits:
        return None
    saved = ", ".join(place(each) for each in made)
    message = f"let {saved} use `{name}.clone()`, or write to `{name}.data` after the backward call"
    return Fix(FixKind.CLONE, message, edits)


def _out_of_place(site: Site, methods: Container[str]) -> tuple[Edit, ...]:
    """Write ``x += y`` as ``x = x + y``, ``x.relu_()`` as ``x = x.relu()``, for a variable."""
    statement = line_alone(site)
    name, value = _value(statement, methods)
    if statement is None or not name or not _is_known_here_only(name, statement, site):
        return ()
    indent = indent_of(site.file, statement.lineno)
    return checked(Edit(site.file, statement.lineno, f"{indent}{name} = {value}"))


def _value(statement: ast.stmt | None, methods: Container[str]) -> tuple[str, str]:
    """Return the variable that a statement modifies, and an expression that computes it anew."""
    call: ast.expr | None = None
    target = ""
    match statement:
        case ast.AugAssign(target=ast.Name(id=name), value=value):
            operator = _OPERATORS.get(type(statement.op), "")
            simple = ast.Name | ast.Constant | ast.Call | ast.Attribute | ast.Subscript
            operand = ast.unparse(value)
            operand = operand if isinstance(value, simple) else f"({operand})"
            return (name, f"{name} {operator} {operand}") if operator else ("", "")
        case ast.Expr(value=call):
            pass
        case ast.Assign(targets=[ast.Name(id=target)], value=call):
            pass
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)):
            method, ending = method[:-1], method[-1:]
            if ending != "_" or method not in methods or target not in ("", name):
                return "", ""
            arguments = ", ".join(ast.unparse(each) for each in (*call.args, *call.keywords))
            return name, f"{name}.{method}({arguments})"
    return "", ""


def _is_known_here_only(name: str, statement: ast.stmt, site: Site) -> bool:
    """Return whether a variable was computed in this function and stored nowhere else, so that
    another tensor may take its place.

    An argument, or what a loop runs over, is known to the caller or the container too: they would
    not see the change.
    """
    statements = source.statements_of(source.function_around(site))
    before = [s for s in statements if s.lineno < statement.lineno]
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


def _gives_away(name: str, statement: ast.stmt) -> bool:
    """Return whether a statement stores the very tensor somewhere, or puts it into something."""
    targets = getattr(statement, "targets", ())
    value = getattr(statement, "value", None)
    if any(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
        return _is_named(name, statement)
    if isinstance(statement, ast.Assign):
        is_display = isinstance(statement.value, ast.Name | ast.Tuple | ast.List | ast.Dict)
        return is_display and _is_named(name, statement.value)
    if isinstance(statement, ast.Expr) and isinstance(value, ast.Call):
        return any(isinstance(each, ast.Name) and each.id == name for each in value.args)
    return False


def _is_named(name: str, region: ast.AST) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(region))


def _clone_where_saved(name: str, made: Sequence[Site]) -> tuple[Edit, ...]:
    """Let the lines that saved a tensor use a clone of it, where they name it."""
    edits: dict[int, Edit] = {}
    for site in made if name else ():
        statement = line_alone(site)
        value = getattr(statement, "value", None)
        if not isinstance(value, ast.expr) or isinstance(statement, ast.AugAssign):
            return ()
        line = reads_followed_by(".clone()", name, value, site)
        if not line:
            return ()
        edits[site.line] = Edit(site.file, site.line, line)
    return checked(*edits.values())
