"""Defines what can be asked of the loops that a frame is in, and finds their iterators."""

from __future__ import annotations

from collections.abc import Collection
from types import CodeType
from typing import Protocol

from gradscope.code.liveness.flow import flow_of
from gradscope.code.liveness.opcodes import Action
from gradscope.code.liveness.survey import survey_of


class Loops(Protocol):
    """What the iterators of the loops around a place will still give, by their depth on the
    stack.
    """

    def coming(self, depth: int, name: str) -> Collection[str] | None:
        """Return what leads from an element to the object that a name held, for each way; None
        where the value is no iterator or the name is not known.
        """

    def is_spent(self, depth: int) -> bool:
        """Return whether it will give nothing more."""

    def header(self, depth: int) -> int:
        """Return the instruction that takes the next element."""

    def keys(self, code: CodeType, at: int, level: int, *, is_top: bool) -> Collection[str] | None:
        """Return the parts that a subscript can take once the next iteration of the loop with this
        number has begun, ANYWHERE among them if it takes each; None where that is not known.
        """


def iterators_at(code: CodeType, lasti: int) -> dict[int, int]:
    """Return where on the stack the loops around an instruction keep their iterators: the depth,
    and the instruction that takes the next element.
    """
    flow, stacks = flow_of(code), survey_of(code).stacks
    headers = [loop.header for loop in flow.loops_around(flow.index(lasti))]
    return {
        len(stacks[header]) - 1: header
        for header in headers
        if flow.instructions[header].action is Action.NEXT and stacks.get(header)
    }


def loops_at(code: CodeType, lasti: int) -> int:
    """Return how many loops are around an instruction."""
    flow = flow_of(code)
    return len(flow.loops_around(flow.index(lasti)))
