"""Changes a hook that keeps the tensor that it is registered on."""

from __future__ import annotations

import ast

import libcst as cst

from gradscope.code import changes, source
from gradscope.fixing import spots
from gradscope.fixing.drafts import Draft
from gradscope.fixing.edits import CannotBeWrittenError
from gradscope.fixing.values import statement
from gradscope.model import Edit, Site


def detached_in(at: Site) -> tuple[Edit, ...]:
    """Have a hook take the tensor detached, as an argument's default: ``lambda g, z=z.detach():``.

    The place is that of ``z.register_hook(hook)``.
    """
    draft, found = Draft(at.file), statement(at)
    registered = [
        call
        for call in spots.own_nodes(found)
        if isinstance(call, ast.Call) and source.called_name(call) == "register_hook"
    ]
    if len(registered) != 1 or len(registered[0].args) != 1:
        raise CannotBeWrittenError
    call = registered[0]
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if not isinstance(owner, ast.Name):
        raise CannotBeWrittenError
    hook = _hook(call.args[0], owner.id, at)
    if hook.args.vararg or hook.args.kwonlyargs or owner.id in spots.arguments_of(hook):
        raise CannotBeWrittenError
    if owner.id not in spots.read_names(hook):
        raise CannotBeWrittenError
    default = cst.parse_expression(f"{owner.id}.detach()")
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    taken = cst.Param(cst.Name(owner.id), default=default, equal=tight)

    def make(updated: cst.FunctionDef | cst.Lambda) -> cst.FunctionDef | cst.Lambda:
        params = updated.params.with_changes(params=[*updated.params.params, taken])
        return updated.with_changes(params=params)

    draft.change(hook, make)
    return draft.edits()


def _hook(given: ast.expr, owner: str, at: Site) -> ast.Lambda | ast.FunctionDef:
    """Return the function that is registered, if it is defined where the tensor is known."""
    if isinstance(given, ast.Lambda):
        return given
    around = source.function_around(at)
    found = [
        each
        for each in source.statements_of(around)
        if isinstance(each, ast.FunctionDef)
        and isinstance(given, ast.Name)
        and each.name == given.id
    ]
    if len(found) != 1:
        raise CannotBeWrittenError
    stores = changes.stores_in(around, owner)
    if any(found[0].lineno < each.lineno for each in stores):
        raise CannotBeWrittenError
    return found[0]
