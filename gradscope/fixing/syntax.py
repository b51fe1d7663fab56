"""Finds what an edit means by a place: a statement, a call, the reads of a text, what it may be."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import pairwise

from gradscope.code import changes, places, source
from gradscope.model import Site

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_OF_ITS_SHAPE = frozenset(
    {"shape", "dtype", "device", "ndim", "layout", "is_cuda", "requires_grad", "grad", "grad_fn"}
    | {"size", "dim", "numel", "detach", "detach_", "item", "tolist", "data", "backward"}
)
"""What is asked of a tensor without taking its graph along, or cannot be asked without it."""
_ASKS = frozenset({"isinstance", "len", "id", "type", "hasattr"})


def statement_at(site: Site) -> ast.stmt | None:
    """Return the innermost statement at a place: by its columns where statements share a line."""
    node: ast.AST = source.tree(site.file)
    found: ast.stmt | None = None
    while True:
        inside = [each for each in source.statements_in(node) if source.spans(each, site.line)]
        if len(inside) > 1 or (found is not None and site.end_column):
            within = [each for each in inside if _includes(each, site)]
            inside = within if within or site.end_column else inside
        if not inside:
            return found
        node = found = inside[0]


def _includes(node: ast.stmt, site: Site) -> bool:
    own = places.of_node(node, site.file)
    at = (site.line, site.column)
    return (own.line, own.column) <= at < (own.end_line, own.end_column)


def block_with(file: str, statement: ast.stmt) -> list[ast.stmt]:
    """Return the block that a statement stands in."""
    for region in ast.walk(source.tree(file)):
        for block in blocks_of(region):
            if statement in block:
                return block
    return []


def own_nodes(statement: ast.AST) -> Iterator[ast.AST]:
    """Yield what belongs to a statement itself: of a loop or a function, its head alone."""
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from own_nodes(child)


def parents_in(statement: ast.AST) -> dict[ast.AST, ast.AST]:
    """Return what each node of a statement stands in."""
    nodes = (statement, *own_nodes(statement))
    return {child: node for node in nodes for child in ast.iter_child_nodes(node)}


def same_text(text: str) -> str:
    """Return an expression as Python writes it; empty if it is none."""
    try:
        return ast.unparse(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError):
        return ""


def reads(statement: ast.AST, text: str) -> list[ast.expr]:
    """Return the reads of an expression in a statement that take its graph along."""
    wanted = same_text(text)
    kind = type(ast.parse(wanted, mode="eval").body) if wanted else None
    parents = parents_in(statement)
    root = wanted.partition(".")[0].partition("[")[0]
    return [
        node
        for node in own_nodes(statement)
        if isinstance(node, ast.expr)
        and type(node) is kind
        and isinstance(getattr(node, "ctx", None) or ast.Load(), ast.Load)
        and ast.unparse(node) == wanted
        and _takes_graph(node, parents)
        and not _is_shadowed(root, node, parents)
    ]


def _takes_graph(node: ast.expr, parents: dict[ast.AST, ast.AST]) -> bool:
    match parents[node]:
        case ast.Attribute(attr=attribute):
            return attribute not in _OF_ITS_SHAPE
        case ast.Compare(ops=ops):
            return not any(
                isinstance(each, ast.Is | ast.IsNot | ast.In | ast.NotIn) for each in ops
            )
        case ast.Call(func=ast.Name(id=name)):
            return name not in _ASKS
    return True


def _is_shadowed(name: str, node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Return whether a name means something of a lambda or a comprehension around it."""
    at = parents.get(node)
    while at is not None:
        if isinstance(at, ast.Lambda) and name in arguments_of(at):
            return True
        if isinstance(at, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            targets = [n for loop in at.generators for n in ast.walk(loop.target)]
            if any(isinstance(each, ast.Name) and each.id == name for each in targets):
                return True
        at = parents.get(at)
    return False


def arguments_of(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    """Return the names of a function's arguments."""
    given = function.args
    several = [each for each in (given.vararg, given.kwarg) if each is not None]
    return {a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs, *several)}


def call_at(site: Site) -> ast.Call | None:
    """Return the call at a place, or the only backward call of its statement."""
    statement = statement_at(site)
    if statement is None:
        return None
    calls = [node for node in own_nodes(statement) if isinstance(node, ast.Call)]
    exact = next((call for call in calls if site.end_column and places.is_at(call, site)), None)
    if exact is not None:
        return exact
    engine = [c for c in calls if source.called_name(c) in ("backward", "grad", "manual_backward")]
    return engine[0] if len(engine) == 1 else None


def alternatives(text: str, site: Site) -> set[str]:
    """Return what else than a tensor an expression may be at a place: ``None`` or ``number``.

    It is what a plain assignment to the same text, a default of the argument or a dict display
    gives, unless a store or a test for None comes between.
    """
    wanted = same_text(text)
    found: set[str] = set()
    is_name = wanted.isidentifier()
    scope = source.function_around(site) if is_name else source.tree(site.file)
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target, value in _pairs(targets, node.value):
                if ast.unparse(target) == wanted:
                    found |= _kinds(value)
                elif wanted.startswith(f"{ast.unparse(target)}[") and isinstance(value, ast.Dict):
                    found |= _in_dict(wanted, ast.unparse(target), value)
    if is_name and isinstance(scope, FUNCTIONS):
        found |= _default(wanted, scope)
    return set() if found and _is_tensor_here(wanted, site) else found


def _pairs(targets: Sequence[ast.expr], value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    for target in targets:
        is_tuple = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            if is_tuple and len(target.elts) == len(value.elts):
                yield from zip(target.elts, value.elts, strict=True)
        else:
            yield target, value


def _kinds(value: ast.expr) -> set[str]:
    match value:
        case ast.Constant(value=None):
            return {"None"}
        case ast.Constant(value=int() | float()):
            return {"number"}
        case ast.UnaryOp(operand=operand):
            return _kinds(operand)
        case ast.IfExp(body=body, orelse=other):
            return _kinds(body) | _kinds(other)
    return set()


def _in_dict(wanted: str, container: str, display: ast.Dict) -> set[str]:
    found: set[str] = set()
    for key, value in zip(display.keys, display.values, strict=True):
        if key is not None and wanted == f"{container}[{ast.unparse(key)}]":
            found |= _kinds(value)
    return found


def _default(name: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    pairs = [
        *zip(reversed(positional), reversed(given.defaults), strict=False),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    return {
        kind
        for argument, default in pairs
        if argument.arg == name and default is not None
        for kind in _kinds(default)
    }


def _is_tensor_here(text: str, site: Site) -> bool:
    """Return whether the code around and before a place has made sure that it is no None there."""
    around: list[ast.AST] = [source.tree(site.file), *source.enclosing(site.file, site.line)]
    for outer, inner in reversed(list(pairwise(around))):
        if isinstance(outer, ast.If):
            is_body = inner in outer.body
            if ast.unparse(outer.test) == f"{text} is {'not ' * is_body}None":
                return True
        block = next((block for block in blocks_of(outer) if inner in block), [])
        for before in reversed(block[: block.index(inner)] if inner in block else []):
            if changes.stores(before, text):
                return not _kinds(getattr(before, "value", ast.Constant(None)))
            if isinstance(before, ast.If) and ast.unparse(before.test) == f"{text} is None":
                return any(changes.stores(each, text) for each in before.body)
        if isinstance(outer, FUNCTIONS):
            return False
    return False


def blocks_of(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements that a statement is made of."""
    for child in (node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(child, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def stored_names(node: ast.AST) -> set[str]:
    """Return the variables that a statement binds, and what is in it."""
    return {
        each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)
    }


def read_names(node: ast.AST) -> set[str]:
    """Return the variables that a statement reads, and what is in it."""
    found = {
        each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        found.add(node.target.id)
    return found
