"""Makes the interpreter's frames: of functions that are called ahead, and of those that run; where
the code of one is a statement of a notebook's cell, it stands in that of the whole cell.
"""

from __future__ import annotations
import __future__

import ast
import sys
import weakref
from functools import reduce
from operator import or_
from types import CodeType, FrameType
from typing import Any, TypeAlias

from gradscope.code import source
from gradscope.code.bytecode import MISSING, NULL_FIRST, Flow, Instruction, Loop, flow_of
from gradscope.formatting import gathered
from gradscope.program.ahead.values import NULL, FutureValue, Suspended, lost, reading
from gradscope.program.sites import USER, owner_of
from gradscope.program.variables import (
    LOCALS_PROXY,
    is_module_level,
    local_variables,
    namespace_of,
    on_stack,
    slot,
)

SUSPENDED = 0x20 | 0x80 | 0x200  # inspect's flags of generators and coroutines
NO_RESULT = ("STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "DELETE_ATTR", "DELETE_SUBSCR")
_UNREADABLE = ("BEFORE_WITH", "LOAD_SPECIAL", "DICT_MERGE")


class Frame(FutureValue):
    """A frame of the interpreter: ``index`` is the instruction that it stands at.

    ``names`` is the mapping in which a module or class keeps its variables. ``live`` is the frame
    of the program's that it continues, ``depth`` how many live ones are within that; ``stored`` are
    the variables that were stored since.
    """

    __slots__ = (
        *("_again", "_loops", "code", "depth", "flow", "handled", "index", "live", "names"),
        *("of_user", "space", "stack", "stored", "suspended", "variables"),
    )

    def __init__(self, code: CodeType, space: Any, names: Any = None) -> None:
        self.code = code
        self.flow: Flow = flow_of(code)
        self.space = space
        self.names = names
        self.variables: list[Any] = [NULL] * len(self.flow.slots)
        self.stack: list[Any] = []
        self.index = 0
        self.handled: list[Any] = []
        self.suspended: Suspended | None = None
        self.of_user = owner_of(code) == USER
        self.live: FrameType | None = None
        self.depth = 0
        self.stored: set[int] = set()
        self._loops: tuple[Loop, ...] = ()
        self._again: frozenset[int] = frozenset()
        reading.add(self)

    @property
    def instruction(self) -> Instruction:
        """The instruction it stands at."""
        return self.flow.instructions[self.index]

    @property
    def again(self) -> bool:
        """Whether a loop in which the frame was taken over is in a later iteration."""
        return self.index in self._again

    def goes_back(self) -> bool:
        """Note that a jump is taken; return whether it begins another iteration of such a loop."""
        loop = next((each for each in self._loops if self.index in each.sources), None)
        if loop is not None and self.index not in self._again:
            self._again = loop.body
        return loop is not None

    def push(self, value: Any, null: bool) -> None:
        """Put a value on the stack, with what a call takes beside what it calls if ``null``."""
        self.stack += [NULL, value] if null and NULL_FIRST else [value, NULL][: 1 + null]

    def pop(self, count: int) -> list[Any]:
        """Take the top values off the stack."""
        if not count:
            return []
        found = self.stack[-count:]
        del self.stack[-count:]
        return found


def frame_of(live: FrameType, *, waits: bool | None = True) -> Frame:
    """Return the interpreter's frame for one of the program's, with its variables and its stack.

    ``waits``: it is in a call, whose operands are not on its stack any more; False: it is about to
    run the instruction it stands at; None: it is that of a generator which waits to be resumed.
    """
    code, lasti = standing(live)
    frame = Frame(code, live.f_globals)
    frame.live = live
    flow = frame.flow
    # From Python 3.13 on a generator stands behind the instruction that has suspended it.
    is_behind = waits is None and sys.version_info >= (3, 13)
    frame.index = max(flow.index(lasti) - is_behind, 0)
    if is_module_level(live):
        frame.names = live.f_globals
    elif not code.co_flags & 1:
        names = namespace_of(live)
        if type(names) is not dict:
            if type(names) is not LOCALS_PROXY or code.co_name != "<module>":
                lost("a class body")
            names = live.f_globals  # a comprehension of the module runs in its frame
        frame.names = names
    if code is live.f_code:
        _fill(frame, live)
    depth = flow.depths.get(frame.index)
    if depth is None:
        return lost("an instruction that cannot be reached")  # type: ignore[no-any-return]
    kept = _kept(frame, depth, waits)
    frame.stack = [_known(on_stack(live, at)) for at in range(kept)]
    frame._loops = flow.loops_around(frame.index)
    return frame


def _known(found: Any) -> Any:
    return NULL if found is MISSING else found


def _fill(frame: Frame, live: FrameType) -> None:
    """Read the variables: by their slots, as these have the cells; what is not there by name."""
    named = dict(local_variables(live)) if frame.code.co_flags & 1 else {}
    cells = {*frame.code.co_cellvars, *frame.code.co_freevars}
    for at, name in enumerate(frame.flow.slots):
        is_own = name in named and name not in cells
        frame.variables[at] = named[name] if is_own else _known(slot(live, at))


def _kept(frame: Frame, depth: int, waits: bool | None) -> int:
    """Return how many values of the stack are still the frame's own."""
    instruction = frame.instruction
    name = instruction.opname
    if waits is None:
        if name not in ("YIELD_VALUE", "RETURN_GENERATOR"):
            lost("a generator that is not at a yield")
        return depth - (name == "YIELD_VALUE")  # what it gave is not its own any more
    if not waits or name == "FOR_ITER":
        return depth
    if name in ("SEND", "UNPACK_SEQUENCE", "UNPACK_EX"):
        return depth - 1
    if name in _UNREADABLE:
        lost(f"a call by {name}")
    results = 0 if name in NO_RESULT else 1 + instruction.null
    return max(depth + instruction.effect - results, 0)


# where a frame stands

_FUTURE = reduce(or_, (getattr(__future__, n).compiler_flag for n in __future__.all_feature_names))

_TIMED = "<timed exec>"
"""What IPython calls all of a cell under ``%%time`` but its last expression. Its text is known to
the function that runs both.
"""


_Standing: TypeAlias = tuple[CodeType, int]
"""A code object, and where in it the instruction is that runs now."""

_wholes: dict[int, tuple[weakref.ref[CodeType], dict[int, _Standing]]] = {}
"""Where the instructions of one statement's code stand in that of the whole cell, by their offsets:
by the id of the statement's code, as long as that lives.
"""


def standing(frame: FrameType) -> _Standing:
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
    if known is None or known[0]() is not code:
        text = _text_of(frame)
        whole = None if text is None else _whole_of(code, text)
        statement = weakref.ref(code, lambda _: _wholes.pop(key, None))
        known = _wholes[key] = statement, {} if whole is None else _in_whole(code, whole)
    flow = flow_of(code)
    index = flow.index(lasti)
    return own if index < 0 else known[1].get(flow.instructions[index].offset, own)


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


def _in_whole(code: CodeType, whole: CodeType) -> dict[int, _Standing]:
    """Return where each instruction stands in the whole, if the text tells them apart."""
    found = _places(whole)
    return {
        here.offset: (whole, there.offset)
        for place, alike in _places(code).items()
        if len(alike) == len(found.get(place, ()))
        for here, there in zip(alike, found[place], strict=True)
    }


def _places(code: CodeType) -> dict[tuple[object, ...], list[Instruction]]:
    """Return alike instructions, by what they do and the text that they come of."""
    positions, every = [*code.co_positions()], flow_of(code).instructions
    return gathered(every, lambda each: (each.opname, each.name, positions[each.offset // 2]))
