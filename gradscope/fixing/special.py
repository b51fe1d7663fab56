"""Writes the edits for one construct: a checkpoint, a hook, compiled code, a Function, a cache."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import libcst as cst

from gradscope.code import changes, places, source
from gradscope.code.statements import with_cached
from gradscope.fixing import calls, syntax
from gradscope.fixing.drafts import Draft
from gradscope.fixing.edits import CannotBeWrittenError, written
from gradscope.fixing.moves import put_at_head
from gradscope.fixing.values import statement
from gradscope.model import Edit, Site

_SAVED = "saved_tensors"


@written
def not_reentrant(file: str) -> tuple[Edit, ...]:
    """Have the one checkpoint of a file run its backward without a backward call inside."""
    call = _checkpoint_in(file)
    return calls.with_keyword(places.of_node(call, file), "use_reentrant", "False")


def _checkpoint_in(file: str) -> ast.Call:
    """Return the one call of a checkpoint in a file."""
    found = [c for c in source.calls_in(source.tree(file)) if source.called_name(c) == "checkpoint"]
    if len(found) != 1:
        raise CannotBeWrittenError
    return found[0]


@written
def handed_to_checkpoint(file: str, names: Iterable[str]) -> tuple[Edit, ...]:
    """Hand a checkpointed function what it takes from around it as an argument."""
    call, draft = _checkpoint_in(file), Draft(file)
    function = _checkpointed(call, file)
    given = syntax.arguments_of(function)
    taken = [n for n in names if n.isidentifier() and n in syntax.read_names(function)]
    own = {name for each in function.body for name in syntax.stored_names(each)}
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


@written
def without_checkpoint(file: str) -> tuple[Edit, ...]:
    """Call a checkpointed function itself."""
    call, draft = _checkpoint_in(file), Draft(file)
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


def _checkpointed(call: ast.Call, file: str) -> ast.FunctionDef:
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


@written
def detach_in_hook(at: Site) -> tuple[Edit, ...]:
    """Have a hook take the tensor detached, as an argument's default: ``lambda g, z=z.detach():``.

    The place is that of ``z.register_hook(hook)``.
    """
    draft, found = Draft(at.file), statement(at)
    registered = [
        call
        for call in syntax.own_nodes(found)
        if isinstance(call, ast.Call) and source.called_name(call) == "register_hook"
    ]
    if len(registered) != 1 or len(registered[0].args) != 1:
        raise CannotBeWrittenError
    call = registered[0]
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if not isinstance(owner, ast.Name):
        raise CannotBeWrittenError
    hook = _registered_hook(call.args[0], owner.id, at)
    if hook.args.vararg or hook.args.kwonlyargs or owner.id in syntax.arguments_of(hook):
        raise CannotBeWrittenError
    if owner.id not in syntax.read_names(hook):
        raise CannotBeWrittenError
    default = cst.parse_expression(f"{owner.id}.detach()")
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    taken = cst.Param(cst.Name(owner.id), default=default, equal=tight)

    def make(updated: cst.FunctionDef | cst.Lambda) -> cst.FunctionDef | cst.Lambda:
        params = updated.params.with_changes(params=[*updated.params.params, taken])
        return updated.with_changes(params=params)

    draft.change(hook, make)
    return draft.edits()


def _registered_hook(given: ast.expr, owner: str, at: Site) -> ast.Lambda | ast.FunctionDef:
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


@written
def save_for_backward(store: Site) -> tuple[Edit, ...]:
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
    reads = _context_reads(backward, name)
    own = f"{_context_of(backward)}.{_SAVED}"
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


def _context_of(function: ast.FunctionDef) -> str:
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


def _context_reads(backward: ast.FunctionDef, name: str) -> list[ast.Attribute]:
    wanted = f"{_context_of(backward)}.{name}"
    return [
        node
        for node in ast.walk(backward)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == wanted
    ]


def _free_name(name: str, backward: ast.FunctionDef) -> str:
    """Return a name that nothing else in ``backward`` has."""
    used = {node.id for node in ast.walk(backward) if isinstance(node, ast.Name)}
    return f"{name}_saved" if name in used | syntax.arguments_of(backward) else name


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


@written
def cached_in_loop(at: Site) -> tuple[Edit, ...]:
    """Put the loop around a place on the outside of the ``cached()`` that is around the loop."""
    draft, found = Draft(at.file), with_cached(at)
    if found is None or len(found.items) != 1 or found.items[0].optional_vars is not None:
        raise CannotBeWrittenError
    loop = found.body[0]
    if len(found.body) != 1 or not isinstance(loop, ast.For | ast.While) or loop.orelse:
        raise CannotBeWrittenError

    def make(updated: cst.With) -> cst.For | cst.While:
        inner = updated.body.body[0]
        assert isinstance(inner, cst.For | cst.While)
        inside = updated.with_changes(body=inner.body, leading_lines=())
        block = cst.IndentedBlock([inside])
        return inner.with_changes(
            body=block, leading_lines=(*updated.leading_lines, *inner.leading_lines)
        )

    draft.change(found, make)
    return draft.edits()


@written
def set_after_imports(file: str, name: str, value: str) -> tuple[Edit, ...]:
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


@written
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

    assert isinstance(function, syntax.FUNCTIONS)
    draft.change(function, make)
    return draft.edits()


def _is_compile(function: ast.AST) -> bool:
    return isinstance(function, ast.Attribute) and ast.unparse(function) == "torch.compile"


def _first_argument(updated: cst.Call) -> cst.BaseExpression:
    value = updated.args[0].value
    if isinstance(value, cst.Lambda) and not value.lpar:
        value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return value
