"""Defines the abstract values of the bytecode machine: what is known of a value, and its graph."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import CodeType
from typing import Any, NamedTuple, TypeAlias

from gradscope.code.liveness.flow import MISSING, Instruction


class Kind(IntEnum):
    """How a value is tied to the object that a tracked name held."""

    SAME = 0  # that object itself, or a container or a part of it
    SUMMED = 1  # it was added in place to something else
    DERIVED = 2  # computed from it, in the expression at hand
    BUILT = 3  # computed from it earlier, and stored since


class Mark(NamedTuple):
    """A value carries the graph of ``name``, by the read of number ``read``; -1: by none.

    ``rest`` leads from the value to the object, ``[3][1]``; empty where it is the object itself or
    where that is not known.
    """

    name: str
    kind: Kind
    read: int
    rest: str = ""


Marks: TypeAlias = frozenset[Mark]
Env: TypeAlias = Mapping[str, Marks]
NO_MARKS: Marks = frozenset()


class Role(IntEnum):
    """What a value is besides a carrier of graphs."""

    PLAIN = 0
    NULL = 1  # the filler of the call convention
    NO_GRAD = 2  # a context manager that turns gradients off
    NO_GRAD_EXIT = 3  # the same one, entered: gradients are off while this is on the stack
    SHADOWED = 4  # a variable set aside while an inlined comprehension uses its name
    SLICE = 5
    SPENT = 6  # an iterator that has given all it had


class Value(NamedTuple):
    """One value: the path it was read from (``self.h``), its marks, the functions it may be."""

    path: str = ""
    marks: Marks = NO_MARKS
    attribute: str = ""  # the last name of the path, known also where the path is not
    owner: str = ""  # the path without it
    codes: tuple[CodeType, ...] = ()
    constant: Any = MISSING
    role: Role = Role.PLAIN
    items: tuple[Value, ...] = ()  # of a tuple or list that was just built


UNKNOWN = Value()
NULL = Value(role=Role.NULL)
Stack: TypeAlias = tuple[Value, ...]


class Invocation(NamedTuple):
    """A call about to be made: what is called, with what, above which stack, where."""

    callee: Value
    arguments: Stack
    keywords: tuple[str, ...]  # the names of the last arguments
    stack: Stack
    at: int

    @property
    def named(self) -> dict[str, Value]:
        """The arguments that are given by name."""
        return dict(zip(self.keywords, self.arguments[self.positional :], strict=False))

    @property
    def positional(self) -> int:
        """The number of arguments that are given by position."""
        return len(self.arguments) - len(self.keywords)


class State(NamedTuple):
    """What is known before an instruction: all paths that carry marks, and the stack."""

    env: Env
    stack: Stack


def take(stack: Stack, count: int) -> tuple[Stack, Stack]:
    """Return the stack without its top values, and those; what is missing is unknown."""
    if count > len(stack):
        stack = (UNKNOWN,) * (count - len(stack)) + stack
    cut = len(stack) - count
    return stack[:cut], stack[cut:]


def caught(stack: Stack, instruction: Instruction) -> Stack:
    """Return the stack that an instruction's exception handler starts with."""
    return stack[: instruction.handler_depth] + (UNKNOWN,) * instruction.handler_pushes


def union(values: tuple[Value, ...]) -> Marks:
    """Return the marks of all values."""
    marked = [value.marks for value in values if value.marks]
    return marked[0] if len(marked) == 1 else NO_MARKS.union(*marked)


def summed(marks: Marks) -> Marks:
    """Return the marks of what was added in place to something else."""
    return frozenset(
        mark if mark.kind is Kind.BUILT else Mark(mark.name, Kind.SUMMED, mark.read)
        for mark in marks
    )


def attribute_path(owner: Value, name: str) -> str:
    """Return ``self.h``; empty where the owner has no path."""
    return f"{owner.path}.{name}" if owner.path else ""


def element_path(container: Value, key: Value) -> str:
    """Return ``losses[3]``, ``cache['k']``; empty where the path or the key is not known."""
    known = container.path and key.constant is not MISSING and isinstance(key.constant, int | str)
    return f"{container.path}[{key.constant!r}]" if known else ""


def covers(known: State, state: State) -> bool:
    """Return whether ``state`` adds nothing where ``known`` has been followed already."""
    if known.env is not state.env and not all(
        marks <= known.env.get(path, NO_MARKS) for path, marks in state.env.items()
    ):
        return False
    if known.stack is state.stack:
        return True
    ours, theirs = known.stack[::-1], state.stack[::-1]  # aligned at the top
    if any(a.role is Role.SPENT is not b.role for a, b in zip(ours, theirs, strict=False)):
        return False
    return all(
        not value.marks or (depth < len(ours) and value.marks <= ours[depth].marks)
        for depth, value in enumerate(theirs)
    )


def join(known: State, state: State) -> State:
    """Return what holds of both ways to reach an instruction."""
    env = dict(known.env)
    for path, marks in state.env.items():
        env[path] = env.get(path, NO_MARKS) | marks
    depth = min(len(known.stack), len(state.stack))
    pairs = zip(
        known.stack[len(known.stack) - depth :],
        state.stack[len(state.stack) - depth :],
        strict=True,
    )
    return State(env, tuple(a if a is b else _join_values(a, b) for a, b in pairs))


def _join_values(a: Value, b: Value) -> Value:
    if a == b:
        return a
    marks = a.marks | b.marks
    same_path = a.path == b.path
    return Value(
        path=a.path if same_path else "",
        marks=marks,
        attribute=a.attribute if a.attribute == b.attribute else "",
        owner=a.owner if same_path else "",
        codes=tuple(dict.fromkeys((*a.codes, *b.codes))),
        role=a.role if a.role is b.role else Role.PLAIN,
    )
