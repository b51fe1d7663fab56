"""Finds, in the user's source, the statement between two known places that did something nobody saw happen."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gradscope.code import places
from gradscope.model import Site

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.Mod: "remainder",
}
_ALSO_NAMED = {
    "rsub": "sub",
    "mm": "matmul",
    "bmm": "matmul",
    "mv": "matmul",
    "dot": "matmul",
    "addmm": "linear",
}
_NOT_IN_PLACE = frozenset(
    {"requires_grad_", "share_memory_", "retain_grad_", "rename_", "pin_memory_", "train_", "eval_"}
)
_MODULES = frozenset({"torch", "nn", "F", "functional", "init"})
_WRITES_INTO_TENSORS = frozenset({"load_state_dict", "vector_to_parameters"})


@dataclass(frozen=True, slots=True)
class Statement:
    """A piece of source that may have done it: its place, and the dotted names that it changes (in-place) or uses.

    ``target`` is the one that it changes for certain, where that is plain: ``x`` of ``x += 1``, ``x[0] = 1`` and ``x.relu_()``.
    """

    site: Site
    names: frozenset[str]
    target: str = ""


@lru_cache(maxsize=256)
def _tree(file: str) -> ast.Module | None:
    lines = linecache.getlines(file)
    try:
        return ast.parse("".join(lines)) if lines else None
    except (SyntaxError, ValueError):
        return None


def in_place_statements(file: str) -> tuple[Statement, ...]:
    """All statements of a file that modify a tensor in place, if what they work on is one."""
    return _found(file, modified_names)


def changed_by(site: Site) -> Statement:
    """The statement at a line that has modified a tensor: the one on it that does so by its looks, else all of it."""
    found = [
        s for s in in_place_statements(site.file) if s.site.line <= site.line <= s.site.end_line
    ]
    found = [s for s in found if s.site.function == site.function]
    lines = {s.site: s for s in found}
    outer = [s for s in found if not any(_is_within(s.site, o.site) for o in found)]
    if outer and (len(outer) == 1 or len(lines) == 1):
        return outer[0]
    around = [
        n for n in ast.walk(_tree(site.file) or ast.Module([], [])) if isinstance(n, ast.stmt)
    ]
    around = [
        n
        for n in around
        if n.lineno <= site.line <= (n.end_lineno or n.lineno) and not hasattr(n, "body")
    ]
    if not around:
        return Statement(site, frozenset())
    return Statement(places.of_node(around[-1], site.file, site.function), frozenset())


def _is_within(site: Site, other: Site) -> bool:
    start, end = (site.line, site.column), (site.end_line, site.end_column)
    return (
        site != other
        and (other.line, other.column) <= start
        and end <= (other.end_line, other.end_column)
    )


def operations(file: str, node_name: str) -> tuple[Statement, ...]:
    """All expressions of a file that build a node of this name (``MulBackward0``: ``a * b``, ``a.mul(b)``, ``torch.mul(a, b)``)."""
    wanted = _operations_of(node_name)

    def matches(node: ast.AST) -> frozenset[str] | None:
        if isinstance(node, ast.BinOp | ast.AugAssign):
            return _dotted_names(node) if _BINARY.get(type(node.op)) in wanted else None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return _dotted_names(node) if "neg" in wanted else None
        if isinstance(node, ast.Call) and _called(node) in wanted:
            return _dotted_names(node)
        return None

    return _found(file, matches)


def aligned(
    file: str, function: str, first: int, last: int, built: Sequence[str | None]
) -> Site | None:
    """Where the last of several nodes was built, by the order in which the operators of some lines are evaluated.

    ``built`` names the nodes that were built there one after the other, None where it is not known. It is told only if the
    operators from line ``first`` on agree with all that is known.
    """
    operators = []
    for node, holder in with_functions(_tree(file) or ast.Module([], [])):
        if (
            holder == function
            and isinstance(node, ast.BinOp | ast.AugAssign | ast.Call)
            and first <= node.lineno <= last
        ):
            name = _called(node) if isinstance(node, ast.Call) else _BINARY.get(type(node.op))
            if name in _BINARY.values():
                operators.append(
                    (node.end_lineno or 0, node.end_col_offset or 0, -node.col_offset, name, node)
                )
    operators.sort(key=lambda operator: operator[:3])
    if len(operators) < len(built):
        return None
    for operator, name in zip(operators, built, strict=False):
        if name is not None and operator[3] not in _operations_of(name):
            return None
    return places.of_node(operators[len(built) - 1][4], file, function)


def _operations_of(node_name: str) -> set[str]:
    """How source says what a node of this name does: ``MulBackward0`` is ``mul``."""
    operation = re.sub(r"Backward\d*$", "", node_name)
    operation = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", operation).lower()
    return {operation, _ALSO_NAMED.get(operation, operation)}


def names_at(site: Site) -> frozenset[str]:
    """The dotted names that the statement at a place reads or assigns."""
    tree = _tree(site.file)
    if tree is None:
        return frozenset()
    smallest: ast.stmt | None = None
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and node.lineno <= site.line <= (
            node.end_lineno or node.lineno
        ):
            smallest = node if smallest is None or node.lineno >= smallest.lineno else smallest
    if smallest is None or isinstance(
        smallest, ast.FunctionDef | ast.ClassDef | ast.For | ast.While | ast.If | ast.With
    ):
        return frozenset()
    return _dotted_names(smallest)


def between(
    statements: tuple[Statement, ...], first: Site | None, last: Site | None
) -> tuple[Statement, ...]:
    """Those that can have run after ``first`` and before ``last``.

    Where both lie in one function, those of that function in between: down the lines, or round the loop that holds both
    when ``last`` is above. Statements of other functions may have run at any time and stay.
    """
    if first is None or last is None:
        return statements
    same = first.file == last.file and first.function == last.function
    loop = _innermost_loop(first.file, first.line, last.line) if same else None

    def possible(site: Site) -> bool:
        if site.file == first.file and site.function == first.function and same:
            if first.line <= last.line and loop is None:
                return first.line <= site.line <= last.line
            if first.line <= last.line:
                return first.line <= site.line <= last.line or not any(
                    first.line <= s.site.line <= last.line
                    for s in statements
                    if s.site.function == first.function
                )
            if loop is not None:
                return first.line <= site.line <= loop[1] or loop[0] <= site.line <= last.line
        return True

    return tuple(s for s in statements if possible(s.site))


def _innermost_loop(file: str, *lines: int) -> tuple[int, int] | None:
    tree = _tree(file)
    spans = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree or ast.Module([], []))
        if isinstance(node, ast.For | ast.While | ast.AsyncFor)
    ]
    around = [span for span in spans if all(span[0] <= line <= span[1] for line in lines)]
    return max(around, default=None)


def _found(file: str, matches: Callable[[ast.AST], frozenset[str] | None]) -> tuple[Statement, ...]:
    tree = _tree(file)
    if tree is None:
        return ()
    found = []
    for node, function in with_functions(tree):
        if not isinstance(node, ast.stmt | ast.expr):
            continue
        names = matches(node)
        if names is not None:
            found.append(Statement(places.of_node(node, file, function), names, _target(node)))
    return tuple(found)


def with_functions(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Every node with the qualified name of the function that holds it, as ``co_qualname`` has it."""
    stack: list[tuple[ast.AST, str, str]] = [(tree, "<module>", "")]
    while stack:
        node, function, prefix = stack.pop()
        yield node, function
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                name = prefix + child.name
                stack.append((child, name, name + ".<locals>."))
            elif isinstance(child, ast.Lambda):
                stack.append((child, prefix + "<lambda>", prefix))
            elif isinstance(child, ast.ClassDef):
                stack.append((child, function, prefix + child.name + "."))
            else:
                stack.append((child, function, prefix))


def modified_names(node: ast.AST) -> frozenset[str] | None:
    """The dotted names of what a statement or call modifies in place; None if it modifies nothing."""
    changed: list[ast.expr] = []
    if isinstance(node, ast.AugAssign):
        changed.append(node.target)
    elif isinstance(node, ast.Assign):
        changed += [t for t in node.targets if isinstance(t, ast.Subscript)]
    elif isinstance(node, ast.Call):
        name = _called(node)
        if (
            isinstance(node.func, ast.Attribute)
            and re.fullmatch(r"[a-z]\w*[a-z0-9]_", name)
            and name not in _NOT_IN_PLACE
        ):
            changed += [node.func.value, *node.args[:1]]
        elif name in _WRITES_INTO_TENSORS:
            changed.append(node.func.value if isinstance(node.func, ast.Attribute) else node.func)
        for keyword in node.keywords:
            if keyword.arg == "out":
                changed.append(keyword.value)
            elif (
                keyword.arg == "inplace"
                and isinstance(keyword.value, ast.Constant)
                and keyword.value.value
            ):
                changed += node.args[:1]
    if not changed:
        return None
    return frozenset(name for expression in changed for name in _dotted_names(expression))


def _target(node: ast.AST) -> str:
    """What a statement or call in place works on, if that is a variable, an attribute or an element of one."""
    target: ast.AST | None = None
    if isinstance(node, ast.AugAssign):
        target = node.target
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        target = node.func.value
        while (
            isinstance(target, ast.Call)
            and isinstance(target.func, ast.Attribute)
            and _called(target).endswith("_")
        ):
            target = target.func.value  # self.mean.mul_(0.9).add_(x)
        first = target
        while isinstance(first, ast.Attribute):
            first = first.value
        if isinstance(first, ast.Name) and first.id in _MODULES:
            target = node.args[0] if node.args else None  # torch.relu_(x), nn.init.zeros_(x)
    while isinstance(target, ast.Subscript):
        target = target.value
    plain = isinstance(target, ast.Name) or (
        isinstance(target, ast.Attribute)
        and not any(isinstance(n, ast.Call) for n in ast.walk(target))
    )
    return ast.unparse(target) if plain and target is not None else ""


def _called(call: ast.Call) -> str:
    function = call.func
    return (
        function.attr
        if isinstance(function, ast.Attribute)
        else function.id
        if isinstance(function, ast.Name)
        else ""
    )


def _dotted_names(node: ast.AST) -> frozenset[str]:
    """Names and attribute chains in an expression, as written: ``queue``, ``self.u``; the called method's own name left out."""
    methods = {id(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
    inner = {
        id(n.value) for n in ast.walk(node) if isinstance(n, ast.Attribute) and id(n) not in methods
    }
    return frozenset(
        ast.unparse(n)
        for n in ast.walk(node)
        if isinstance(n, ast.Name | ast.Attribute) and id(n) not in inner and id(n) not in methods
    )
