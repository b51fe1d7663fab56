"""Takes ``torch.compile`` off, or sets what it asks before it compiles."""

from __future__ import annotations

import ast

import libcst as cst

from gradscope.code import source
from gradscope.fixing import spots
from gradscope.fixing.drafts import Draft
from gradscope.fixing.edits import CannotBeWrittenError
from gradscope.model import Edit


def with_setting(file: str, name: str, value: str) -> tuple[Edit, ...]:
    """Set an attribute of a module behind the first imports of a file."""
    draft, module = Draft(file), name.rpartition(".")[0]
    imports: list[ast.stmt] = []
    for each in source.tree(file).body:
        is_doc = isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
        if isinstance(each, ast.Import | ast.ImportFrom):
            imports.append(each)
        elif not is_doc:
            break
    if not imports:
        raise CannotBeWrittenError
    last = imports[-1]
    draft.after(last, f"import {module}", f"{name} = {value}")
    return draft.edits()


def uncompiled(file: str) -> tuple[Edit, ...]:
    """Use what is compiled as it is."""
    tree, draft = source.tree(file), Draft(file)
    calls = [c for c in source.calls_in(tree) if _is_compile(c.func)]
    plain = [
        (node, place)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for place, each in enumerate(node.decorator_list)
        if _is_compile(each.func if isinstance(each, ast.Call) else each)
    ]
    inner = [c for c in calls if not any(c in node.decorator_list for node, _ in plain)]
    if len(plain) + len(inner) != 1:
        raise CannotBeWrittenError
    if inner:
        if not inner[0].args or isinstance(inner[0].args[0], ast.Starred):
            raise CannotBeWrittenError
        draft.change(inner[0], _first_argument)
        return draft.edits()
    function, place = plain[0]

    def make(updated: cst.FunctionDef) -> cst.FunctionDef:
        decorators = list(updated.decorators)
        decorators.pop(place)
        return updated.with_changes(decorators=decorators)

    assert isinstance(function, spots.FUNCTIONS)
    draft.change(function, make)
    return draft.edits()


def _is_compile(function: ast.AST) -> bool:
    return isinstance(function, ast.Attribute) and ast.unparse(function) == "torch.compile"


def _first_argument(updated: cst.Call) -> cst.BaseExpression:
    value = updated.args[0].value
    if isinstance(value, cst.Lambda) and not value.lpar:
        value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return value
