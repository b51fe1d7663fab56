"""Writes edits at the places that a rehearsal has marked: detached, cloned, run again."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence

from gradscope.code import source
from gradscope.code.places import of_node
from gradscope.fixing import calls, syntax
from gradscope.fixing.edits import checked, joined
from gradscope.fixing.marks import Place
from gradscope.fixing.rehearsal import Record, Spot
from gradscope.model import Edit

_SIMPLE = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)


def expression_at(place: Place) -> ast.expr | None:
    """Return the expression at a place."""
    span = place.line, place.column, place.end_line, place.end_column
    return source.parsed(place.file).expressions.get(span)


def keeping_graph(place: Place) -> tuple[Edit, ...]:
    """Return the edit that has a call keep its graph."""
    node = expression_at(place)
    return calls.with_flag(of_node(node, place.file), "retain_graph") if node is not None else ()


def text_at(place: Place) -> str:
    """Return the text of an expression; empty if there is none."""
    node = expression_at(place)
    return "" if node is None else ast.unparse(node)


def with_call(place: Place, kinds: frozenset[str], method: str) -> tuple[Edit, ...]:
    """Return the edit that detaches or clones what a place gives."""
    node = expression_at(place)
    if place.is_added:
        return _total_cut(place) if method == "detach" else ()
    if node is None:
        return ()
    lines = [line.rstrip("\r\n") for line in source.parsed(place.file).lines]
    part = lines[place.line - 1 : place.end_line]
    data = "\n".join(part).encode()
    end = len("\n".join(part[:-1]).encode()) + (len(part) > 1) + place.end_column
    text = data[place.column : end].decode()
    new = _with_suffix(text, node, kinds, method)
    if not new:
        return ()
    whole = (data[: place.column] + new.encode() + data[end:]).decode()
    last = place.end_line if place.end_line > place.line else 0
    return checked(Edit(place.file, place.line, whole, last))


def _with_suffix(text: str, node: ast.expr, kinds: frozenset[str], method: str) -> str:
    """Return ``text.detach()``, or what else detaches values of these kinds; empty if unknown."""
    shown = text if isinstance(node, _SIMPLE) else f"({text})"
    if "mixed" in kinds:
        return ""
    if "tuple" in kinds:
        cut = f"tuple(t.{method}() for t in {text})"
        other = kinds - {"tuple"}
        if not other:
            return cut
        return f"({text} if {text} is None else {cut})" if other == {"none"} else ""
    other = kinds - {"tensor", "number"}
    if not other:
        return f"{shown}.{method}()"
    if isinstance(node, ast.Call):
        return ""
    is_other = f"{text} is None" if other == {"none"} else f'not hasattr({text}, "{method}")'
    return f"({text} if {is_other} else {shown}.{method}())"


def rebinding(place: Place, kinds: dict[str, frozenset[str]], *, is_leaf: bool) -> tuple[Edit, ...]:
    """Return the edit that detaches variables before the statement at a place."""
    lines = []
    for name, own in kinds.items():
        node = ast.parse(name, mode="eval").body
        new = _with_suffix(name, node, own, "detach")
        if not new or (is_leaf and own - {"tensor", "number"}):
            return ()
        lines.append(f"{name} = {new}{'.requires_grad_()' if is_leaf else ''}")
    return _inserted(place.file, place.line, lines)


def _inserted(file: str, line: int, statements: Sequence[str]) -> tuple[Edit, ...]:
    """Return the edit that puts statements before the one that begins at a line."""
    old = source.line_of(file, line)
    indent = old[: len(old) - len(old.lstrip())]
    text = "\n".join([*(f"{indent}{each}" for each in statements), old])
    return checked(Edit(file, line, text))


def copying(
    statement: tuple[str, ast.stmt], spot: Spot, cuts: Sequence[Place], record: Record
) -> tuple[Edit, ...]:
    """Return the edit that runs a statement again before what follows the step needs its value."""
    file, node = statement
    block = syntax.block_with(file, node)
    names = syntax.stored_names(node)
    ends = [i for i, each in enumerate(block) if source.spans(each, spot[1])]
    if file != spot[0] or not ends or not names or _draws(node):
        return ()
    begin = block.index(node) + 1
    readers = [e for e in block[begin : ends[0] + 1] if syntax.read_names(e) & names]
    parts = [with_call(each, frozenset({"tensor"}), "detach") for each in cuts]
    if len(readers) < 2 or not all(parts):
        return ()
    lines = source.parsed(file).lines[node.lineno - 1 : node.end_lineno]
    copy = textwrap.dedent("".join(lines)).rstrip("\n").split("\n")
    inserted = _inserted(file, readers[-1].lineno, copy)
    return joined(*parts, inserted) if parts else inserted


def _draws(node: ast.AST) -> bool:
    """Return whether a statement draws or takes something: its copy would have another."""
    words = ("rand", "sample", "drop", "next", "normal", "choice", "shuffle")
    called = [source.called_name(call) for call in source.calls_in(node)]
    return any(word in name for name in called if name for word in words)


def is_in(place: Place, file: str, node: ast.AST) -> bool:
    """Return whether a place is within a node of a file."""
    first, last = getattr(node, "lineno", 1), getattr(node, "end_lineno", 1 << 60)
    return place.file == file and first <= place.line <= last


def statement_around(place: Place) -> tuple[str, ast.stmt]:
    """Return the file and the statement of a place."""
    return place.file, source.enclosing(place.file, place.line)[-1]


def decorated_function(place: Place) -> tuple[str, ast.FunctionDef] | None:
    """Return the function around a place that has a decorator."""
    for each in reversed(source.enclosing(place.file, place.line)):
        if isinstance(each, ast.FunctionDef):
            return (place.file, each) if each.decorator_list else None
    return None


def region_of(place: Place) -> ast.stmt | None:
    """Return the function or loop that a statement begins."""
    around = source.enclosing(place.file, place.line)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, *source.LOOPS)
    return next(
        (e for e in reversed(around) if isinstance(e, kinds) and e.lineno != place.line), None
    )


def _total_cut(place: Place) -> tuple[Edit, ...]:
    """Return ``x = x.detach() + y`` for ``x += y``."""
    lines = [line.rstrip("\r\n") for line in source.parsed(place.file).lines]
    for found in source.parsed(place.file).nodes:
        node = found.node
        if isinstance(node, ast.AugAssign) and node.target.lineno == place.line:
            if node.target.col_offset != place.column or node.end_lineno != node.lineno:
                continue
            symbol = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}[type(node.op)]
            target, value = ast.unparse(node.target), ast.unparse(node.value)
            if isinstance(node.value, ast.BinOp | ast.IfExp | ast.Lambda):
                value = f"({value})"
            line = lines[place.line - 1].encode()
            cut = f'({target}.detach() if hasattr({target}, "detach") else {target})'
            made = f"{target} = {cut} {symbol} {value}".encode()
            new = line[: node.col_offset] + made + line[node.end_col_offset :]
            return checked(Edit(place.file, place.line, new.decode()))
    return ()
