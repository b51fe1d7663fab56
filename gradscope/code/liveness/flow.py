"""Decodes a code object into instructions with their successors, exception handlers and loops."""

from __future__ import annotations

import dis
import weakref
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

from gradscope.code.liveness.opcodes import (
    ACTIONS,
    CACHE,
    ENDS_FLOW,
    EXTENDED_ARG,
    LOOPS_BACK,
    Action,
    name_index,
    pushes_null,
    stack_effect,
)
from gradscope.model import Site

MISSING: Any = object()
"""Stands for "no constant", as None is one."""


class Instruction(NamedTuple):
    """One instruction; ``jump`` and ``handler`` are indices of instructions, or -1."""

    offset: int
    opname: str
    action: Action
    arg: int
    name: str
    second: str  # the other name of an instruction that does two
    constant: Any
    keywords: tuple[str, ...]  # of a call
    null: bool
    effect: int
    jump: int
    jump_effect: int
    falls: bool
    handler: int
    handler_depth: int
    handler_pushes: int


class Loop(NamedTuple):
    """A natural loop: where its back edges ``sources`` lead to, and all instructions in it."""

    header: int
    body: frozenset[int]
    sources: tuple[int, ...]


class Flow:
    """The control flow of a code object, without a reference to it: a cache keeps none alive."""

    __slots__ = ("_loops", "_units", "instructions", "joins", "sites", "survey")

    def __init__(self, code: CodeType) -> None:
        self.instructions, self._units = _decode(code)
        # Instructions that control can come to in several ways; others follow the one before.
        self.joins = {
            target for i in self.instructions for target in (i.jump, i.handler) if target >= 0
        }
        self._loops: tuple[Loop, ...] | None = None
        self.sites: dict[int, Site] = {}
        """The places of instructions that were asked for: each takes a walk."""
        self.survey: Any = (
            None  # what the machine learnt in one pass over the whole code, see survey.py
        )

    def index(self, lasti: int) -> int:
        """Return the instruction at ``f_lasti``, which may be in its caches; -1 before the
        first.
        """
        return self._units[lasti // 2] if 0 <= lasti // 2 < len(self._units) else -1

    def successors(self, index: int) -> Iterator[int]:
        """Yield where control can go from an instruction, except on an exception."""
        instruction = self.instructions[index]
        if instruction.falls and index + 1 < len(self.instructions):
            yield index + 1
        if instruction.jump >= 0:
            yield instruction.jump

    @property
    def loops(self) -> tuple[Loop, ...]:
        """All loops, innermost first."""
        if self._loops is None:
            self._loops = _find_loops(self)
        return self._loops

    def loops_around(self, index: int) -> tuple[Loop, ...]:
        """Return all loops around an instruction, innermost first."""
        return tuple(loop for loop in self.loops if index in loop.body)


def level_after(loops: tuple[Loop, ...], level: int, source: int, target: int) -> int:
    """Return how many of the loops around a starting point, innermost first, have begun their next
    iteration after a step.

    A back edge begins the next iteration of its loop, and of those in it; leaving the loop ends
    that.
    """
    for depth, loop in enumerate(loops, 1):
        if target == loop.header and source in loop.sources:
            level = max(level, depth)
    return 0 if level and target not in loops[level - 1].body else level


_flows: dict[int, tuple[weakref.ref[CodeType], Flow]] = {}


def flow_of(code: CodeType) -> Flow:
    """Return the flow of a code object, kept by identity: hashing code hashes its constants."""
    key = id(code)
    if (known := _flows.get(key)) is not None and known[0]() is code:
        return known[1]
    flow = Flow(code)
    _flows[key] = (weakref.ref(code, lambda _: _flows.pop(key, None)), flow)
    return flow


def forget_flows() -> None:
    """Let go of what is known of all code: an instruction holds the code of a function in it."""
    _flows.clear()


def _decode(code: CodeType) -> tuple[tuple[Instruction, ...], list[int]]:
    raw = code.co_code
    starts: list[tuple[int, int, int]] = []
    units: list[int] = []  # code unit -> index of its instruction
    extended = 0
    for offset in range(0, len(raw), 2):
        opcode, arg = raw[offset], raw[offset + 1] | extended
        if opcode == CACHE:
            units.append(len(starts) - 1)
        elif opcode == EXTENDED_ARG:
            units.append(len(starts))  # a jump to the prefix is a jump to the instruction
            extended = arg << 8
        else:
            units.append(len(starts))
            starts.append((offset, opcode, arg))
            extended = 0
    # Locals, cells and free variables share one numbering; an argument that is a cell keeps its
    # first place.
    cells = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
    slots = (*code.co_varnames, *cells, *code.co_freevars)
    handlers = _handlers(code, units, len(starts))
    instructions = []
    keywords: tuple[str, ...] = ()
    for index, (offset, opcode, arg) in enumerate(starts):
        opname, action, null, effect, jump_effect = _meaning(opcode, arg)
        name, second = _names(code, slots, opcode, opname, action, arg)
        if opname == "KW_NAMES":
            keywords = code.co_consts[arg]
        jump = -1
        if opcode in _JUMPS:
            end = starts[index + 1][0] if index + 1 < len(starts) else len(raw)
            while end > offset + 2 and raw[end - 2] == EXTENDED_ARG:
                end -= 2  # prefixes belong to the next instruction, caches to this one
            target = (end + (-2 if LOOPS_BACK in opname else 2) * arg) // 2
            jump = units[target] if 0 <= target < len(units) else -1
        constant = _constant(code, opcode, opname, arg)
        called_with: tuple[str, ...] = ()
        if action is Action.CALL:
            called_with, keywords = keywords, ()
        falls = opname not in ENDS_FLOW
        instructions.append(
            Instruction(
                offset, opname, action, arg, name, second, constant, called_with, null, effect,
                jump, jump_effect, falls, *handlers[index],
            )
        )  # fmt: skip
    return tuple(instructions), units


@lru_cache(maxsize=8192)
def _meaning(opcode: int, arg: int) -> tuple[str, Action, bool, int, int]:
    """Return what holds of an instruction wherever it stands."""
    opname = dis.opname[opcode]
    effect = stack_effect(opcode, opname, arg, jump=False)
    jump_effect = stack_effect(opcode, opname, arg, jump=True)
    return opname, ACTIONS.get(opname, Action.PART), pushes_null(opname, arg), effect, jump_effect


# END_ASYNC_FOR's argument (3.14) is for monitoring only.
_JUMPS = frozenset(op for op in dis.hasjrel if dis.opname[op] != "END_ASYNC_FOR")
_NAMED = frozenset(dis.hasname)
_LOCAL = frozenset([*dis.haslocal, *dis.hasfree])
_FAST = frozenset(op for op in dis.haslocal if "DEREF" not in dis.opname[op])
"""What loads or stores a local itself. (3.14 counts LOAD_DEREF too, the contents of a cell.)"""
_PAIRS = (Action.LOAD_PAIR, Action.STORE_PAIR, Action.STORE_LOAD)


def _names(
    code: CodeType, slots: tuple[str, ...], opcode: int, opname: str, action: Action, arg: int
) -> tuple[str, str]:
    """Return the names of an instruction; empty where it loads a closure's cell (3.13 on)."""
    if opcode in _NAMED:
        index = name_index(opname, arg)
        return (code.co_names[index] if index < len(code.co_names) else ""), ""
    if opcode not in _LOCAL:
        return "", ""
    if action in _PAIRS:
        name, second = slots[arg >> 4], slots[arg & 15]
    else:
        name, second = slots[arg] if arg < len(slots) else "", ""
    if opcode in _FAST:
        cells = (*code.co_cellvars, *code.co_freevars)
        if action in (Action.LOAD, Action.LOAD_PAIR) and name in cells:
            name = ""
        if action in (Action.STORE_LOAD, Action.LOAD_PAIR) and second in cells:
            second = ""
    return name, second


def _constant(code: CodeType, opcode: int, opname: str, arg: int) -> Any:
    if opname == "LOAD_SMALL_INT":
        return arg
    return code.co_consts[arg] if opcode in dis.hasconst and arg < len(code.co_consts) else MISSING


def _handlers(code: CodeType, units: list[int], count: int) -> list[tuple[int, int, int]]:
    """Return for every instruction its handler, the stack depth kept, the values pushed."""
    found = [(-1, 0, 0)] * count
    numbers = _varints(code.co_exceptiontable)
    for start in numbers:
        length, target, depth = next(numbers), next(numbers), next(numbers)
        entry = (units[target], depth >> 1, 1 + (depth & 1))
        for unit in range(start, min(start + length, len(units))):
            found[units[unit]] = entry
    return found


def _varints(table: bytes) -> Iterator[int]:
    """Yield the table's numbers: six bits a byte, 64 where more follow, 128 at an entry."""
    value = 0
    for byte in table:
        value = value << 6 | byte & 63
        if not byte & 64:
            yield value
            value = 0


def _find_loops(flow: Flow) -> tuple[Loop, ...]:
    back_edges: dict[int, list[int]] = {}
    jumps_to: dict[int, list[int]] = {}
    instructions = flow.instructions
    for index, instruction in enumerate(instructions):
        if instruction.jump >= 0:
            jumps_to.setdefault(instruction.jump, []).append(index)
            if LOOPS_BACK in instruction.opname and "NO_INTERRUPT" not in instruction.opname:
                back_edges.setdefault(instruction.jump, []).append(index)
    loops = []
    for header, sources in back_edges.items():
        body: set[int] = set()
        waiting = list(sources)
        while waiting:
            index = waiting.pop()
            if index not in body:
                body.add(index)
                if index != header:
                    waiting.extend(jumps_to.get(index, ()))
                    if index and instructions[index - 1].falls:
                        waiting.append(index - 1)
        if header in body:  # else a handler's way back to the code after it, no loop
            loops.append(Loop(header, frozenset(body), tuple(sources)))
    return tuple(sorted(loops, key=lambda loop: len(loop.body)))
