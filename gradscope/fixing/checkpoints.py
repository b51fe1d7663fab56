"""Changes what a checkpoint runs: not in a backward call of its own, or with what it shares."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import libcst as cst

from gradscope.code import source
from gradscope.fixing import spots
from gradscope.fixing.drafts import Draft
from gradscope.fixing.edits import CannotBeWrittenError
from gradscope.model import Edit


def checkpoint_in(file: str) -> ast.Call:
    """Return the one call of a checkpoint in a file."""
    found = [c for c in source.calls_in(source.tree(file)) if source.called_name(c) == "checkpoint"]
    if len(found) != 1:
        raise CannotBeWrittenError
    return found[0]


def handed_over(file: str, names: Iterable[str]) -> tuple[Edit, ...]:
    """Hand a checkpointed function what it takes from around it as an argument."""
    call, draft = checkpoint_in(file), Draft(file)
    function = _function_of(call, file)
    given = spots.arguments_of(function)
    taken = [n for n in names if n.isidentifier() and n in spots.read_names(function)]
    own = {name for each in function.body for name in spots.stored_names(each)}
    if len(taken) != 1 or taken[0] in given | own:
        raise CannotBeWrittenError
    is_spread = any(isinstance(each, ast.Starred) for each in call.args) or function.args.vararg
    if is_spread or function.args.posonlyargs:
        raise CannotBeWrittenError
    name, at = taken[0], len(call.args) - 1

    def with_parameter(updated: cst.FunctionDef) -> cst.FunctionDef:
        params = list(updated.params.params)
        params.insert(at, cst.Param(cst.Name(name)))
        return updated.with_changes(params=updated.params.with_changes(params=params))

    def with_argument(updated: cst.Call) -> cst.Call:
        args = list(updated.args)
        args.insert(at + 1, cst.Arg(cst.Name(name)))
        return updated.with_changes(args=args)

    draft.change(function, with_parameter)
    draft.change(call, with_argument)
    return draft.edits()


def without(file: str) -> tuple[Edit, ...]:
    """Call a checkpointed function itself."""
    call, draft = checkpoint_in(file), Draft(file)
    if any(isinstance(each, ast.Starred) for each in call.args[:1]):
        raise CannotBeWrittenError

    def make(updated: cst.Call) -> cst.Call:
        options = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check")
        function, *args = updated.args
        own = [a for a in args if a.keyword is None or a.keyword.value not in options]
        if own:
            own[-1] = own[-1].with_changes(comma=args[-1].comma)
        return updated.with_changes(func=function.value, args=own)

    draft.change(call, make)
    return draft.edits()


def _function_of(call: ast.Call, file: str) -> ast.FunctionDef:
    """Return the function that a checkpoint is given."""
    given = call.args[0] if call.args else None
    found = [
        node
        for node in ast.walk(source.tree(file))
        if isinstance(node, ast.FunctionDef)
        and isinstance(given, ast.Name)
        and node.name == given.id
    ]
    if len(found) != 1 or len(call.args) - 1 > len(found[0].args.args):
        raise CannotBeWrittenError
    return found[0]
