"""Passes over code once, for what no question changes: stacks, stores, calls, functions."""

from __future__ import annotations

import heapq
from collections.abc import Collection
from types import CodeType
from typing import NamedTuple, Protocol

from gradscope.code.liveness.flow import MISSING, flow_of
from gradscope.code.liveness.opcodes import Action
from gradscope.code.liveness.rules import Machine
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
    State,
    Value,
    caught,
    union,
)
from gradscope.code.liveness.words import CallKind, kind_of_call


class CallFact(NamedTuple):
    """A call as written: what is called, its keywords with computed values, what it does."""

    target: str
    computed: frozenset[str]
    kind: CallKind


class Survey(NamedTuple):
    """What the pass found, by instruction. A mark is named by the path that was read."""

    stacks: dict[int, Stack]
    stores: dict[int, tuple[str, ...]]
    calls: dict[int, CallFact]
    functions: dict[str, Value]


def survey_of(code: CodeType) -> Survey:
    """Return the survey of a code object, made once."""
    flow = flow_of(code)
    if flow.survey is None:
        flow.survey = _Surveyor(code).survey
    survey: Survey = flow.survey
    return survey


class _Surveyor(Machine):
    def __init__(self, code: CodeType) -> None:
        super().__init__(code)
        self.survey = Survey({}, {}, {}, {})
        self._run()

    def _run(self) -> None:
        instructions, stacks, joins = self.flow.instructions, self.survey.stacks, self.flow.joins
        states = {0: State({}, ())}
        waiting = [(0, 0)]  # handlers last; the first way to reach an instruction is enough

        def arrive(late: int, index: int, state: State) -> None:
            if index not in states:
                states[index] = state
                heapq.heappush(waiting, (late, index))

        while waiting:
            late, index = heapq.heappop(waiting)
            state = states[index]
            while True:
                stacks[index] = state.stack
                instruction = instructions[index]
                if instruction.handler >= 0:
                    arrive(1, instruction.handler, State({}, caught(state.stack, instruction)))
                if instruction.jump >= 0:
                    arrive(late, instruction.jump, self.execute(index, state, taken=True))
                if not instruction.falls:
                    break
                state = self.execute(index, state)
                index += 1
                if index in joins:
                    arrive(late, index, state)
                    break

    def load(self, env: Env, path: str, index: int) -> Marks:
        """Mark every value that is read with its path."""
        return frozenset((Mark(path, Kind.SAME, index),))

    def function(self, path: str) -> Value:
        """Return a function that this code made, before the point that the pass has reached."""
        return self.survey.functions.get(path, UNKNOWN)

    def bind(
        self, env: Env, path: str, value: Value, at: int, *, weak: bool = False, inner: bool = False
    ) -> Env:
        """Remember where the path is stored."""
        if path and not weak and not inner and value.role is not Role.SHADOWED:
            self.survey.stores[at] = (*self.survey.stores.get(at, ()), path)
            if value.codes:
                known = self.survey.functions.get(path, UNKNOWN)
                codes = tuple(dict.fromkeys((*known.codes, *value.codes)))
                self.survey.functions[path] = Value(codes=codes, role=value.role)
        return env

    def forget(self, env: Env, path: str) -> Env:
        """Do nothing: the survey follows no variable."""
        return env

    def gave(self, value: Value, *, awaiting: bool = False) -> None:
        """Do nothing: the survey has no caller."""

    def call(self, env: Env, call: Invocation) -> tuple[Env, Value]:
        """Remember the call; its result carries the marks that the call hands on."""
        callee = call.callee
        computed = {name for name, value in call.named.items() if value.constant is MISSING}
        kind = kind_of_call(callee.path, callee.attribute, dropped=False)
        self.survey.calls[call.at] = CallFact(callee.path, frozenset(computed), kind)
        if kind is CallKind.NO_GRAD:
            return env, no_grad(call)
        if (decorated := decorated_function(call)) is not None:
            return env, decorated
        marks = union(call.arguments)
        if kind is CallKind.HARMLESS or callee.role is Role.NO_GRAD_EXIT:
            marks = NO_MARKS
        elif kind is not CallKind.PART:
            marks = self.derive(marks | callee.marks, call.stack)
        return env, Value(marks=marks)


def no_grad(call: Invocation) -> Value:
    """Return what ``no_grad()`` makes: a context manager, or the function it decorates."""
    first = call.arguments[0] if call.arguments else UNKNOWN
    if first.codes:
        return Value(codes=first.codes, role=Role.NO_GRAD)
    name = call.callee.attribute
    off = name != "set_grad_enabled" or first.constant is False
    if name == "inference_mode":
        off = first.constant is not False
    return Value(role=Role.NO_GRAD) if off else UNKNOWN


def decorated_function(call: Invocation) -> Value | None:
    """Return the function that a decorator was put on; None where the call is none of a decorator.

    A ``def`` that is handed on before it has a name is taken to be decorated; what the decorator
    returns is called as the function itself is.
    """
    if len(call.arguments) != 1:
        return None
    function = call.arguments[0]
    if not function.codes or function.path or function.codes[0].co_name.startswith("<"):
        return None  # not a function, or a lambda or a comprehension
    is_no_grad = call.callee.role is Role.NO_GRAD
    return function._replace(role=Role.NO_GRAD) if is_no_grad else function


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
