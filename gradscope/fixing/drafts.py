"""Collects the changes to a file's tree, and gives them as the lines that change."""

from __future__ import annotations

import ast
import difflib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from gradscope.code import places, source
from gradscope.fixing.blocks import Line, Step, Wrap, changed, right_above
from gradscope.fixing.edits import CannotBeWrittenError, checked
from gradscope.model import Edit

Make = Callable[[Any], cst.CSTNode]
"""What makes a new node of one whose own parts have been changed already."""

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

_Place = tuple[int, int, int, int]


class Draft:
    """Changes to one file; the lines from ``first`` to ``last`` are of one part."""

    def __init__(self, file: str, first: int = 0, last: int = 0) -> None:
        self.file = File(file, first, last)
        self._parts: dict[int, Part] = {}
        self._makes: dict[cst.CSTNode, list[Make]] = {}
        self._steps: dict[cst.CSTNode, list[Step]] = {}

    def change(self, at: ast.AST, make: Make) -> None:
        """Have a node replaced by what ``make`` makes of it."""
        self.change_node(self._part(at), self.file.node(at), make)

    def change_node(self, part: Part, node: cst.CSTNode, make: Make) -> None:
        """Have a node of the concrete tree replaced."""
        self._parts[part.first] = part
        self._makes.setdefault(node, []).append(make)

    def before(self, at: ast.stmt, *code: str | Line) -> None:
        """Put statements before one, above its comments."""
        self._step(at, at, before=self.lines(code))

    def after(self, at: ast.stmt, *code: str | Line) -> None:
        """Put statements after one."""
        self._step(at, at, after=self.lines(code))

    def remove(self, at: ast.stmt) -> None:
        """Take a statement out; the comments above it stay."""
        self._step(at, at, removed=True)

    def replace(self, at: ast.stmt, *code: str | Line) -> None:
        """Put statements in the place of one."""
        self._step(at, at, before=self.lines(code), removed=True)

    def wrap(self, first: ast.stmt, last: ast.stmt, make: Wrap) -> None:
        """Make one statement of those from the first to the last, which stand in one block."""
        self._step(first, last, wrap=make)

    def cut(self, at: ast.stmt) -> Line:
        """Take a statement out with the comments above it, and return it."""
        self._step(at, at, removed=True, with_comments=True)
        return self.copy(at)

    def copy(self, at: ast.stmt, *, comments: bool = True) -> Line:
        """Return a statement on a line of its own, with the comments right above it."""
        part, node = self._part(at), self.file.node(at)
        line: Line
        if isinstance(node, cst.BaseSmallStatement):
            around = part.parents[node]
            small = node.deep_clone().with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
            line = cst.SimpleStatementLine([small])
            is_alone = isinstance(around, cst.SimpleStatementLine) and len(around.body) == 1
            if is_alone and isinstance(around, cst.SimpleStatementLine):
                line = around.deep_clone()
        else:
            assert isinstance(node, cst.BaseCompoundStatement)
            line = node.deep_clone()
        above = right_above(line.leading_lines) if comments else ()
        return line.with_changes(leading_lines=above)

    def lines(self, code: Iterable[str | Line]) -> tuple[Line, ...]:
        """Return new statements as nodes."""
        made = []
        for each in code:
            line = cst.parse_statement(each, self.file.config) if isinstance(each, str) else each
            assert isinstance(line, cst.SimpleStatementLine | cst.BaseCompoundStatement)
            made.append(line)
        return tuple(made)

    def edits(self) -> tuple[Edit, ...]:
        """Return the lines that change; none if nothing does or the file would not parse."""
        found = [edit for part in self._parts.values() for edit in self._edits(part)]
        return checked(*sorted(found, key=lambda edit: edit.line))

    def _block_of(self, at: ast.stmt) -> cst.CSTNode:
        """Return the block that a statement stands in."""
        part, node = self._part(at), self.file.node(at)
        around = part.parents[node]
        return part.parents[around] if isinstance(around, cst.SimpleStatementLine) else around

    def _part(self, at: ast.AST) -> Part:
        return self.file.part(getattr(at, "lineno", 0))

    def _step(self, first: ast.stmt, last: ast.stmt, **changes: Any) -> None:
        block = self._block_of(first)
        if self._block_of(last) is not block:
            raise CannotBeWrittenError
        part = self._part(first)
        self._parts[part.first] = part
        step = Step(self.file.node(first), self.file.node(last), **changes)
        self._steps.setdefault(block, []).append(step)

    def _edits(self, part: Part) -> Iterable[Edit]:
        module = part.module
        rewriter = _Rewriter(part, self._makes, self._steps)
        new = module.visit(rewriter)
        old_lines, new_lines = (each.code.split("\n")[1:-1] for each in (module, new))
        for first, last, lines in _hunks(old_lines, new_lines):
            end = part.first + last - 1 if last > first + 1 else 0
            yield Edit(self.file.file, part.first + first, "\n".join(lines), end)


class _Rewriter(cst.CSTTransformer):
    """Changes the nodes of a part, and looks at those alone that lead to them."""

    def __init__(
        self,
        part: Part,
        makes: dict[cst.CSTNode, list[Make]],
        steps: dict[cst.CSTNode, list[Step]],
    ) -> None:
        super().__init__()
        self._makes = makes
        self._steps = steps
        self._way: set[cst.CSTNode] = set()
        for node in (*makes, *steps):
            at: cst.CSTNode | None = node
            while at is not None and at not in self._way:
                self._way.add(at)
                at = part.parents.get(at)

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node in self._way

    def on_leave(self, original: Any, updated: Any) -> Any:
        for make in self._makes.get(original, ()):
            updated = make(updated)
        steps = self._steps.get(original)
        return changed(original, updated, steps) if steps else updated


def _hunks(old: list[str], new: list[str]) -> list[tuple[int, int, list[str]]]:
    """Return what to replace: from and up to which line, by which lines.

    An insertion takes the line before it along, as an edit replaces at least one line.
    """
    found: list[tuple[int, int, list[str]]] = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for what, i, last, j, end in matcher.get_opcodes():
        if what == "equal":
            continue
        first, lines = i, new[j:end]
        if first == last or lines == [""]:
            if first:
                first, lines = first - 1, [old[first - 1], *lines]
            else:
                last, lines = last + 1, [*lines, old[last]]
        if found and found[-1][1] > first:
            before = found.pop()
            lines = [*before[2], *lines[before[1] - first :]]
            first = before[0]
        found.append((first, last, lines))
    return found


cst.parse_module(_FIRST)  # LibCST imports its parser with the first text: now, not amid the program


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
