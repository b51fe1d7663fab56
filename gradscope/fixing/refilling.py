"""Has what a statement collects in containers collected anew for each use of it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gradscope.code import changes, names, source
from gradscope.fixing import spots
from gradscope.fixing.drafts import Draft
from gradscope.fixing.edits import CannotBeWrittenError
from gradscope.fixing.moves import LEAVES, put_at_head
from gradscope.fixing.values import statement
from gradscope.model import Edit, Site

_MOST_LEVELS = 4
_COLLECTS = changes.ADDS - {"put", "put_nowait"}
_OF_LOOPS = (ast.Break, ast.Continue)


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
        for block in spots.blocks_of(region):
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
            at = [i for i, each in enumerate(around) if isinstance(each, spots.FUNCTIONS)]
            for each in around[at[-1] + 1 if at else 0 :]:
                yield _Use(each, known | _collected(each))
            function = around[at[-1]] if at else None
            if isinstance(function, spots.FUNCTIONS) and function not in done:
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
    own = {n for each in function.body for n in spots.stored_names(each)}
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
    wanted = (spots.stored_names(fill) & spots.read_names(fill)) | collected & read
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
    changed = spots.stored_names(fill) | {names.root_of(c) for c in part.fill.containers}
    found: list[ast.stmt] = []
    for each in part.block[part.block.index(fill) + 1 : part.block.index(first)]:
        if spots.read_names(each) & changed:
            found.append(each)
            changed |= spots.stored_names(each)
    return found


def _asked(fill: ast.stmt) -> set[str]:
    """Return what a statement reads, but for adding to it."""
    adds = {*_added_to(fill)}
    return {ast.unparse(each) for each in source.reads_of(fill) if each not in adds}


def _can_run_again(each: ast.stmt) -> bool:
    if isinstance(each, (*spots.SCOPES, ast.Import, ast.ImportFrom)):
        return False
    leaves = tuple(kind for kind in LEAVES if kind not in _OF_LOOPS)
    kinds = leaves if isinstance(each, source.LOOPS) else LEAVES
    return not any(isinstance(node, kinds) for node in ast.walk(each))


def _read_by(file: str, uses: Sequence[ast.stmt]) -> set[str]:
    """Return what statements, and the functions of the file that they run, read: by their texts,
    those of an object's own attributes under the names that the statements have for it.
    """
    functions = [node for node in ast.walk(source.tree(file)) if isinstance(node, spots.FUNCTIONS)]
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
