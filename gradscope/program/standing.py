"""Finds the rest of a notebook's cell, of which Python is given one statement after the other."""

from __future__ import annotations
import __future__

import ast
import weakref
from functools import reduce
from operator import or_
from types import CodeType, FrameType
from typing import NamedTuple

from gradscope.code import source
from gradscope.code.bytecode import Instruction, flow_of
from gradscope.program.variables import local_variables
from gradscope.units import gathered

_FUTURE = reduce(or_, (getattr(__future__, n).compiler_flag for n in __future__.all_feature_names))

_TIMED = "<timed exec>"
"""What IPython calls all of a cell under ``%%time`` but its last expression. Its text is known to
the function that runs both.
"""


class _Whole(NamedTuple):
    """The code of a whole cell, and which of its offsets are those of one statement's code."""

    statement: weakref.ref[CodeType]
    code: CodeType | None
    offsets: dict[int, int]


_wholes: dict[int, _Whole] = {}
"""By the id of the statement's code, as long as that lives."""


def standing(frame: FrameType) -> tuple[CodeType, int]:
    """Return the code that tells the way ahead, and the instruction in it that runs now, as
    ``frame.f_lasti`` gives it. Where a frame's own code is that of one statement of a cell, it is
    that of the whole: what comes next is the rest of the cell's text, and nothing beyond it.

    The whole is compiled from the text, and never executed.
    """
    code, lasti = own = frame.f_code, frame.f_lasti
    if code.co_name != "<module>":
        return own
    key = id(code)
    known = _wholes.get(key)
    if known is None or known.statement() is not code:
        text = _text_of(frame)
        whole = None if text is None else _whole_of(code, text)
        offsets = {} if whole is None else _offsets(code, whole)
        statement = weakref.ref(code, lambda _: _wholes.pop(key, None))
        known = _wholes[key] = _Whole(statement, whole, offsets)
    flow = flow_of(code)
    index = flow.index(lasti)
    offset = known.offsets.get(flow.instructions[index].offset) if index >= 0 else None
    return own if offset is None or known.code is None else (known.code, offset)


def forget_wholes() -> None:
    """Let go of the code of all cells."""
    _wholes.clear()


def _text_of(frame: FrameType) -> source.SourceFile | None:
    """Return the text of a cell; None for code that is no cell's."""
    file = frame.f_code.co_filename
    if source.is_in_memory(file):
        return source.parsed(file)
    if file == _TIMED and frame.f_back is not None:
        text = dict(local_variables(frame.f_back)).get("expr")
        return source.SourceFile(text.splitlines(keepends=True)) if type(text) is str else None
    return None


def _whole_of(code: CodeType, text: source.SourceFile) -> CodeType | None:
    """Return the code of the whole text; None where ``code`` reaches to its end itself."""
    body = text.tree.body
    ends = [(line, column) for _, line, _, column in code.co_positions() if line and column]
    if not body or not ends or max(ends) > (body[-1].lineno, body[-1].col_offset):
        return None
    if text.code is None:
        flags = code.co_flags & _FUTURE | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        try:
            with source.quietly():
                text.code = compile(text.tree, code.co_filename, "exec", flags, dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError):  # a statement alone may be more
            return None
    return text.code


def _offsets(code: CodeType, whole: CodeType) -> dict[int, int]:
    """Return where each instruction stands in the whole, if the text tells them apart."""
    found = _places(whole)
    return {
        here.offset: there.offset
        for place, alike in _places(code).items()
        if len(alike) == len(found.get(place, ()))
        for here, there in zip(alike, found[place], strict=True)
    }


def _places(code: CodeType) -> dict[tuple[object, ...], list[Instruction]]:
    """Return alike instructions, by what they do and the text that they come of."""
    positions, every = [*code.co_positions()], flow_of(code).instructions
    return gathered(every, lambda each: (each.opname, each.name, positions[each.offset // 2]))
