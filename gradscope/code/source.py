"""Reads the user's source around a place: the statement there, its loop, the call, and what is stored only sometimes."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache

from gradscope.code import places
from gradscope.model import Site

_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@lru_cache(maxsize=256)
def tree(file: str) -> ast.Module:
    """The parsed file; empty where there is no source, or it cannot be parsed."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _spans(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return first is not None and last is not None and first <= line <= last


def enclosing(file: str, line: int) -> list[ast.AST]:
    """The nodes around a line from the outermost in, statements and functions only."""
    found: list[ast.AST] = []
    node: ast.AST = tree(file)
    while True:
        inner = next((n for n in _statements_in(node) if _spans(n, line)), None)
        if inner is None:
            return found
        found.append(inner)
        node = inner


def _statements_in(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif not isinstance(child, ast.expr):
            yield from _statements_in(child)


def statement_at(site: Site) -> ast.stmt | None:
    """The innermost statement at a site."""
    around = enclosing(site.file, site.line)
    return around[-1] if around and isinstance(around[-1], ast.stmt) else None


def text_of(node: ast.AST) -> str:
    """The node's source in one line, in Python's own spelling."""
    return ast.unparse(node)


def loop_around(site: Site) -> ast.For | ast.While | ast.AsyncFor | None:
    """The innermost loop around a site within its function."""
    for node in reversed(enclosing(site.file, site.line)):
        if isinstance(node, _LOOPS) and site.line >= node.body[0].lineno:
            return node
        if isinstance(node, _FUNCTIONS):
            return None
    return None


def function_around(site: Site) -> ast.AST:
    """The function around a site, else the module."""
    for node in reversed(enclosing(site.file, site.line)):
        if isinstance(node, _FUNCTIONS):
            return node
    return tree(site.file)


def call_at(site: Site) -> ast.Call | None:
    """The call expression at a site."""
    for node in ast.walk(statement_at(site) or tree(site.file)):
        if isinstance(node, ast.Call) and places.is_at(node, site):
            return node
    return None


def keywords_of(site: Site) -> frozenset[str]:
    """The keywords of the call at a site, and ``grad`` for a call of a function of that name."""
    call = call_at(site)
    if call is None:
        return frozenset()
    grad = (
        {"grad"}
        if isinstance(call.func, ast.Attribute | ast.Name) and _name(call.func) == "grad"
        else set()
    )
    return frozenset({k.arg for k in call.keywords if k.arg} | grad)


def _name(function: ast.Attribute | ast.Name) -> str:
    return function.attr if isinstance(function, ast.Attribute) else function.id


def targets_of(statement: ast.AST) -> frozenset[str]:
    """The names and paths that a statement stores, as written."""
    if isinstance(statement, ast.Assign):
        targets: list[ast.expr] = statement.targets
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor):
        targets = [statement.target]
    elif isinstance(statement, ast.With | ast.AsyncWith):
        targets = [item.optional_vars for item in statement.items if item.optional_vars is not None]
    else:
        return frozenset()
    found = set()
    for target in targets:
        for node in _flat(target):
            found.add(ast.unparse(node))
    return frozenset(found)


def _flat(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _flat(part)
    elif isinstance(target, ast.Starred):
        yield from _flat(target.value)
    else:
        yield target


def stores_in(region: ast.AST, name: str) -> list[ast.stmt]:
    """The statements of a region, its functions and classes left out, that store the name or what holds it."""
    return [
        s
        for s in statements_of(region)
        if any(name == t or _is_owner(t, name) for t in targets_of(s))
    ]


def _is_owner(owner: str, name: str) -> bool:
    return name.startswith(owner) and name[len(owner) : len(owner) + 1] in (".", "[")


def statements_of(region: ast.AST) -> Iterator[ast.stmt]:
    """All statements of a region in its own scope."""
    for child in _statements_in(region):
        assert isinstance(child, ast.stmt)
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from statements_of(child)


def stored_sometimes(
    region: ast.AST, name: str, line: int, read: int, *, after: bool = False, until: int = 0
) -> bool:
    """Whether the region rebinds or resets the name under a condition that may hold, or in a loop that may not run.

    Then nobody can tell from the code whether the name still holds the same thing when it is read. The branch that ``line`` is
    in itself does not count, nor does what begins after line ``until``; with ``after`` neither does what comes before ``line``.
    ``read`` is the line of the read. ``if h is None`` does not hold, as the name has something; a condition that comes and goes
    with the iterations does not save a program that calls backward in each.
    """
    always = isinstance(region, _LOOPS) and not any(
        isinstance(s, ast.If) and _spans(s, line) for s in statements_of(region)
    )
    assigned = (
        {t for s in (region, *statements_of(region)) for t in targets_of(s)} if always else set()
    )
    for statement in statements_of(region):
        first, last = statement.lineno, statement.end_lineno or 0
        if _spans(statement, line) or (after and last < line) or (until and first > until):
            continue
        if isinstance(statement, ast.If):
            if always and _comes_and_goes(statement.test, assigned):
                continue
            parts = (
                statement.orelse
                if _is_of_absence(statement.test, name)
                else [*statement.body, *statement.orelse]
            )
        elif isinstance(statement, _LOOPS) and not _spans(statement, read):
            parts = statement.body
        else:
            continue
        if any(
            _resets(inner, name, isinstance(statement, ast.If))
            for part in parts
            for inner in (part, *statements_of(part))
        ):
            return True
    return False


def _resets(statement: ast.stmt, name: str, with_owner: bool) -> bool:
    """Whether a statement stores the name, detaches or clears it in place, or may reset the object it is an attribute of."""
    if any(name == t or _is_owner(t, name) for t in targets_of(statement)):
        return True
    owner = name.rpartition(".")[0]
    if with_owner and owner and _calls_on(statement, owner):
        return True
    return any(
        isinstance(call.func, ast.Attribute)
        and (call.func.attr.endswith("_") or call.func.attr == "clear")
        and (text_of(call.func.value) == name or _is_owner(text_of(call.func.value), name))
        for call in calls_in(statement)
    )


def _is_of_absence(test: ast.expr, name: str) -> bool:
    """``h is None``, ``not hasattr(self, "h")``, ``key not in cache``: what does not hold as the name has something."""
    last = name.rpartition(".")[2].partition("[")[0]
    if last not in words_of(test):
        return False
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return True
    return (
        isinstance(test, ast.Compare)
        and len(test.ops) == 1
        and isinstance(test.ops[0], ast.Is | ast.NotIn)
    )


def _comes_and_goes(test: ast.expr, assigned: set[str]) -> bool:
    """``step % 50 == 0``, ``i == 0``, ``end > size``: a comparison of what the loop changes that holds now and then."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    if not assigned & {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}:
        return False
    if isinstance(test.ops[0], ast.Eq):
        return True
    return isinstance(test.ops[0], ast.Gt | ast.GtE) and not isinstance(
        test.comparators[0], ast.Constant
    )


def words_of(node: ast.AST) -> set[str]:
    """The names, attributes and constants in an expression."""
    found = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    found |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return found | {str(n.value) for n in ast.walk(node) if isinstance(n, ast.Constant)}


def _calls_on(statement: ast.stmt, owner: str) -> bool:
    """Whether a statement is a bare call that the owner may be changed by: ``net.reset()``, ``reset(net)``."""
    for call in (n for n in ast.walk(statement) if isinstance(n, ast.Call)):
        function = call.func
        if isinstance(function, ast.Attribute) and ast.unparse(function.value) == owner:
            return True
        if any(ast.unparse(argument) == owner for argument in call.args):
            return True
    return False


def calls_in(region: ast.AST) -> Iterator[ast.Call]:
    """All calls of a region."""
    return (node for node in ast.walk(region) if isinstance(node, ast.Call))


def line_of(file: str, line: int) -> str:
    """One line of a file, without its end."""
    return linecache.getline(file, line).rstrip("\r\n")


def may_be_the_last(site: Site) -> bool:
    """Whether a condition around a call, in its loop, may be one that comes true in the last iteration only.

    ``i % 4 == 3`` comes again, ``i == last`` does not; a name that the loop never assigns is a setting.
    """
    loop = loop_around(site)
    if loop is None:
        return False
    assigned = {name for s in (loop, *statements_of(loop)) for name in targets_of(s)}
    for node in enclosing(site.file, site.line):
        if not isinstance(node, ast.If) or node.lineno <= loop.lineno:
            continue
        other = node.orelse if any(_spans(s, site.line) for s in node.body) else node.body
        if any(
            k.arg == "retain_graph" for s in other for call in calls_in(s) for k in call.keywords
        ):
            return True
        test = node.test
        if any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) for n in ast.walk(test)):
            continue
        if {
            n.id for n in ast.walk(test) if isinstance(n, ast.Name)
        } & assigned and not _is_about_the_first(test):
            return True
    return False


def _is_about_the_first(test: ast.expr) -> bool:
    """``i > 0``, ``x is not None``, ``i != 0``."""
    return (
        isinstance(test, ast.Compare)
        and len(test.ops) == 1
        and isinstance(test.ops[0], ast.Gt | ast.NotEq | ast.IsNot)
        and isinstance(test.comparators[0], ast.Constant)
        and test.comparators[0].value in (0, None)
    )


def targets_at(file: str, line: int) -> frozenset[str]:
    """What the statement that begins at a line stores."""
    around = enclosing(file, line)
    return (
        targets_of(around[-1])
        if around and getattr(around[-1], "lineno", 0) == line
        else frozenset()
    )


def root_name(site: Site) -> str:
    """What a backward call starts from, where that is a name."""
    call = call_at(site)
    if call is None or not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
        return ""
    return (
        ast.unparse(call.func.value)
        if isinstance(call.func.value, ast.Name | ast.Attribute)
        else ""
    )


_HANDS_ON = frozenset({"zip", "enumerate", "reversed", "list", "tuple", "iter", "items", "values"})


def runs_over_parts(loop: ast.For) -> bool:
    """Whether a loop runs over what its expression names, part by part: not over ``[sum(losses)]``."""
    if isinstance(loop.iter, ast.List | ast.Tuple) and len(loop.iter.elts) < 2:
        return False
    return all(
        isinstance(call.func, ast.Name | ast.Attribute) and _name(call.func) in _HANDS_ON
        for call in calls_in(loop.iter)
    )
