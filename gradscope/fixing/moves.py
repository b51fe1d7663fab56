"""Puts statements in, moves them, and puts them under a context of torch."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

import libcst as cst

from gradscope.code import changes, source
from gradscope.fixing import syntax
from gradscope.fixing.blocks import Line
from gradscope.fixing.calls import call_at, drop_flag
from gradscope.fixing.drafts import Draft
from gradscope.fixing.edits import CannotBeWrittenError, written
from gradscope.fixing.values import (
    one_of_several,
    owner_of_element,
    statement,
    stored_with,
    torch_name,
)
from gradscope.model import Edit, Site

LEAVES = (ast.Return, ast.Raise, ast.Break, ast.Continue, ast.Await, ast.Yield, ast.YieldFrom)
DECLARES = (ast.Global, ast.Nonlocal)


def put_after(draft: Draft, at: Site, lines: Sequence[str], names: Iterable[str]) -> None:
    """Put statements that store names after the one at a place."""
    found = statement(at)
    if isinstance(found, ast.Return | ast.Raise | ast.Break | ast.Continue):
        raise CannotBeWrittenError
    if isinstance(found, (*source.LOOPS, *syntax.SCOPES)):
        raise CannotBeWrittenError
    if not all(_may_store(name, at) for name in names):
        raise CannotBeWrittenError
    draft.after(found, *lines)


def _may_store(name: str, at: Site) -> bool:
    """Return whether a statement at a place may store a name: it means no outer variable."""
    function = source.function_around(at)
    if not name.isidentifier() or isinstance(function, ast.Module):
        return True
    if isinstance(function, syntax.FUNCTIONS) and name in syntax.arguments_of(function):
        return True
    own = list(source.statements_of(function))
    declared = any(isinstance(each, DECLARES) and name in each.names for each in own)
    return declared or any(changes.stores(each, name) for each in own) or _walrus(own, name)


def _walrus(statements: Sequence[ast.stmt], name: str) -> bool:
    return any(
        isinstance(node, ast.NamedExpr) and node.target.id == name
        for each in statements
        for node in syntax.own_nodes(each)
    )


def detaching(names: Sequence[str], *, elements: bool) -> list[str]:
    """Return the statements that detach variables."""
    lines: dict[str, None] = {}
    for name in names:
        owner, _, element = name.rpartition("[")
        if elements and owner and element[:-1].isdigit():
            name = owner
        cut = f"tuple(t.detach() for t in {name})" if elements else f"{name}.detach()"
        lines[f"{name} = {cut}"] = None
    return list(lines)


@written
def detach_after(
    at: Site, names: Sequence[str], *, elements: bool = False, without: str = ""
) -> tuple[Edit, ...]:
    """Put ``name = name.detach()`` after the statement at a place, for each name.

    ``elements``: what the names hold is a tuple of tensors. ``without``: a flag that is left out of
    the call at the place, as ``retain_graph``.
    """
    draft = Draft(at.file)
    lines = detaching(names, elements=elements)
    put_after(draft, at, lines, [line.partition(" = ")[0] for line in lines])
    if without:
        drop_flag(draft, call_at(at), without, required=True)
    return draft.edits()


@written
def detach_stored(at: Site, text: str = "", *, elements: bool = False) -> tuple[Edit, ...]:
    """Store the value detached: of an assignment, ``append(x)``, a walrus, an argument, a return.

    ``text`` is the target or the part of the value that is meant. A branch that is a number stays
    as it is; one of several that a call gives is detached after the statement. ``elements``: the
    value is a tuple or a list of tensors, as it is where ``text`` is one of them: ``h[0]``.
    """
    owner = owner_of_element(at, text)
    text, elements = owner or text, elements or bool(owner)
    try:
        return stored_with(at, ".detach()", text, elements=elements)
    except CannotBeWrittenError:
        name = one_of_several(at, text)
        if not name:
            raise
        return detach_after(at, [name], elements=elements)


def loop_at(at: Site) -> source.Loop:
    """Return the loop that begins at a place, or that is around it."""
    found = syntax.statement_at(at)
    loop = found if isinstance(found, source.LOOPS) else source.loop_around(at)
    if loop is None:
        raise CannotBeWrittenError
    return loop


def put_at_head(draft: Draft, body: list[ast.stmt], lines: Iterable[str | Line]) -> None:
    """Put statements at the head of a block: behind a docstring and what is declared global."""
    at = 0
    first = body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        at = 1 if isinstance(first.value.value, str) else 0
    while at < len(body) and isinstance(body[at], DECLARES):
        at += 1
    if at == len(body):
        draft.after(body[-1], *lines)
    else:
        draft.before(body[at], *lines)


@written
def put_at_end(at: Site, line: str) -> tuple[Edit, ...]:
    """Put a statement at the end of the loop around a place."""
    draft, last = Draft(at.file), loop_at(at).body[-1]
    if any(isinstance(node, LEAVES) for node in ast.walk(last)):
        raise CannotBeWrittenError
    draft.after(last, line)
    return draft.edits()


def put_before(draft: Draft, at: ast.stmt, lines: Iterable[str | Line]) -> None:
    """Put statements before one, but never above the ``global`` declaration of their names."""
    made = draft.lines(lines)
    names = {name for line in made for name in _names_in(line)}
    site = Site(draft.file.file, at.lineno)
    function = source.function_around(site)
    late = [
        each
        for each in source.statements_of(function)
        if isinstance(each, DECLARES) and names & set(each.names) and each.lineno >= at.lineno
    ]
    if not late:
        draft.before(at, *made)
    elif late[-1] in syntax.block_with(draft.file.file, at):
        draft.after(late[-1], *made)
    else:
        raise CannotBeWrittenError


def _names_in(line: Line) -> set[str]:
    text = cst.Module([line.with_changes(leading_lines=())]).code
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


@written
def no_grad(first: Site, last: Site | None = None, *, context: str = "no_grad") -> tuple[Edit, ...]:
    """Put a statement, or all from the first to the last of a block, under ``torch.no_grad()``, or
    another ``context`` of torch's.

    A function at ``first`` gets ``torch.no_grad()`` as its decorator.
    """
    begin = statement(first)
    end = statement(last) if last is not None else begin
    draft = Draft(first.file, begin.lineno, end.lineno)
    if begin is end and isinstance(begin, syntax.FUNCTIONS):
        return _decorated(draft, begin, context)
    block = syntax.block_with(first.file, begin)
    if end not in block or block.index(end) < block.index(begin):
        raise CannotBeWrittenError
    region = block[block.index(begin) : block.index(end) + 1]
    for node in (node for each in region for node in ast.walk(each)):
        if isinstance(node, ast.Await | ast.Yield | ast.YieldFrom | ast.Global | ast.Nonlocal):
            raise CannotBeWrittenError
    if isinstance(begin, ast.Import | ast.ImportFrom | ast.ClassDef):
        raise CannotBeWrittenError
    if isinstance(getattr(begin, "value", None), ast.Constant):
        raise CannotBeWrittenError  # it has no graph
    item = cst.WithItem(cst.parse_expression(f"{_torch(draft)}.{context}()"))

    def wrap(lines: Sequence[Line]) -> cst.BaseCompoundStatement:
        return cst.With([item], cst.IndentedBlock(lines))

    draft.wrap(begin, end, wrap)
    return draft.edits()


def _decorated(
    draft: Draft, function: ast.FunctionDef | ast.AsyncFunctionDef, context: str
) -> tuple[Edit, ...]:
    if isinstance(function, ast.AsyncFunctionDef):
        raise CannotBeWrittenError
    decorator = cst.Decorator(cst.parse_expression(f"{_torch(draft)}.{context}()"))

    def make(updated: cst.FunctionDef) -> cst.FunctionDef:
        return updated.with_changes(decorators=[*updated.decorators, decorator])

    draft.change(function, make)
    return draft.edits()


def _torch(draft: Draft) -> str:
    """Return the name of torch in a file; it is imported where only parts of it are."""
    try:
        return torch_name(draft.file.file)
    except CannotBeWrittenError:
        for node in source.tree(draft.file.file).body:
            module = node.module if isinstance(node, ast.ImportFrom) else ""
            if (module or "").partition(".")[0] == "torch":
                draft.before(node, "import torch")
                return "torch"
        raise


@written
def move_before(at: Site, target: Site) -> tuple[Edit, ...]:
    """Move the statement at a place before another, with the comments above it."""
    return _moved(at, target, after=False)


@written
def move_after(at: Site, target: Site) -> tuple[Edit, ...]:
    """Move the statement at a place after another, with the comments above it."""
    return _moved(at, target, after=True)


def _moved(at: Site, target: Site, *, after: bool) -> tuple[Edit, ...]:
    """Move a statement before or after another, with the comments above it."""
    draft, found, goal = Draft(at.file), statement(at), statement(target)
    if at.file != target.file or found is goal or _contains(found, goal):
        raise CannotBeWrittenError
    if source.function_around(at) is not source.function_around(target):
        raise CannotBeWrittenError
    if any(isinstance(node, LEAVES) for node in ast.walk(found)):
        raise CannotBeWrittenError
    _check_data(found, goal, at)
    line = draft.cut(found)
    if after:
        draft.after(goal, line)
    else:
        put_before(draft, goal, [line])
    return draft.edits()


def _contains(outer: ast.AST, inner: ast.AST) -> bool:
    return any(node is inner for node in ast.walk(outer))


def _check_data(found: ast.stmt, goal: ast.stmt, at: Site) -> None:
    """See that no variable means another value when a statement is moved to another."""
    low, high = sorted((found.lineno, goal.lineno))
    function = source.function_around(at)
    between = [s for s in source.statements_of(function) if low <= s.lineno <= high]
    between = [s for s in between if not _contains(found, s) and not _contains(s, found)]
    stored, read = syntax.stored_names(found), syntax.read_names(found)
    for each in between:
        if stored & (
            syntax.read_names(each) | syntax.stored_names(each)
        ) or read & syntax.stored_names(each):
            raise CannotBeWrittenError
