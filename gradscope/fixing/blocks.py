"""Puts statements into blocks, takes them out and moves them, with comments and semicolons kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import libcst as cst

from gradscope.fixing.edits import CannotBeWrittenError

Line = cst.SimpleStatementLine | cst.BaseCompoundStatement
Wrap = Callable[[Sequence[Line]], cst.BaseCompoundStatement]
Block = cst.Module | cst.IndentedBlock | cst.SimpleStatementSuite


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One change of a block: at the statements from ``first`` to ``last``.

    ``before`` and ``after`` are put there. ``wrap`` makes one statement of them, None takes them
    out; ``with_comments``, with the comments above.
    """

    first: cst.CSTNode
    last: cst.CSTNode
    before: tuple[Line, ...] = ()
    after: tuple[Line, ...] = ()
    wrap: Wrap | None = None
    removed: bool = False
    with_comments: bool = False


@dataclass(slots=True, eq=False)
class _Item:
    """A statement on a line of its own; items of one ``group`` share a line in the source."""

    origin: cst.CSTNode | None
    line: Line
    group: int


def changed(original: Block, updated: Block, steps: Sequence[Step]) -> Block:
    """Return a block with the steps taken."""
    items = _items(original, updated)
    footer: list[cst.EmptyLine] = []
    for step in steps:
        footer += _take(step, items)
    if isinstance(updated, cst.SimpleStatementSuite):
        return _suite(updated, items)
    body = _joined(items)
    if isinstance(updated, cst.Module):
        return updated.with_changes(body=body, footer=[*footer, *updated.footer])
    return updated.with_changes(body=body, footer=[*footer, *updated.footer])


def _items(original: Block, updated: Block) -> list[_Item]:
    """Return the statements of a block, each on a line of its own."""
    if isinstance(original, cst.SimpleStatementSuite):
        assert isinstance(updated, cst.SimpleStatementSuite)
        line = cst.SimpleStatementLine(updated.body)
        return _alone(original.body, line, 0)
    items: list[_Item] = []
    for group, (old, new) in enumerate(zip(original.body, updated.body, strict=True)):
        if isinstance(old, cst.SimpleStatementLine):
            assert isinstance(new, cst.SimpleStatementLine)
            items += _alone(old.body, new, group)
        else:
            assert isinstance(new, cst.BaseCompoundStatement)
            items.append(_Item(old, new, group))
    return items


def _alone(
    originals: Sequence[cst.BaseSmallStatement], line: cst.SimpleStatementLine, group: int
) -> list[_Item]:
    """Return the statements of a line one by one: the first with its comments, the last its end."""
    items = []
    for at, (old, new) in enumerate(zip(originals, line.body, strict=True)):
        own = cst.SimpleStatementLine([new])
        if at == 0:
            own = own.with_changes(leading_lines=line.leading_lines)
        if at == len(line.body) - 1:
            own = own.with_changes(trailing_whitespace=line.trailing_whitespace)
        items.append(_Item(old, own, group))
    return items


def _take(step: Step, items: list[_Item]) -> list[cst.EmptyLine]:
    """Take a step; return the comments that are left without a statement below."""
    first = next((i for i, item in enumerate(items) if item.origin is step.first), None)
    last = next((i for i, item in enumerate(items) if item.origin is step.last), None)
    if first is None or last is None or last < first:
        raise CannotBeWrittenError
    group = items[first].group
    rest = _left(items, last + 1, items[first].line, step) if step.removed else None
    inside: list[_Item] = items[first : last + 1]
    if step.removed:
        inside = []
    elif step.wrap is not None:
        inside = [_Item(items[first].origin, _wrapped(step.wrap, inside), group)]
    if rest and last + 1 < len(items):
        below = items[last + 1]
        lines = (*rest, *below.line.leading_lines)
        items[last + 1] = _Item(
            below.origin, below.line.with_changes(leading_lines=lines), below.group
        )
        rest = None
    items[first : last + 1] = [
        *(_Item(None, line, group) for line in step.before),
        *inside,
        *(_Item(None, line, items[last].group) for line in step.after),
    ]
    return list(rest or ())


def _left(items: list[_Item], below: int, removed: Line, step: Step) -> Sequence[cst.EmptyLine]:
    """Return what stands above a statement that is taken out and stays: comments, a blank line."""
    lines = removed.leading_lines
    if step.with_comments:
        lines = lines[: len(lines) - len(right_above(lines))]
    if any(line.comment is not None for line in lines):
        return lines
    has_space = below < len(items) and bool(items[below].line.leading_lines)
    return () if has_space or below >= len(items) else lines


def right_above(lines: Sequence[cst.EmptyLine]) -> Sequence[cst.EmptyLine]:
    """Return the comments that stand right above a statement."""
    for at in range(len(lines) - 1, -1, -1):
        if lines[at].comment is None:
            return lines[at + 1 :]
    return lines


def _wrapped(wrap: Wrap, inside: Sequence[_Item]) -> Line:
    """Return one statement for several, with the comments above the first of them."""
    first = inside[0].line
    lines = [first.with_changes(leading_lines=()), *(_blank(item.line) for item in inside[1:])]
    made = wrap([_ended(line) for line in lines])
    return made.with_changes(leading_lines=first.leading_lines)


def _blank(line: Line) -> Line:
    """Return a line with the empty lines above it left empty where it is indented further."""
    above = [
        each.with_changes(indent=False) if each.comment is None else each
        for each in line.leading_lines
    ]
    return line.with_changes(leading_lines=above)


def _joined(items: Sequence[_Item]) -> list[Line]:
    """Return the lines of a block: what shared a line does so again, where it can."""
    sizes: dict[int, int] = {}
    for item in items:
        if item.origin is not None:
            sizes[item.group] = sizes.get(item.group, 0) + 1
    lines: list[Line] = []
    open_group = -1
    for item in items:
        last = lines[-1] if lines else None
        shares = item.group == open_group and sizes.get(item.group, 0) > 1
        if (
            shares
            and isinstance(last, cst.SimpleStatementLine)
            and isinstance(item.line, cst.SimpleStatementLine)
        ):
            lines[-1] = _put_together(last, item.line)
        else:
            lines.append(item.line)
        open_group = item.group
    return [_ended(line) for line in lines]


def _put_together(
    first: cst.SimpleStatementLine, second: cst.SimpleStatementLine
) -> cst.SimpleStatementLine:
    end = second.trailing_whitespace
    if end.comment is None:
        end = first.trailing_whitespace
    return first.with_changes(body=[*first.body, *second.body], trailing_whitespace=end)


def _ended(line: Line) -> Line:
    """Return a line without the semicolon of a statement that came after it."""
    if not isinstance(line, cst.SimpleStatementLine):
        return line
    last = line.body[-1]
    end = last.semicolon
    space = end.whitespace_after if isinstance(end, cst.Semicolon) else None
    if isinstance(space, cst.SimpleWhitespace) and space.value:
        last = last.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
        return line.with_changes(body=[*line.body[:-1], last])
    return line


def _suite(suite: cst.SimpleStatementSuite, items: Sequence[_Item]) -> Block:
    """Return the body of ``if x: y = f()`` on its line, or as a block if it has to be one."""
    if items and all(isinstance(item.line, cst.SimpleStatementLine) for item in items):
        body = [small for item in items for small in _smalls(item.line)]
        line = _ended(cst.SimpleStatementLine(body))
        assert isinstance(line, cst.SimpleStatementLine)
        return suite.with_changes(body=line.body)
    return cst.IndentedBlock(_joined(items), header=suite.trailing_whitespace)


def _smalls(line: Line) -> Sequence[cst.BaseSmallStatement]:
    assert isinstance(line, cst.SimpleStatementLine)
    return line.body
