"""Finds the nodes of a file in a concrete syntax tree, which keeps comments and layout.

The file is read in parts, each a statement of the module with the comments above it: a change of
one function needs no tree of the whole file.
"""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from gradscope.code import places, source
from gradscope.fixing.edits import CannotBeWrittenError

_NAMES = {
    "AsyncFor": "For",
    "AsyncFunctionDef": "FunctionDef",
    "AsyncWith": "With",
    "BinOp": "BinaryOperation",
    "BoolOp": "BooleanOperation",
    "Compare": "Comparison",
    "Delete": "Del",
    "JoinedStr": "FormattedString",
    "TryStar": "TryStar",
    "UnaryOp": "UnaryOperation",
}
"""Kinds of nodes that the two trees call by different names."""

_CONSTANTS = ("Integer", "Float", "SimpleString", "Name", "ConcatenatedString", "Ellipsis")

_FIRST = "pass\n"
"""Stands before the text of a part, so that the comments at its top belong to its statement."""

cst.parse_module(_FIRST)  # LibCST imports its parser with the first text: now, not amid the program

_Place = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One statement of a module, or several that share lines: lines ``first`` to ``last``."""

    first: int
    last: int
    module: cst.Module
    nodes: dict[tuple[str, _Place], cst.CSTNode]
    parents: dict[cst.CSTNode, cst.CSTNode]


class File:
    """The parts of a file, each parsed when asked for; lines ``first`` to ``last`` are one."""

    def __init__(self, file: str, first: int = 0, last: int = 0) -> None:
        self.file = file
        self.source = source.parsed(file)
        self.indent = _indent(self.source)
        self._spans = _joined(_spans(self.source), first, last)

    @property
    def config(self) -> cst.PartialParserConfig:
        """What new code is parsed with."""
        return cst.PartialParserConfig(default_indent=self.indent)

    def part(self, line: int) -> Part:
        """Return the part that a line belongs to."""
        at = bisect_right(self._spans, (line, len(self.source.lines) + 1)) - 1
        if at < 0:
            raise CannotBeWrittenError
        first, last = self._spans[at]
        text = "".join(self.source.lines[first - 1 : last])
        return _parsed(text, first, last, self.indent)

    def node(self, at: ast.AST) -> cst.CSTNode:
        """Return the node that stands for the same text as one of Python's own tree."""
        if not isinstance(at, places.Located):
            raise CannotBeWrittenError
        site = places.of_node(at, self.file)
        place = (site.line, site.column, site.end_line, site.end_column)
        kind = type(at).__name__
        nodes = self.part(site.line).nodes
        kinds = _CONSTANTS if kind == "Constant" else (_NAMES.get(kind, kind),)
        found = next((nodes[name, place] for name in kinds if (name, place) in nodes), None)
        if found is None:  # Python's own places of what stands in an f-string are wrong before 3.12
            raise CannotBeWrittenError
        return found

    def expression(self, at: ast.expr) -> cst.BaseExpression:
        """Return the node of an expression."""
        node = self.node(at)
        assert isinstance(node, cst.BaseExpression)
        return node


def _spans(file: source.Source) -> list[tuple[int, int]]:
    """Return the first and last line of each part: all lines belong to one."""
    ends: list[int] = []
    starts: list[int] = []
    for statement in file.tree.body:
        decorators = getattr(statement, "decorator_list", ())
        start = min(node.lineno for node in (statement, *decorators))
        end = statement.end_lineno or statement.lineno
        if ends and start <= ends[-1]:
            ends[-1] = max(end, ends[-1])
        else:
            starts.append(start)
            ends.append(end)
    if not ends:
        return []
    firsts = [1, *(end + 1 for end in ends[:-1])]
    return list(zip(firsts, [*ends[:-1], len(file.lines)], strict=True))


def _joined(spans: list[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    """Return the spans with those of some lines put together."""
    inside = [span for span in spans if span[1] >= first and span[0] <= last]
    if len(inside) < 2:
        return spans
    whole = (inside[0][0], inside[-1][1])
    return sorted([whole, *(span for span in spans if span not in inside)])


def _indent(file: source.Source) -> str:
    """Return what the first block of a file is indented by."""
    for node in ast.walk(file.tree):
        body = getattr(node, "body", None)
        if isinstance(node, ast.stmt) and isinstance(body, list) and node.col_offset == 0:
            first = body[0]
            text: str = file.lines[first.lineno - 1][: first.col_offset]
            if first.lineno > node.lineno and text.isspace():
                return text
    return "    "


@lru_cache(maxsize=6)
def _parsed(text: str, first: int, last: int, indent: str) -> Part:
    config = cst.PartialParserConfig(default_indent=indent)
    try:
        module = cst.parse_module(_FIRST + text, config)
    except cst.ParserSyntaxError:
        raise CannotBeWrittenError from None
    if module.code != _FIRST + text:
        raise CannotBeWrittenError
    positions = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
    nodes: dict[tuple[str, _Place], cst.CSTNode] = {}
    parents: dict[cst.CSTNode, cst.CSTNode] = {}
    stack: list[cst.CSTNode] = [module]
    while stack:
        node = stack.pop()
        at = positions.get(node)
        if isinstance(at, CodeRange):
            nodes.setdefault((type(node).__name__, _place(node, at, positions, first - 2)), node)
        for child in _children(node):
            parents[child] = node
            stack.append(child)
    return Part(first, last, module, nodes, parents)


def _place(
    node: cst.CSTNode, at: CodeRange, positions: Mapping[cst.CSTNode, CodeRange], before: int
) -> _Place:
    """Return the place of a node as Python counts: with the parentheses of a tuple."""
    start, end = at.start, at.end
    if isinstance(node, cst.Tuple | cst.GeneratorExp) and node.lpar:
        start, end = positions[node.lpar[-1]].start, positions[node.rpar[0]].end
    elif isinstance(node, cst.GeneratorExp):  # the parentheses are those of the call
        return (start.line + before, start.column, end.line + before, end.column + 2)
    return (start.line + before, start.column + 1, end.line + before, end.column + 1)


@lru_cache(maxsize=256)
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    return tuple(kind.__dataclass_fields__)


def _children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for name in _fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            yield value
        elif isinstance(value, tuple | list):
            yield from (item for item in value if isinstance(item, cst.CSTNode))
