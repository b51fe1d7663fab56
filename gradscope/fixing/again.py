"""Has what was computed once computed again: in a loop, in a method, before a second loss."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import libcst as cst

from gradscope.code import changes, source
from gradscope.fixing import spots
from gradscope.fixing.blocks import Line
from gradscope.fixing.drafts import Draft
from gradscope.fixing.edits import CannotBeWrittenError
from gradscope.fixing.moves import LEAVES, loop_at, put_at_head
from gradscope.fixing.values import statement
from gradscope.model import Edit, Site

_CACHES = frozenset({"lru_cache", "cache", "cached_property", "cached", "memoize"})
_SELF_MADE = ("Parameter", "zeros", "ones", "randn", "rand", "tensor", "empty", "full", "arange")


def recomputed(at: Site, names: Sequence[str]) -> tuple[Edit, ...]:
    """Compute names inside the loop around a place, or else in its function."""
    draft = Draft(at.file)
    found, function = spots.statement_at(at), source.function_around(at)
    loop = found if isinstance(found, source.LOOPS) else source.loop_around(at)
    region: ast.AST
    if loop is not None:
        region, scope = loop, function
    elif isinstance(function, spots.FUNCTIONS):
        outer = Site(at.file, function.lineno - 1) if function.lineno > 1 else at
        region, scope = function, _outside(function, outer)
    else:
        raise CannotBeWrittenError
    body: list[ast.stmt] = region.body
    stores = _only_stores(scope, names, region)
    lines = [
        draft.copy(each) if _is_used(each, scope, [region, *stores]) else draft.cut(each)
        for each in stores
    ]
    put_at_head(draft, body, lines)
    return draft.edits()


def _outside(function: ast.AST, at: Site) -> ast.AST:
    """Return the scope that a function is defined in."""
    for node in reversed(source.enclosing(at.file, getattr(function, "lineno", 1))):
        if node is not function and isinstance(node, spots.FUNCTIONS):
            return node
    return source.tree(at.file)


def _only_stores(scope: ast.AST, names: Sequence[str], region: ast.AST) -> list[ast.stmt]:
    """Return the only statements that store the names, in order, each before the region."""
    found: list[ast.stmt] = []
    for name in names:
        stores = changes.stores_in(scope, name)
        if len(stores) != 1 or name not in changes.targets_of(stores[0]):
            raise CannotBeWrittenError
        if isinstance(getattr(stores[0], "value", None), ast.Constant):
            raise CannotBeWrittenError  # its first value, which is no result of anything
        is_movable = not any(isinstance(node, LEAVES) for node in ast.walk(stores[0]))
        if not is_movable or stores[0].lineno >= getattr(region, "lineno", 0):
            raise CannotBeWrittenError
        if stores[0] not in found:
            found.append(stores[0])
    if not found:
        raise CannotBeWrittenError
    return sorted(found, key=lambda each: (each.lineno, each.col_offset))


def _is_used(store: ast.stmt, scope: ast.AST, apart_from: Sequence[ast.AST]) -> bool:
    """Return whether what a statement stores is read anywhere but in some parts of its scope."""
    names = changes.targets_of(store)
    left_out = {id(node) for part in apart_from for node in ast.walk(part)}
    return any(
        isinstance(node, ast.Name | ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and id(node) not in left_out
        and ast.unparse(node) in names
        for node in ast.walk(scope)
    )


def recomputed_in(function: Site, store: Site) -> tuple[Edit, ...]:
    """Move the store of an attribute from another method to the head of a method."""
    draft, found = Draft(store.file), statement(store)
    home, goal = source.function_around(store), source.function_around(function)
    begun = spots.statement_at(function)
    goal = begun if isinstance(begun, spots.FUNCTIONS) else goal
    if not isinstance(home, spots.FUNCTIONS) or not isinstance(goal, spots.FUNCTIONS):
        raise CannotBeWrittenError
    if function.file != store.file or home is goal:
        raise CannotBeWrittenError
    own = (_own_name(home), _own_name(goal))
    locals_ = spots.arguments_of(home) | {n for s in home.body for n in spots.stored_names(s)}
    if own[0] != own[1] or (spots.read_names(found) & locals_) - {own[0]}:
        raise CannotBeWrittenError
    if any(isinstance(node, LEAVES) for node in ast.walk(found)):
        raise CannotBeWrittenError
    is_used = _is_used(found, source.tree(store.file), [goal, found])
    line = draft.copy(found) if is_used else draft.cut(found)
    put_at_head(draft, goal.body, [line])
    return draft.edits()


def _own_name(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    given = [*function.args.posonlyargs, *function.args.args]
    return given[0].arg if given else ""


def forward_again(call: Site, stale: Sequence[str]) -> tuple[Edit, ...]:
    """Compute the loss of a backward call again right before it, from what is ``stale`` on.

    What no other statement reads in between moves; the rest is computed twice.
    """
    draft, found = Draft(call.file), statement(call)
    block = spots.block_with(draft.file.file, found)
    before = block[: block.index(found)]
    chain = _chain(before, _wanted(call, found), set(stale))
    if not chain:
        raise CannotBeWrittenError
    for each in chain:
        if any(isinstance(node, LEAVES) for node in ast.walk(each)):
            raise CannotBeWrittenError
    lines = [*(draft.copy(each, comments=False) for each in chain[:-1])]
    lines.append(_needed_part(draft, chain[-1], _wanted(call, found)))
    draft.before(found, *lines)
    last = chain[-1]
    between = before[before.index(last) + 1 :]
    names = spots.stored_names(last)
    if len(chain) > 1 and not any(names & spots.read_names(each) for each in between):
        draft.remove(last)  # nothing uses what it computed the first time
    return draft.edits()


def _needed_part(draft: Draft, last: ast.stmt, wanted: set[str]) -> Line:
    """Return a copy of a statement; of an assignment to several, what is wanted alone."""
    match last:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if len(
            targets
        ) == len(values):
            pairs = [
                (target, value)
                for target, value in zip(targets, values, strict=True)
                if isinstance(target, ast.Name) and target.id in wanted
            ]
            if len(pairs) == 1:
                text = cst.Module([]).code_for_node(draft.file.expression(pairs[0][1]))
                return draft.lines([f"{ast.unparse(pairs[0][0])} = {text}"])[0]
    return draft.copy(last, comments=False)


def _wanted(call: Site, found: ast.stmt) -> set[str]:
    """Return the variables that a backward call starts from."""
    at = spots.call_at(call)
    if at is None:
        return spots.read_names(found)
    if isinstance(at.func, ast.Attribute) and at.func.attr == "backward" and not at.args:
        return spots.read_names(at.func.value)
    return {name for each in at.args[:1] for name in spots.read_names(each)}


def _chain(before: list[ast.stmt], wanted: set[str], stale: set[str]) -> list[ast.stmt]:
    """Return the statements that lead to what is wanted, from those of ``stale`` names on."""
    slice_: list[ast.stmt] = []
    needed = set(wanted)
    for each in reversed(before):
        stored = spots.stored_names(each)
        if stored & needed and isinstance(each, ast.Assign | ast.AnnAssign | ast.With):
            slice_.append(each)
            needed = (needed - stored) | spots.read_names(each)
    chain: list[ast.stmt] = []
    made: set[str] = set()
    for each in reversed(slice_):
        starts = spots.stored_names(each) & stale if stale else _calls_a_variable(each)
        if starts or spots.read_names(each) & made:
            chain.append(each)
            made |= spots.stored_names(each)
    return chain


def _calls_a_variable(each: ast.stmt) -> bool:
    """Return whether a statement runs what is kept in a variable, as a network is."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name | ast.Attribute)
        and not (isinstance(node.func, ast.Attribute) and _is_torch(node.func))
        for node in ast.walk(each)
    )


def _is_torch(function: ast.Attribute) -> bool:
    root = ast.unparse(function).partition(".")[0]
    return root in ("torch", "F", "np", "nn", "math", "random") or function.attr in _SELF_MADE


def reset_at_head(at: Site, name: str, value: str) -> tuple[Edit, ...]:
    """Give a total its first value again at the head of a loop."""
    draft, loop = Draft(at.file), loop_at(at)
    first = value or _first_value(at, name, loop)
    put_at_head(draft, loop.body, [f"{name} = {first}"])
    return draft.edits()


def _first_value(at: Site, name: str, loop: source.Loop) -> str:
    """Return the constant that a name has before a loop."""
    stores = changes.stores_in(source.function_around(at), spots.same_text(name))
    before = [each for each in stores if each.lineno < loop.lineno]
    made = getattr(before[-1], "value", None) if before else None
    match made:
        case ast.Constant() | ast.List(elts=[]) | ast.Dict(keys=[]):
            return ast.unparse(made)
        case ast.Call(func=ast.Attribute(attr="zeros" | "tensor")):
            return ast.unparse(made)
        case ast.Call(func=ast.Name(id="list" | "dict" | "set" | "float"), args=[]):
            return ast.unparse(made)
    raise CannotBeWrittenError


def rebuilt(store: Site) -> tuple[Edit, ...]:
    """Have a cached value made anew each time: no test comes before its store."""
    draft, found = Draft(store.file), statement(store)
    block = spots.block_with(draft.file.file, found)
    targets = changes.targets_of(found)
    around = source.enclosing(store.file, store.line)
    test = next((n for n in reversed(around[:-1]) if isinstance(n, ast.If)), None)
    if test is not None and test.body is block and not test.orelse and _asks_for(test, targets):
        draft.replace(test, *(draft.copy(each) for each in test.body))
        return draft.edits()
    for before in block[: block.index(found)]:
        if not isinstance(before, ast.If) or before.orelse or not _asks_for(before, targets):
            continue
        if all(isinstance(each, ast.Return) for each in before.body):
            draft.remove(before)
            return draft.edits()
    raise CannotBeWrittenError


def _asks_for(test: ast.If, targets: frozenset[str]) -> bool:
    """Return whether a condition asks if one of the targets is there."""
    asked = {ast.unparse(n) for n in ast.walk(test.test) if isinstance(n, ast.expr)}
    for target in targets:
        owner, _, key = target.rpartition("[")
        attribute = target.rpartition(".")[2]
        if target in asked or (owner and {owner, key[:-1]} <= asked):
            return True
        if f"'{attribute}'" in asked and "hasattr" in asked:
            return True
    return False


def uncached(at: Site) -> tuple[Edit, ...]:
    """Take a decorator off its function: the one at the line, or the one that keeps results."""
    draft = Draft(at.file)
    for node in ast.walk(source.tree(at.file)):
        for place, each in enumerate(getattr(node, "decorator_list", ())):
            called = each.func if isinstance(each, ast.Call) else each
            name = ast.unparse(called).rpartition(".")[2]
            is_meant = source.spans(each, at.line)
            if not is_meant and isinstance(node, spots.FUNCTIONS):
                is_meant = name in _CACHES and node.lineno == at.line
            if is_meant and isinstance(node, spots.FUNCTIONS):
                if _asks_the_cache(node.name, at.file):
                    raise CannotBeWrittenError
                _take_off(draft, node, place, is_property=name == "cached_property")
                return draft.edits()
    raise CannotBeWrittenError


def _asks_the_cache(function: str, file: str) -> bool:
    """Return whether a file uses what the cache adds to a function."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in ("cache_clear", "cache_info", "__wrapped__")
        and ast.unparse(node.value).rpartition(".")[2] == function
        for node in ast.walk(source.tree(file))
    )


def _take_off(draft: Draft, function: ast.stmt, place: int, *, is_property: bool) -> None:
    def make(updated: cst.FunctionDef) -> cst.FunctionDef:
        decorators = list(updated.decorators)
        if is_property:
            decorators[place] = decorators[place].with_changes(decorator=cst.Name("property"))
            return updated.with_changes(decorators=decorators)
        gone = decorators.pop(place)
        if place < len(decorators):
            below = decorators[place]
            lines = (*gone.leading_lines, *below.leading_lines)
            decorators[place] = below.with_changes(leading_lines=lines)
            return updated.with_changes(decorators=decorators)
        above = (*gone.leading_lines, *updated.lines_after_decorators)
        if not decorators:
            above = (*updated.leading_lines, *above)
            return updated.with_changes(
                decorators=decorators, leading_lines=above, lines_after_decorators=()
            )
        return updated.with_changes(decorators=decorators, lines_after_decorators=above)

    draft.change(function, make)
