"""Has a tensor handed from ``forward`` to ``backward`` by ``save_for_backward``."""

from __future__ import annotations

import ast

import libcst as cst

from gradscope.code import source
from gradscope.fixing import spots
from gradscope.fixing.drafts import Draft
from gradscope.fixing.edits import CannotBeWrittenError
from gradscope.fixing.moves import put_at_head
from gradscope.fixing.values import statement
from gradscope.model import Edit, Site

_SAVED = "saved_tensors"


def saved_for_backward(store: Site) -> tuple[Edit, ...]:
    """Write ``ctx.out = out`` as ``ctx.save_for_backward(out)``, and what ``backward`` reads of it.

    What is saved already comes first, and is unpacked first.
    """
    draft, found = Draft(store.file), statement(store)
    match found:
        case ast.Assign(
            targets=[ast.Attribute(value=ast.Name(id=ctx), attr=name)], value=ast.Name() as value
        ):
            backward = _backward_of(store)
        case _:
            raise CannotBeWrittenError
    reads = _reads(backward, name)
    own = f"{_first(backward)}.{_SAVED}"
    unpacked = _unpacked(backward, own)
    saves = _saves(source.function_around(store), ctx)
    if not reads or (saves is None) != (unpacked is None):
        raise CannotBeWrittenError
    local = _free_name(value.id, backward)
    for read in reads:
        draft.change(read, lambda updated: _named(local, updated))
    if saves is None or unpacked is None:
        draft.change(found, lambda updated: _saving(ctx, updated.value))
        put_at_head(draft, backward.body, [f"({local},) = {own}"])
    else:
        new = draft.file.expression(value)
        draft.change(saves, lambda updated: _with_argument(updated, new))
        draft.change(unpacked, lambda updated: _with_element(updated, local))
        draft.remove(found)
    return draft.edits()


def _first(function: ast.FunctionDef) -> str:
    given = [*function.args.posonlyargs, *function.args.args]
    if not given:
        raise CannotBeWrittenError
    return given[0].arg


def _backward_of(store: Site) -> ast.FunctionDef:
    """Return the ``backward`` of the class around a place."""
    around = source.enclosing(store.file, store.line)
    for owner in reversed(around):
        for each in owner.body if isinstance(owner, ast.ClassDef) else ():
            if isinstance(each, ast.FunctionDef) and each.name == "backward":
                return each
    raise CannotBeWrittenError


def _reads(backward: ast.FunctionDef, name: str) -> list[ast.Attribute]:
    wanted = f"{_first(backward)}.{name}"
    return [
        node
        for node in ast.walk(backward)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == wanted
    ]


def _free_name(name: str, backward: ast.FunctionDef) -> str:
    """Return a name that nothing else in ``backward`` has."""
    used = {node.id for node in ast.walk(backward) if isinstance(node, ast.Name)}
    return f"{name}_saved" if name in used | spots.arguments_of(backward) else name


def _saves(forward: ast.AST, ctx: str) -> ast.Call | None:
    """Return the call that saves tensors already."""
    calls = (node for node in ast.walk(forward) if isinstance(node, ast.Call))
    return next((c for c in calls if ast.unparse(c.func) == f"{ctx}.save_for_backward"), None)


def _unpacked(backward: ast.FunctionDef, own: str) -> ast.Tuple | None:
    """Return the tuple that what is saved is unpacked to; None where nothing reads it."""
    for each in ast.walk(backward):
        if isinstance(each, ast.Assign) and ast.unparse(each.value) == own:
            target = each.targets[0]
            if isinstance(target, ast.Tuple) and len(each.targets) == 1:
                return target
    if own in {ast.unparse(node) for node in ast.walk(backward) if isinstance(node, ast.Attribute)}:
        raise CannotBeWrittenError
    return None


def _named(local: str, updated: cst.Attribute) -> cst.Name:
    return cst.Name(local, lpar=updated.lpar, rpar=updated.rpar)


def _saving(ctx: str, value: cst.BaseExpression) -> cst.Expr:
    method = cst.Attribute(cst.Name(ctx), cst.Name("save_for_backward"))
    return cst.Expr(cst.Call(method, [cst.Arg(value)]))


def _with_argument(call: cst.Call, value: cst.BaseExpression) -> cst.Call:
    last = call.args[-1:]
    ended = [last[0].with_changes(comma=cst.MaybeSentinel.DEFAULT)] if last else []
    return call.with_changes(args=[*call.args[:-1], *ended, cst.Arg(value)])


def _with_element(target: cst.Tuple, name: str) -> cst.Tuple:
    last = target.elements[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return target.with_changes(elements=[*target.elements[:-1], last, cst.Element(cst.Name(name))])
