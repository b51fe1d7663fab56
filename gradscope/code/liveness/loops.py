"""Tells which loop an instruction is in, what that loop rebinds, and where a name is assigned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import CodeType

from gradscope.code import places
from gradscope.code.liveness.flow import Loop, flow_of
from gradscope.code.liveness.opcodes import Action
from gradscope.code.liveness.survey import survey_of
from gradscope.model import Site


@dataclass(frozen=True, slots=True)
class LoopSpan:
    """A loop: the place of its ``for`` or ``while``, its last line, and which instruction it starts at."""

    site: Site
    last_line: int
    header: int


def enclosing_loop(code: CodeType, lasti: int) -> LoopSpan | None:
    """The innermost loop around an instruction; None where it is in none."""
    loops = enclosing_loops(code, lasti)
    return loops[0] if loops else None


def enclosing_loops(code: CodeType, lasti: int) -> tuple[LoopSpan, ...]:
    """All loops around an instruction, innermost first."""
    flow = flow_of(code)
    index = flow.index(lasti)
    spans = {}  # a `while` with a `continue` has two sets of back edges: the wider of them is the loop
    for loop in flow.loops:
        if index in loop.body:
            span = _span(code, loop)
            spans[span.site.line] = span
    return tuple(spans.values())


def assigned_in(code: CodeType, loop: LoopSpan) -> frozenset[str]:
    """The names and paths (``self.h``, ``cache['k']``) that are stored or deleted somewhere in the loop."""
    stores = survey_of(code).stores
    deleted = flow_of(code).instructions
    body = _loop(code, loop).body
    names = {name for index in body for name in stores.get(index, ())}
    return frozenset(
        names | {deleted[index].name for index in body if deleted[index].action is Action.DELETE}
    )


def is_rebound_each_iteration(code: CodeType, loop: LoopSpan, name: str) -> bool:
    """Whether every way through the loop's body, back to its start, stores the name."""
    flow, stores = flow_of(code), survey_of(code).stores
    body = _loop(code, loop).body
    seen: set[int] = set()
    waiting = [loop.header]
    while waiting:
        index = waiting.pop()
        if index in seen or name in stores.get(index, ()):
            continue
        seen.add(index)
        for successor in flow.successors(index):
            if successor == loop.header:
                return False
            if successor in body:
                waiting.append(successor)
    return True


def assignment_sites(code: CodeType, name: str) -> tuple[Site, ...]:
    """Where the name or path is assigned in this code, in the order of the source."""
    instructions = flow_of(code).instructions
    stores = survey_of(code).stores
    sites = (
        places.of_instruction(code, instructions[index].offset)
        for index in sorted(stores)
        if name in stores[index]
    )
    return tuple(sorted(dict.fromkeys(sites), key=lambda site: (site.line, site.column)))


def _loop(code: CodeType, span: LoopSpan) -> Loop:
    return next(loop for loop in flow_of(code).loops if loop.header == span.header)


def _span(code: CodeType, loop: Loop) -> LoopSpan:
    instructions = flow_of(code).instructions
    positions = list(code.co_positions())
    lines = {
        index: positions[instruction.offset // 2][0] or 0
        for index, instruction in enumerate(instructions)
    }
    shown = loop.header
    if instructions[shown].action is not Action.NEXT:
        # A `while` leaves its test at the header or at the way back, `while True` no more than a NOP before the body.
        left = [shown - 1] if shown and instructions[shown - 1].opname == "NOP" else []
        shown = min((*loop.sources, *left, shown), key=lambda index: lines[index])
    site = places.of_instruction(code, instructions[shown].offset)
    if site.end_line > site.line:  # the whole statement
        site = replace(site, end_line=site.line, end_column=0)
    return LoopSpan(site, max(lines[index] for index in loop.body), loop.header)
