"""Collects the changes to a file's tree, and gives them as the lines that change."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterable
from typing import Any

import libcst as cst

from gradscope.fixing.blocks import Line, Step, Wrap, changed, right_above
from gradscope.fixing.edits import CannotBeWrittenError, checked
from gradscope.fixing.trees import File, Part
from gradscope.model import Edit

Make = Callable[[Any], cst.CSTNode]
"""What makes a new node of one whose own parts have been changed already."""


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
