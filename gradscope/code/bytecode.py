"""Decodes a code object into instructions with their successors, exception handlers and loops.

All that differs between Python 3.11 and 3.14 in how code is laid out is here.
"""

from __future__ import annotations

import dis
import re
import sys
import weakref
from collections.abc import Iterator
from functools import cached_property, lru_cache
from types import CodeType
from typing import Any, Final, NamedTuple

from gradscope.code.source import of_instruction
from gradscope.model import Site

MISSING: Any = object()
"""Stands for "no value", as None is one."""

_ENDS_FLOW: Final = frozenset(
    (
        *("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"),
        *("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_BACKWARD_QUICK"),
    )
)
"""Instructions after which the next one in the code is not run."""

_EXTENDED_ARG: Final = dis.opmap["EXTENDED_ARG"]

NULL_FIRST: Final = sys.version_info < (3, 13)
"""Whether a call's NULL lies below what is called, or above it."""

_MAY_PUSH_NULL: Final = ("LOAD_GLOBAL", "LOAD_SUPER_ATTR") + ("LOAD_ATTR",) * (
    sys.version_info >= (3, 12)
)
"""Instructions whose lowest bit says that a NULL (or self) is pushed, too."""
_CALLS: Final = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")


class Instruction(NamedTuple):
    """One instruction; ``jump`` and ``handler`` are indices of instructions, or -1.

    ``name`` is the variable or attribute it is about, ``slot`` the place of a variable among those
    of the frame: one that is about two variables stands here as two. ``null``: it also pushes the
    NULL (or self) that a call takes.
    """

    offset: int
    opname: str
    arg: int
    name: str
    slot: int
    constant: Any
    keywords: tuple[str, ...]
    null: bool
    effect: int
    jump: int
    falls: bool
    handler: int
    handler_depth: int
    keeps_lasti: bool

    @property
    def is_call(self) -> bool:
        """Whether it calls what the program names."""
        return self.opname in _CALLS


class Loop(NamedTuple):
    """A natural loop: all instructions in it, and its back edges ``sources``."""

    body: frozenset[int]
    sources: tuple[int, ...]


class Flow:
    """The instructions of a code object, without a reference to it: a cache keeps none alive."""

    def __init__(self, code: CodeType) -> None:
        # Locals, cells and free variables share one numbering; an argument that is a cell keeps its
        # first place.
        cells = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
        self.slots = (*code.co_varnames, *cells, *code.co_freevars)
        self.instructions, self._units = _decode(code, self.slots)

    def index(self, lasti: int) -> int:
        """Return the instruction at ``f_lasti``, which may be in its caches; -1 before the
        first.
        """
        return self._units[lasti // 2] if 0 <= lasti // 2 < len(self._units) else -1

    @cached_property
    def depths(self) -> dict[int, int]:
        """How many values are on the stack before each instruction that can be reached."""
        return _find_depths(self.instructions)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """All loops, innermost first."""
        return _find_loops(self)

    def loops_around(self, index: int) -> tuple[Loop, ...]:
        """Return all loops around an instruction, innermost first."""
        return tuple(loop for loop in self.loops if index in loop.body)

    def names_of_call(self, index: int) -> tuple[str, ...]:
        """Return the dotted name of what a call calls, as it is written: of ``self.opt.step()`` all
        three names; what is computed is an empty name, and there is none if all is.
        """
        instruction, depths = self.instructions[index], self.depths
        if not instruction.is_call or index not in depths:
            return ()
        given = depths[index] + instruction.effect + 1  # below these are the two that are called
        before = (i for i in range(index - 1, -1, -1) if depths.get(i, 0) < given)
        first = next(before, 0)
        jumps = (i for i in range(first, index) if self.instructions[i].jump >= 0)
        ends = [i for i in range(first, next(jumps, index)) if depths.get(i + 1) == given]
        last = ends[-1] if ends else first
        while last and self.instructions[last].opname in ("PUSH_NULL", "PRECALL"):
            last -= 1
        names: list[str] = []
        while self.instructions[last].opname in ("LOAD_ATTR", "LOAD_METHOD"):
            names.insert(0, self.instructions[last].name)
            last -= 1
        root = self.instructions[last]
        is_variable = root.opname.startswith("LOAD") and root.opname != "LOAD_CONST"
        return (root.name if is_variable else "", *names) if names or is_variable else ()

    def handed_on(self, variable: str) -> Iterator[tuple[tuple[str, ...], int]]:
        """Yield the dotted name of each call that is given a variable, and at which place."""
        for index, each in enumerate(self.instructions):
            is_read = each.slot >= 0 and each.name == variable and each.opname.startswith("LOAD")
            if not is_read or index not in self.depths:
                continue
            depth = self.depths[index]  # until something takes it, the stack is higher
            after = range(index + 1, len(self.instructions))
            ends = (
                i for i in after if self.depths.get(i, 0) + self.instructions[i].effect <= depth
            )
            taken = next(ends, index)
            if self.instructions[taken].is_call:
                given = self.depths[taken] + self.instructions[taken].effect + 1
                yield self.names_of_call(taken), depth - given


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


def site_at(code: CodeType, index: int) -> Site:
    """Return the place of an instruction by its index in the flow."""
    return of_instruction(code, flow_of(code).instructions[index].offset)


def _decode(code: CodeType, slots: tuple[str, ...]) -> tuple[tuple[Instruction, ...], list[int]]:
    found: list[tuple[dis.Instruction, int, int]] = []
    units: list[int] = []  # code unit -> index of its instruction
    for each in dis.get_instructions(code):
        units += [len(found) - 1] * (each.offset // 2 - len(units))  # caches of the one before
        units.append(len(found))  # a jump to a prefix is a jump to the instruction
        opcode, arg = each.opcode, each.arg or 0
        if two := _PAIR.fullmatch(each.opname):
            found.append((each, dis.opmap[two[1]], arg >> 4))
            opcode, arg = dis.opmap[two[2]], arg & 15
        if opcode != _EXTENDED_ARG:
            found.append((each, opcode, arg))
    units += [len(found) - 1] * (len(code.co_code) // 2 - len(units))
    handlers = _handlers(code, units)
    instructions = []
    keywords: tuple[str, ...] = ()
    for each, opcode, arg in found:
        opname, null, effect = _meaning(opcode, arg)
        slot = arg if opcode in _LOCAL else -1
        constant = each.argval if opcode in _CONSTANTS else MISSING
        if opname == "KW_NAMES":
            keywords = code.co_consts[arg]
        name = each.argval if opcode in _NAMED else slots[arg] if slot >= 0 else ""
        jump = units[each.argval // 2] if opcode in _JUMPS else -1
        called_with: tuple[str, ...] = ()
        if opname == "CALL":
            called_with, keywords = keywords, ()
        instructions.append(
            Instruction(
                each.offset, opname, arg, name, slot, constant, called_with, null, effect, jump,
                opname not in _ENDS_FLOW, *handlers.get(each.offset // 2, (-1, 0, False)),
            )
        )  # fmt: skip
    return tuple(instructions), units


@lru_cache(maxsize=8192)
def _meaning(opcode: int, arg: int) -> tuple[str, bool, int]:
    """Return what holds of an instruction wherever it stands: its name, whether it pushes a NULL
    too, and by how much the stack grows.
    """
    opname = dis.opname[opcode]
    null = opname == "LOAD_METHOD" or (opname in _MAY_PUSH_NULL and bool(arg & 1))
    return opname, null, stack_effect(opcode, opname, arg, jump=False)


def stack_effect(opcode: int, opname: str, arg: int, *, jump: bool) -> int:
    """Return by how much the stack grows, as Python itself counts it where it can."""
    if opname == "PRECALL":  # 3.11 splits the effect of a call in two; CALL has all of it here
        return 0
    if opname == "CALL":
        return -1 - arg
    try:
        return dis.stack_effect(opcode, arg if opcode >= dis.HAVE_ARGUMENT else None, jump=jump)
    except ValueError:
        return 0


# END_ASYNC_FOR's argument (3.14) is for monitoring only.
_JUMPS = frozenset(op for op in dis.hasjrel if dis.opname[op] != "END_ASYNC_FOR")
_NAMED = frozenset(dis.hasname)
_CONSTANTS = frozenset([*dis.hasconst, dis.opmap.get("LOAD_SMALL_INT", -1)])
_LOCAL = frozenset([*dis.haslocal, *dis.hasfree])
_PAIR: Final = re.compile("_".join([r"((?:LOAD|STORE)_FAST(?:_BORROW)?)"] * 2))
"""Instructions that do two things."""


def _handlers(code: CodeType, units: list[int]) -> dict[int, tuple[int, int, bool]]:
    """Return for code units their handler, the stack depth kept, and whether the place of the
    instruction is pushed before the exception.
    """
    return {
        unit: (units[entry.target // 2], entry.depth, entry.lasti)
        for entry in dis._parse_exception_table(code)  # type: ignore[attr-defined]
        for unit in range(entry.start // 2, entry.end // 2)
    }


def _find_depths(instructions: tuple[Instruction, ...]) -> dict[int, int]:
    depths: dict[int, int] = {}
    waiting = [(0, 0)]
    while waiting:
        index, depth = waiting.pop()
        while index < len(instructions) and index not in depths:
            depths[index] = depth
            each = instructions[index]
            if each.handler >= 0:
                waiting.append((each.handler, each.handler_depth + 1 + each.keeps_lasti))
            if each.jump >= 0:
                effect = stack_effect(dis.opmap[each.opname], each.opname, each.arg, jump=True)
                waiting.append((each.jump, depth + effect))
            if not each.falls:
                break
            depth = 1 if each.opname == "RETURN_GENERATOR" else depth + each.effect
            index += 1
    return depths


def _find_loops(flow: Flow) -> tuple[Loop, ...]:
    back_edges: dict[int, list[int]] = {}
    jumps_to: dict[int, list[int]] = {}
    instructions = flow.instructions
    for index, instruction in enumerate(instructions):
        if instruction.jump >= 0:
            jumps_to.setdefault(instruction.jump, []).append(index)
            if "BACKWARD" in instruction.opname and "NO_INTERRUPT" not in instruction.opname:
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
            loops.append(Loop(frozenset(body), tuple(sources)))
    return tuple(sorted(loops, key=lambda loop: len(loop.body)))
