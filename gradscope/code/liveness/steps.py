"""Defines what a rule for an instruction is given: the host it asks, and what is known before."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import CodeType
from typing import NamedTuple, TypeAlias

from gradscope.code.liveness.flow import Flow, Instruction, flow_of
from gradscope.code.liveness.values import (
    NO_MARKS,
    UNKNOWN,
    Env,
    Invocation,
    Kind,
    Mark,
    Marks,
    Role,
    Stack,
    Value,
    take,
)

Result: TypeAlias = tuple[Env, Stack]


class Host(ABC):
    """What the rules ask: subclasses define reading, binding, forgetting and calling."""

    def __init__(self, code: CodeType, *, grad_off: bool = False) -> None:
        self.code = code
        self.flow: Flow = flow_of(code)
        self.grad_off = grad_off
        self._plain: dict[tuple[str, str], Value] = {}

    @abstractmethod
    def load(self, env: Env, path: str, index: int) -> Marks:
        """Return the marks of a path that is read at instruction ``index``."""

    def narrow(self, marks: Marks, path: str, index: int) -> None:  # noqa: B027 - most machines need no note of it
        """Note that ``index`` takes the element ``path`` of a container that was read."""

    def pick(self, marks: Marks, at: int) -> Marks:
        """Return the marks of a container whose elements a subscript with a key that is not
        constant can take.
        """
        return marks

    @abstractmethod
    def function(self, path: str) -> Value:
        """Return a value whose ``codes`` and ``role`` tell which functions the path may be."""

    @abstractmethod
    def bind(
        self, env: Env, path: str, value: Value, at: int, *, weak: bool = False, inner: bool = False
    ) -> Env:
        """Store ``value`` at ``path``; an empty path is one that is not known.

        ``weak``: what was there stays. ``inner``: into a variable of an inlined comprehension.
        """

    @abstractmethod
    def forget(self, env: Env, path: str) -> Env:
        """Delete or empty the path."""

    @abstractmethod
    def call(self, env: Env, call: Invocation) -> tuple[Env, Value]:
        """Return the environment after a call, and its result."""

    @abstractmethod
    def gave(self, value: Value, *, awaiting: bool = False) -> None:
        """Take a value that is returned or yielded; ``awaiting``: to an ``await``."""

    def derive(self, marks: Marks, stack: Stack) -> Marks:
        """Return the marks of what is computed from marked values: none where gradients are off."""
        if not marks or self.gradients_off(stack):
            return NO_MARKS
        return frozenset(
            m._replace(rest="") if m.kind is Kind.BUILT else Mark(m.name, Kind.DERIVED, m.read)
            for m in marks
        )

    def gradients_off(self, stack: Stack) -> bool:
        """Return whether ``no_grad`` is on: its exit function is then on the stack."""
        return self.grad_off or any(value.role is Role.NO_GRAD_EXIT for value in stack)

    def next_instruction(self, index: int) -> Instruction | None:
        """Return the instruction that follows in the code."""
        instructions = self.flow.instructions
        return instructions[index + 1] if index + 1 < len(instructions) else None

    def get(self, path: str, marks: Marks, name: str, owner: str) -> Value:
        """Return the value of a variable or attribute; those without marks are made once."""
        plain = self._plain.get((path, name))
        if plain is None:
            known = self.function(path)
            plain = self._plain[path, name] = Value(
                path, NO_MARKS, name, owner, known.codes, role=known.role
            )
        return plain._replace(marks=marks) if marks else plain

    def read(self, env: Env, name: str, index: int) -> Value:
        """Return the value of a variable; an empty name is a cell's, which is read later."""
        if not name:
            return UNKNOWN
        return self.get(name, self.load(env, name, index), name, "")


class Step(NamedTuple):
    """One instruction that a machine executes, what is known before, how the stack grows."""

    machine: Host
    instruction: Instruction
    at: int
    env: Env
    stack: Stack
    effect: int

    def pop(self, count: int) -> tuple[Stack, Stack]:
        """Return the stack without its top values, and those."""
        return take(self.stack, count)

    def pop_all(self) -> tuple[Stack, Stack]:
        """Return the stack without what the instruction replaces by one value, and those values."""
        return take(self.stack, 1 - self.effect)

    def read(self, name: str) -> Value:
        """Return the value of a variable."""
        return self.machine.read(self.env, name, self.at)

    def bind(self, path: str, value: Value, *, weak: bool = False) -> Env:
        """Store a value at a path."""
        return self.machine.bind(self.env, path, value, self.at, weak=weak)

    def forget(self, path: str) -> Env:
        """Delete a path; an empty one is not known."""
        return self.machine.forget(self.env, path) if path else self.env

    def bind_name(self, name: str, value: Value) -> Step:
        """Store a value in a variable, which may be that of an inlined comprehension."""
        inner = any(v.role is Role.SHADOWED and v.attribute == name for v in self.stack)
        env = self.machine.bind(self.env, name, value, self.at, inner=inner)
        return self._replace(env=env)


Rule: TypeAlias = Callable[[Step], Result]
