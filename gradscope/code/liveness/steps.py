"""Defines what a rule for an instruction is given: the machine, and what is known before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from gradscope.code.liveness.flow import Instruction
from gradscope.code.liveness.values import Env, Role, Stack, Value, take

if TYPE_CHECKING:
    from gradscope.code.liveness.machine import Machine

Result: TypeAlias = tuple[Env, Stack]


class Step(NamedTuple):
    """One instruction that a machine executes, what is known before, how the stack grows."""

    machine: Machine
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
