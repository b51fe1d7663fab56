"""Reads the user's source around a place: the statement there, its loop, the call, and what is stored only sometimes."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache

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
        if isinstance(node, ast.Call) and (node.lineno, node.col_offset + 1) == (site.line, site.column):
            if not site.end_column or node.end_col_offset is None or node.end_col_offset + 1 == site.end_column:
                return node
    return None


def keywords_of(site: Site) -> frozenset[str]:
    """The keywords of the call at a site, and ``grad`` for a call of a function of that name."""
    call = call_at(site)
    if call is None:
        return frozenset()
    grad = {"grad"} if isinstance(call.func, ast.Attribute | ast.Name) and _name(call.func) == "grad" else set()
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
    return [s for s in statements_of(region) if any(name == t or _is_owner(t, name) for t in targets_of(s))]


def _is_owner(owner: str, name: str) -> bool:
    return name.startswith(owner) and name[len(owner) : len(owner) + 1] in (".", "[")


def statements_of(region: ast.AST) -> Iterator[ast.stmt]:
    """All statements of a region in its own scope."""
    for child in _statements_in(region):
        assert isinstance(child, ast.stmt)
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from statements_of(child)


def stored_sometimes(region: ast.AST, name: str, line: int, read: int, after: bool = False) -> bool:
    """Whether the region rebinds or resets the name only under a condition that is not about the name itself.

    Then nobody can tell from the code whether the name still holds the same thing when it is read. The branch that ``line`` is
    in itself does not count; with ``after`` neither does what comes before that line. A loop that ``read``, the line of the
    read, is not in counts as a condition: it may run no times.
    """
    owner = name.rpartition(".")[0]
    last = name.rpartition(".")[2].partition("[")[0]
    for statement in statements_of(region):
        if _spans(statement, line) or (after and (statement.end_lineno or 0) < line):
            continue
        if isinstance(statement, ast.If):
            if last in words_of(statement.test):
                continue
        elif not isinstance(statement, _LOOPS) or _spans(statement, read):
            continue
        for inner in (s for part in (*statement.body, *statement.orelse) for s in (part, *statements_of(part))):
            if any(name == t or _is_owner(t, name) for t in targets_of(inner)):
                return True
            if isinstance(statement, ast.If) and owner and _calls_on(inner, owner):
                return True
            if isinstance(inner, ast.Expr) and _calls_on(inner, name):  # h.detach_(), cache.clear()
                return True
    return False


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
        if any(k.arg == "retain_graph" for s in other for call in calls_in(s) for k in call.keywords):
            return True
        test = node.test
        if any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) for n in ast.walk(test)):
            continue
        if {n.id for n in ast.walk(test) if isinstance(n, ast.Name)} & assigned and not _is_about_the_first(test):
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
