"""Has what was computed or collected once made again: in a loop, in a method, before a call."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from gradscope.code import changes, names, source
from gradscope.fixing import syntax
from gradscope.fixing.blocks import Line
from gradscope.fixing.drafts import Draft
from gradscope.fixing.edits import CannotBeWrittenError, written
from gradscope.fixing.moves import LEAVES, loop_at, put_at_head
from gradscope.fixing.values import statement
from gradscope.model import Edit, Site

_CACHES = frozenset({"lru_cache", "cache", "cached_property", "cached", "memoize"})
_SELF_MADE = ("Parameter", "zeros", "ones", "randn", "rand", "tensor", "empty", "full", "arange")
_MOST_LEVELS = 4
_COLLECTS = changes.ADDS - {"put", "put_nowait"}
_OF_LOOPS = (ast.Break, ast.Continue)


@written
def recomputed(at: Site, names: Sequence[str]) -> tuple[Edit, ...]:
    """Compute names inside the loop around a place, or else in its function."""
    draft = Draft(at.file)
    found, function = syntax.statement_at(at), source.function_around(at)
    loop = found if isinstance(found, source.LOOPS) else source.loop_around(at)
    region: ast.AST
    if loop is not None:
        region, scope = loop, function
    elif isinstance(function, syntax.FUNCTIONS):
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
        if node is not function and isinstance(node, syntax.FUNCTIONS):
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


@written
def recomputed_in(function: Site, store: Site) -> tuple[Edit, ...]:
    """Move the store of an attribute from another method to the head of a method."""
    draft, found = Draft(store.file), statement(store)
    home, goal = source.function_around(store), source.function_around(function)
    begun = syntax.statement_at(function)
    goal = begun if isinstance(begun, syntax.FUNCTIONS) else goal
    if not isinstance(home, syntax.FUNCTIONS) or not isinstance(goal, syntax.FUNCTIONS):
        raise CannotBeWrittenError
    if function.file != store.file or home is goal:
        raise CannotBeWrittenError
    own = (_own_name(home), _own_name(goal))
    locals_ = syntax.arguments_of(home) | {n for s in home.body for n in syntax.stored_names(s)}
    if own[0] != own[1] or (syntax.read_names(found) & locals_) - {own[0]}:
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


@written
def forward_again(call: Site, stale: Sequence[str] = ()) -> tuple[Edit, ...]:
    """Compute the loss of a backward call again right before it, from what is ``stale`` on.

    What no other statement reads in between moves; the rest is computed twice.
    """
    draft, found = Draft(call.file), statement(call)
    block = syntax.block_with(draft.file.file, found)
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
    names = syntax.stored_names(last)
    if len(chain) > 1 and not any(names & syntax.read_names(each) for each in between):
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
    at = syntax.call_at(call)
    if at is None:
        return syntax.read_names(found)
    if isinstance(at.func, ast.Attribute) and at.func.attr == "backward" and not at.args:
        return syntax.read_names(at.func.value)
    return {name for each in at.args[:1] for name in syntax.read_names(each)}


def _chain(before: list[ast.stmt], wanted: set[str], stale: set[str]) -> list[ast.stmt]:
    """Return the statements that lead to what is wanted, from those of ``stale`` names on."""
    slice_: list[ast.stmt] = []
    needed = set(wanted)
    for each in reversed(before):
        stored = syntax.stored_names(each)
        if stored & needed and isinstance(each, ast.Assign | ast.AnnAssign | ast.With):
            slice_.append(each)
            needed = (needed - stored) | syntax.read_names(each)
    chain: list[ast.stmt] = []
    made: set[str] = set()
    for each in reversed(slice_):
        starts = syntax.stored_names(each) & stale if stale else _calls_a_variable(each)
        if starts or syntax.read_names(each) & made:
            chain.append(each)
            made |= syntax.stored_names(each)
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


@written
def reset_at_head(at: Site, name: str, value: str = "") -> tuple[Edit, ...]:
    """Put ``name = value``, by default its first value, at the head of the loop at a place."""
    draft, loop = Draft(at.file), loop_at(at)
    first = value or _first_value(at, name, loop)
    put_at_head(draft, loop.body, [f"{name} = {first}"])
    return draft.edits()


def _first_value(at: Site, name: str, loop: source.Loop) -> str:
    """Return the constant that a name has before a loop."""
    stores = changes.stores_in(source.function_around(at), syntax.same_text(name))
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


@written
def rebuilt(store: Site) -> tuple[Edit, ...]:
    """Have a cached value made anew each time: no test comes before its store."""
    draft, found = Draft(store.file), statement(store)
    block = syntax.block_with(draft.file.file, found)
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


@written
def uncached(at: Site) -> tuple[Edit, ...]:
    """Take a decorator off its function: the one at the line, or the one that keeps results."""
    draft = Draft(at.file)
    for node in ast.walk(source.tree(at.file)):
        for place, each in enumerate(getattr(node, "decorator_list", ())):
            called = each.func if isinstance(each, ast.Call) else each
            name = ast.unparse(called).rpartition(".")[2]
            is_meant = source.spans(each, at.line)
            if not is_meant and isinstance(node, syntax.FUNCTIONS):
                is_meant = name in _CACHES and node.lineno == at.line
            if is_meant and isinstance(node, syntax.FUNCTIONS):
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


@dataclass(frozen=True, slots=True)
class _Use:
    """A statement that collects, or one that uses it, and the containers as it would call them."""

    statement: ast.stmt
    containers: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Part:
    """A block that first collects, and then uses what was collected more than once."""

    block: list[ast.stmt]
    fill: _Use
    uses: tuple[ast.stmt, ...]


@written
def refilled(store: Site, call: Site) -> tuple[Edit, ...]:
    """Run what collects at ``store`` anew for each backward call at ``call``, in empty containers.

    In a loop that begins after it, all of it moves there.
    """
    if store.file != call.file:
        raise CannotBeWrittenError
    parts = [*_parts(store, call)]
    if len(parts) != 1:
        raise CannotBeWrittenError
    part, draft = parts[0], Draft(store.file)
    after = _made_of_it(part)
    read = _read_by(store.file, [*after, *part.uses]) | _asked(part.fill.statement)
    moved = [*_begun(part, read), part.fill.statement, *after]
    if not all(_can_run_again(each) for each in moved):
        raise CannotBeWrittenError
    kept = {name for each in moved for name in changes.targets_of(each)}
    emptied = [each for each in sorted(part.fill.containers - kept) if each in read]
    clears = [f"{_as_quoted(each, store.file)}.clear()" for each in emptied]
    first, *others = part.uses
    if isinstance(first, source.LOOPS):
        assert not isinstance(first, ast.expr)
        lines = [draft.cut(each) for each in moved]
        put_at_head(draft, first.body, [*clears, *lines])
        return draft.edits()
    for each in others:
        lines = [draft.copy(again, comments=False) for again in moved]
        if isinstance(each, source.LOOPS):
            put_at_head(draft, each.body, [*clears, *lines])
        else:
            draft.before(each, *clears, *lines)
    return draft.edits()


def _as_quoted(name: str, file: str) -> str:
    """Return a name with the quotes that a file has around its keys."""
    other = name.replace("'", '"')
    return other if any(other in line for line in source.parsed(file).lines) else name


def _parts(store: Site, call: Site) -> Iterator[_Part]:
    """Yield the blocks in which the store runs first, and the call more than once after it."""
    fills = {id(each.statement): each for each in _runs(store, _collected(statement(store)))}
    uses = {id(each.statement) for each in _runs(call, frozenset())}
    seen: list[list[ast.stmt]] = []
    for region in ast.walk(source.tree(store.file)):
        for block in syntax.blocks_of(region):
            begun = [fills[id(each)] for each in block if id(each) in fills]
            if len(begun) != 1 or id(begun[0].statement) in uses or block in seen:
                continue
            at = block.index(begun[0].statement)
            used = tuple(each for each in block[at + 1 :] if id(each) in uses)
            is_repeated = len(used) > 1 or (used and isinstance(used[0], source.LOOPS))
            if is_repeated and not any(id(each) in uses for each in block[:at]):
                seen.append(block)
                yield _Part(block, begun[0], used)


def _runs(site: Site, containers: frozenset[str]) -> Iterator[_Use]:
    """Yield the statements around a site, and around the calls of its function, out to the module.

    The last ones are those that run it through other functions of the file.
    """
    pending, level = [(site.line, containers)], 0
    done: set[ast.AST] = set()
    while pending and level < _MOST_LEVELS:
        following = []
        for line, known in pending:
            around = source.enclosing(site.file, line)
            at = [i for i, each in enumerate(around) if isinstance(each, syntax.FUNCTIONS)]
            for each in around[at[-1] + 1 if at else 0 :]:
                yield _Use(each, known | _collected(each))
            function = around[at[-1]] if at else None
            if isinstance(function, syntax.FUNCTIONS) and function not in done:
                done.add(function)
                for caller in _calls_of(function, around[at[-1] - 1 : at[-1]], site.file):
                    there = frozenset(_seen_from(caller, function, known))
                    following.append((caller.lineno, there))
        pending, level = following, level + 1


def _calls_of(
    function: ast.FunctionDef | ast.AsyncFunctionDef, around: Sequence[ast.stmt], file: str
) -> list[ast.Call]:
    """Return the calls by which a file may run a function: of a method, those of an attribute."""
    is_method = any(isinstance(each, ast.ClassDef) for each in around)
    kind = ast.Attribute if is_method else ast.Name
    return [
        call
        for call in source.calls_in(source.tree(file))
        if source.called_name(call) == function.name and isinstance(call.func, kind)
    ]


def _collected(node: ast.AST) -> frozenset[str]:
    """Return the containers that a statement adds to."""
    found = set()
    for owner in _added_to(node):
        if isinstance(owner, ast.Call) and isinstance(owner.func, ast.Attribute):
            owner = owner.func.value  # d.setdefault(key, []).append(x)
        text = ast.unparse(owner)
        found |= {text} if names.split(text) is not None else set()
    return frozenset(found)


def _added_to(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a statement adds to, where it is written."""
    for call in source.calls_in(node):
        if isinstance(call.func, ast.Attribute) and call.func.attr in _COLLECTS:
            yield call.func.value


def _seen_from(
    call: ast.Call, function: ast.FunctionDef | ast.AsyncFunctionDef, containers: Iterable[str]
) -> Iterator[str]:
    """Yield what containers of a function are called where it is called; none that are its own."""
    given = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    values = [*call.args]
    if isinstance(call.func, ast.Attribute) and given[:1] == ["self"]:
        values = [call.func.value, *values]
    passed = {name: ast.unparse(value) for name, value in zip(given, values, strict=False)}
    passed |= {each.arg: ast.unparse(each.value) for each in call.keywords if each.arg}
    own = {n for each in function.body for n in syntax.stored_names(each)}
    own -= {n for each in function.body if isinstance(each, ast.Global) for n in each.names}
    for container in _all_collected(function) | set(containers):
        root = names.root_of(container)
        if root in passed:
            text = passed[root] + container[len(root) :]
            if names.split(text) is not None:
                yield text
        elif root not in own:
            yield container


def _all_collected(function: ast.AST) -> set[str]:
    """Return the containers that the function adds to and does not make anew."""
    made = {t for each in source.statements_of(function) for t in changes.targets_of(each)}
    return set(_collected(function)) - made


def _begun(part: _Part, read: set[str]) -> list[ast.stmt]:
    """Return what gives the names that a statement carries on, and the containers that are read,
    their first values.
    """
    fill, collected = part.fill.statement, part.fill.containers
    wanted = (syntax.stored_names(fill) & syntax.read_names(fill)) | collected & read
    begun: list[ast.stmt] = []
    for each in reversed(part.block[: part.block.index(fill)]):
        stored = changes.targets_of(each)
        is_meant = stored & wanted and not stored & (collected - read)
        if is_meant and isinstance(each, ast.Assign | ast.AnnAssign):
            begun.insert(0, each)
            wanted -= stored
    return begun


def _made_of_it(part: _Part) -> list[ast.stmt]:
    """Return what is computed of the collected before its first use."""
    fill, first = part.fill.statement, part.uses[0]
    changed = syntax.stored_names(fill) | {names.root_of(c) for c in part.fill.containers}
    found: list[ast.stmt] = []
    for each in part.block[part.block.index(fill) + 1 : part.block.index(first)]:
        if syntax.read_names(each) & changed:
            found.append(each)
            changed |= syntax.stored_names(each)
    return found


def _asked(fill: ast.stmt) -> set[str]:
    """Return what a statement reads, but for adding to it."""
    adds = {*_added_to(fill)}
    return {ast.unparse(each) for each in source.reads_of(fill) if each not in adds}


def _can_run_again(each: ast.stmt) -> bool:
    if isinstance(each, (*syntax.SCOPES, ast.Import, ast.ImportFrom)):
        return False
    leaves = tuple(kind for kind in LEAVES if kind not in _OF_LOOPS)
    kinds = leaves if isinstance(each, source.LOOPS) else LEAVES
    return not any(isinstance(node, kinds) for node in ast.walk(each))


def _read_by(file: str, uses: Sequence[ast.stmt]) -> set[str]:
    """Return what statements, and the functions of the file that they run, read: by their texts,
    those of an object's own attributes under the names that the statements have for it.
    """
    functions = [node for node in ast.walk(source.tree(file)) if isinstance(node, syntax.FUNCTIONS)]
    found: set[str] = set()
    pending: list[tuple[ast.AST, str]] = [(use, "") for use in uses]
    done: set[tuple[ast.AST, str]] = set()
    while pending:
        node, owner = entry = pending.pop()
        if entry in done:
            continue
        done.add(entry)
        found |= {
            _under(ast.unparse(each), owner)
            for each in ast.walk(node)
            if isinstance(each, ast.Name | ast.Attribute | ast.Subscript)
        }
        for call in source.calls_in(node):
            called = [f for f in functions if f.name == source.called_name(call)]
            held = _owner_of(call, owner)
            pending += [(each, held) for each in called]
    return found


def _owner_of(call: ast.Call, owner: str) -> str:
    return (
        _under(ast.unparse(call.func.value), owner) if isinstance(call.func, ast.Attribute) else ""
    )


def _under(text: str, owner: str) -> str:
    return owner + text[4:] if owner and names.root_of(text) == "self" else text
