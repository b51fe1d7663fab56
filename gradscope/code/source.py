"""Parses each file once, and finds the statement, loop, function and call around a place.

Also makes the Site of an instruction or of a syntax node; all columns count characters.
"""

from __future__ import annotations

import ast
import codecs
import linecache
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from types import CodeType
from typing import Any, NamedTuple, TypeAlias, TypeVar

from gradscope.formatting import firsts
from gradscope.model import Site


def cell_of(file: str) -> str:
    """Return ``In[11]`` for the code that the notebook last ran under that number, else nothing."""
    compiler = getattr(shell_of_ipython(), "compile", None)
    name = getattr(compiler, "format_code_name", None)  # an older IPython has none
    named = None if name is None else name(file)
    return str(named[1]) if named else ""


def shell_of_ipython() -> Any:
    """Return the shell of IPython that runs the program; None outside of one."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", None)  # it may be half imported
    return None if shell is None else shell()


Located: TypeAlias = ast.stmt | ast.expr
"""The nodes of the syntax tree that have a place."""

_RESUMED = re.compile(r"torch_dynamo_resume_in_(\w+)_at_\d+")
"""How torch.compile names the rest of a function, after a part that it could not compile."""


def of_instruction(code: CodeType, offset: int) -> Site:
    """Return the place of an instruction, with columns where the code has them (PEP 657)."""
    line = end_line = column = end_column = None
    if offset >= 0:
        positions = islice(code.co_positions(), offset // 2, None)
        line, end_line, column, end_column = next(positions, (None,) * 4)
    line = line or code.co_firstlineno
    function = _RESUMED.sub(r"\1", code.co_qualname)
    return _site(code.co_filename, function, line, column or 0, end_line or line, end_column)


def of_node(node: Located, file: str, function: str = "<module>") -> Site:
    """Return the place of a node; ``function`` is the ``co_qualname`` of the code it belongs to."""
    end_line = node.end_lineno or node.lineno
    return _site(file, function, node.lineno, node.col_offset, end_line, node.end_col_offset)


def is_at(node: ast.AST, site: Site) -> bool:
    """Return whether a node begins where the site does, and ends there if the site ends."""
    if not isinstance(node, Located) or node.lineno != site.line:
        return False
    own = of_node(node, site.file)
    ends = (own.end_line, own.end_column) == (site.end_line, site.end_column)
    return own.column == site.column and (ends or not site.end_column)


def character(file: str, line: int, column: int) -> int:
    """Return the character at a column that counts bytes of UTF-8, as Python's own columns do."""
    text = linecache.getline(file, line)
    return column if text.isascii() else len(text.encode()[:column].decode(errors="ignore"))


def _site(
    path: str, function: str, line: int, column: int, end_line: int, end_column: int | None
) -> Site:
    return Site(
        file=path if path.startswith("<") else os.path.abspath(path),
        line=line,
        column=character(path, line, column) + 1,
        end_line=end_line,
        end_column=0 if end_column is None else character(path, end_line, end_column) + 1,
        function=function,
        cell=cell_of(path),
    )


N = TypeVar("N", bound=ast.AST)
Loop: TypeAlias = ast.For | ast.While | ast.AsyncFor
LOOPS = (ast.For, ast.While, ast.AsyncFor)
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# Files that are kept parsed: those of the program, and of libraries that lines are sought in.
# Each cell of a notebook is one, too. When there are more, all are forgotten and read again.
_MOST_FILES = 256
_NOT_A_NUMBER = re.compile(r"\D+")
_ALL_IGNORED = ("ignore", None, Warning, None, 0)


@contextmanager
def quietly() -> Iterator[None]:
    """Parse or compile the program's text without warnings: Python showed them when it started.

    ``warnings.catch_warnings`` would make Python show again what it has shown once.
    """
    filters: list[Any] = warnings.filters  # type: ignore[assignment]
    filters.insert(0, _ALL_IGNORED)
    try:
        yield
    finally:
        filters.remove(_ALL_IGNORED)


# Python imports these with their first use, which would be amid the program.
ast.unparse(ast.parse(r"f'{x}\n'"))
[*map(codecs.lookup, ("utf-8-sig", "latin-1"))]


class NodeInCode(NamedTuple):
    """A node, the ``co_qualname`` of its code, and whether a loop of that code is around it."""

    node: ast.AST
    function: str
    in_loop: bool


class SourceFile:
    """A file as it was read; without nodes where there is no source, or it cannot be parsed."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.code: CodeType | None = None
        """The text as one module's code, once that was asked for."""
        try:
            with quietly():
                self.tree = ast.parse("".join(lines))
        except (SyntaxError, ValueError):  # a notebook's magic, or a file that changed since
            self.tree = ast.Module([], [])

    @cached_property
    def nodes(self) -> tuple[NodeInCode, ...]:
        """Every node in the order of the source, each before those in it."""
        found = []
        stack = [(NodeInCode(self.tree, "<module>", False), "")]
        while stack:
            here, prefix = stack.pop()
            found.append(here)
            inside = [_child(here, prefix, child) for child in ast.iter_child_nodes(here.node)]
            stack += reversed(inside)
        return tuple(found)

    @cached_property
    def expressions(self) -> dict[tuple[int, int, int | None, int | None], ast.expr]:
        """Every expression by its lines and columns; of several at one place, the outermost."""
        found = (each.node for each in self.nodes if isinstance(each.node, ast.expr))
        return firsts(found, lambda n: (n.lineno, n.col_offset, n.end_lineno, n.end_col_offset))

    @cached_property
    def blocks(self) -> dict[ast.stmt, list[ast.stmt]]:
        """Every statement with the block that it stands in."""
        names = ("body", "orelse", "finalbody")
        parts = (getattr(each.node, name, ()) for each in self.nodes for name in names)
        return {each: part for part in parts if isinstance(part, list) for each in part}


def _child(parent: NodeInCode, prefix: str, node: ast.AST) -> tuple[NodeInCode, str]:
    """Return a child with its function, and what the names of functions in it begin with."""
    in_loop = parent.in_loop or isinstance(parent.node, LOOPS)
    if isinstance(node, FUNCTIONS):
        name = prefix + node.name
        return NodeInCode(node, name, False), name + ".<locals>."
    if isinstance(node, ast.Lambda):
        return NodeInCode(node, prefix + "<lambda>", in_loop), prefix
    if isinstance(node, ast.ClassDef):
        prefix += node.name + "."
    return NodeInCode(node, parent.function, in_loop), prefix


_sources: dict[str, SourceFile] = {}


def parsed(file: str) -> SourceFile:
    """Return the parsed file, read again only if ``linecache`` has read it again since."""
    lines = linecache.getlines(file)
    known = _sources.get(file)
    if known is None or (known.lines is not lines and known.lines != lines):
        if len(_sources) >= _MOST_FILES:
            _sources.clear()
        known = _sources[file] = SourceFile(lines)
    return known


def cells_like(file: str) -> Iterator[str]:
    """Yield the files that exist only in memory and are named as this one but for their numbers:
    the cells of its notebook, the newest first.
    """
    if is_in_memory(file):
        folder, name = os.path.split(file)
        kind = (folder, _NOT_A_NUMBER.findall(name)[:1])
        for other in reversed(tuple(linecache.cache)):
            folder, name = os.path.split(other)
            if (folder, _NOT_A_NUMBER.findall(name)[:1]) == kind and is_in_memory(other):
                yield other


def is_in_memory(file: str) -> bool:
    """Return whether the text of a file is known, and stands nowhere else: that of a cell."""
    entry = linecache.cache.get(file)
    return entry is not None and len(entry) > 1 and entry[1] is None


def tree(file: str) -> ast.Module:
    """Return the syntax tree of a file."""
    return parsed(file).tree


def imported(file: str) -> dict[str, str]:
    """Return what a file imports at its top, by the names that it has for it: ``nn`` may be
    ``torch.nn``.
    """
    found: dict[str, str] = {}
    for each in tree(file).body:
        if isinstance(each, ast.Import | ast.ImportFrom):
            module = f"{each.module or ''}." if isinstance(each, ast.ImportFrom) else ""
            found |= {own.asname or own.name: f"{module}{own.name}" for own in each.names}
    return found


def line_of(file: str, line: int) -> str:
    """Return one line of a file, without its end."""
    return linecache.getline(file, line).rstrip("\r\n")


def spans(node: ast.AST, line: int) -> bool:
    """Return whether the node's lines include this one."""
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return first is not None and last is not None and first <= line <= last


def enclosing(file: str, line: int) -> list[ast.stmt]:
    """Return the statements around a line from the outermost in."""
    found: list[ast.stmt] = []
    node: ast.AST = tree(file)
    while True:
        inner = next((n for n in statements_in(node) if spans(n, line)), None)
        if inner is None:
            return found
        found.append(inner)
        node = inner


def innermost(file: str, line: int, kind: type[N] | tuple[type[N], ...]) -> N | None:
    """Return the innermost statement of a kind around a line."""
    return next((each for each in reversed(enclosing(file, line)) if isinstance(each, kind)), None)


def scope_at(file: str, line: int) -> Function | ast.Module:
    """Return the innermost function around a line, or its module."""
    return innermost(file, line, FUNCTIONS) or tree(file)


def statements_in(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements right inside a node, also those of its clauses."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif not isinstance(child, ast.expr):
            yield from statements_in(child)


def statements_of(region: ast.AST) -> Iterator[ast.stmt]:
    """Yield all statements of a region in its own scope."""
    for child in statements_in(region):
        yield child
        if not isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            yield from statements_of(child)


def calls_in(region: ast.AST) -> Iterator[ast.Call]:
    """Yield all calls of a region."""
    return (node for node in ast.walk(region) if isinstance(node, ast.Call))


def statement_at(site: Site) -> ast.stmt | None:
    """Return the innermost statement at a site."""
    return innermost(site.file, site.line, ast.stmt)


def loops_around(file: str, line: int) -> list[Loop]:
    """Return the loops around a line in its function, innermost first."""
    found: list[Loop] = []
    for each in enclosing(file, line):
        if isinstance(each, FUNCTIONS):
            found = []
        elif isinstance(each, LOOPS) and line >= each.body[0].lineno:
            found.insert(0, each)
    return found


def loop_around(site: Site) -> Loop | None:
    """Return the innermost loop around a site within its function."""
    return next(iter(loops_around(site.file, site.line)), None)


def call_at(site: Site) -> ast.Call | None:
    """Return the call expression at a site."""
    return node_at(site, ast.Call)


def node_at(site: Site, kind: type[N]) -> N | None:
    """Return the expression of a kind at a site."""
    nodes = ast.walk(statement_at(site) or tree(site.file))
    return next((n for n in nodes if isinstance(n, kind) and is_at(n, site)), None)


def called_name(call: ast.Call) -> str:
    """Return the last name of what is called; empty where it has none."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def runs_a_part(site: Site) -> bool:
    """Return whether a backward call runs a part of the graph: ``grad(…)``, ``inputs=``."""
    call = call_at(site)
    if call is None:
        return False
    named = {keyword.arg for keyword in call.keywords}
    return called_name(call) == "grad" or not named.isdisjoint(("grad", "inputs"))


def reads_of(region: ast.AST) -> Iterator[ast.Name | ast.Attribute]:
    """Yield the variables and attributes that a region reads."""
    for node in ast.walk(region):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node


def dotted_names(node: ast.AST) -> frozenset[str]:
    """Return the variables and attribute chains in an expression, but not what is called."""
    methods = {id(call.func) for call in calls_in(node)}
    found = (n for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute))
    chains = [n for n in found if id(n) not in methods]
    inner = {id(n.value) for n in chains if isinstance(n, ast.Attribute)}
    return frozenset(ast.unparse(n) for n in chains if id(n) not in inner)
