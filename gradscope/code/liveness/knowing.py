"""Keeps what is known of variables and values while ways through the code are followed."""

from __future__ import annotations

from types import CodeType
from typing import Any

from gradscope.code import names
from gradscope.code.liveness.callees import Resolve
from gradscope.code.liveness.flow import MISSING
from gradscope.code.liveness.known import (
    TRACKED,
    Facts,
    Opaque,
    Rest,
    advance,
    asked,
    called,
    compute,
    iterate,
)
from gradscope.code.liveness.notes import Notes
from gradscope.code.liveness.opcodes import SUBSCRIPT_OPERATOR, Action
from gradscope.code.liveness.tracking import Tracker
from gradscope.code.liveness.values import Env, Invocation, Marks, Role, Stack, State, Value
from gradscope.code.liveness.ways import Written
from gradscope.code.liveness.words import CallKind, kind_of_call

CALLED = "()"  # among what was written: code that cannot be followed has run
_ITEMS = "[]"  # an element of some container was stored
_COMPUTES = (Action.FRESH, Action.BINARY, Action.OPERATE, Action.BUILD)
_CHANGES = frozenset(
    {
        *("pop", "popleft", "popitem", "update", "setdefault", "remove", "insert", "extend"),
        *("append", "appendleft", "add", "discard", "clear", "sort", "reverse", "move_to_end"),
    }
)


class Knower(Tracker):
    """A tracker that computes the values of conditions that are known.

    ``written`` is what the way that is followed has stored so far.
    """

    def __init__(
        self,
        code: CodeType,
        notes: Notes,
        resolve: Resolve | None,
        facts: Facts,
        *,
        caller: Knower | None = None,
        grad_off: bool = False,
    ) -> None:
        super().__init__(code, notes, resolve, caller=caller, grad_off=grad_off)
        self.facts = facts
        self.written: Written = {}

    def execute(self, index: int, state: State, *, taken: bool = False) -> State:
        """Return the state after an instruction, with what is known of the value it pushes."""
        after = super().execute(index, state, taken=taken)
        instruction = self.flow.instructions[index]
        action = instruction.action
        if not after.stack or action is Action.KEEP:
            return after
        if action is Action.NEXT:
            return after if taken else self._next(state, after)
        found: Any = MISSING
        place = -2 if action is Action.ATTRIBUTE and instruction.null else -1
        if action is Action.ATTRIBUTE and not after.stack[place].path:
            found = self._part(state.stack[-1].constant, f".{instruction.name}")
        elif action is Action.SUBSCRIPT or (
            action is Action.BINARY and instruction.arg == SUBSCRIPT_OPERATOR
        ):
            found = self._element(state.stack, after.stack[-1])
        elif instruction.opname == "GET_ITER":
            found = _iterated(state.stack[-1], self.facts)
        elif action in _COMPUTES and instruction.effect <= 0:
            popped = state.stack[len(state.stack) - 1 + instruction.effect :]
            found = compute(instruction, [constant_of(v) for v in popped], self.facts)
        if found is MISSING:
            return after
        value = after.stack[place]._replace(constant=found)
        rest = after.stack[place + 1 :] if place < -1 else ()
        return State(after.env, (*after.stack[:place], value, *rest))

    def _next(self, state: State, after: State) -> State:
        _, element, rest = advance(rest_of(state.stack[-1], self.facts), self.facts)
        *below, iterator, value = after.stack
        items = value.items
        if type(element) is tuple:
            items = tuple(Value(marks=value.marks, constant=part) for part in element)
        else:
            value = value._replace(constant=element)
        iterator = iterator._replace(constant=rest)
        return State(after.env, (*below, iterator, value._replace(items=items)))

    def _element(self, stack: Stack, result: Value) -> Any:
        container, key = stack[-2].constant, stack[-1].constant
        if result.path:
            return self.known(result.path)
        known = type(container) is Opaque and type(key) in (int, str)
        return self._part(container, f"[{key!r}]") if known else MISSING

    def get(self, path: str, marks: Marks, name: str, owner: str) -> Value:
        """Return the value of a variable or attribute, with what is known of it."""
        value = super().get(path, marks, name, owner)
        known = MISSING if marks or not path else self.known(path)
        return value if known is MISSING else value._replace(constant=known)

    def known(self, path: str) -> Any:
        """Return what a path stands for at this point; MISSING where that is not known."""
        split = names.split(path)
        if split is None:  # ".0" is what a comprehension calls the iterator that it is given
            return self.written.get(path, MISSING)
        root, parts = split
        for count in range(len(parts), -1, -1):
            prefix = root + "".join(parts[:count])
            if prefix in self.written:
                base = self.written[prefix]
                for part in parts[count:]:
                    base = self._part(base, part)
                return base
        if any(self._is_stored(part) for part in parts) or self._is_stored(root):
            return MISSING
        if self.is_top:
            return self.facts.find(path)
        local = (*self.code.co_varnames, *self.code.co_cellvars, *self.code.co_freevars)
        if root in local or self.resolve is None:
            return MISSING
        return self.facts.find(path, glob=True)

    def _part(self, owner: Any, part: str) -> Any:
        if type(owner) is not Opaque or self._is_stored(part):
            return MISSING
        return self.facts.part(owner.value, part)

    def _is_stored(self, part: str) -> bool:
        """Return whether code that was followed may have stored the last step of a path again."""
        if part[0] == "[":
            return _ITEMS in self.written
        if part[0] == "." and f"*{part}" in self.written:
            return True
        if CALLED not in self.written:
            return False
        local = part in self.code.co_varnames and part not in self.code.co_cellvars
        return not local and part.lstrip(".") in self.facts.changeable

    # stores

    def bind(
        self, env: Env, path: str, value: Value, at: int, *, weak: bool = False, inner: bool = False
    ) -> Env:
        """Rebind the path, and note what is known of its new value."""
        env = super().bind(env, path, value, at, weak=weak, inner=inner)
        instruction = self.flow.instructions[at]
        if instruction.action is Action.STORE_ATTRIBUTE:
            self._note_attribute(instruction.name)
        elif instruction.action in (Action.STORE_SUBSCRIPT, Action.STORE_SLICE):
            self.written = {**self.written, _ITEMS: True}
        if path:
            self._write(path, MISSING if weak else value.constant)
        return env

    def _note_attribute(self, name: str) -> None:
        end = f".{name}"
        kept = {p: v for p, v in self.written.items() if not p.endswith(end)}
        self.written = {**kept, f"*{end}": True}

    def _write(self, path: str, value: Any) -> None:
        kept = {p: v for p, v in self.written.items() if not names.is_part(p, path)}
        self.written = {**kept, path: value}

    def forget(self, env: Env, path: str) -> Env:
        """Drop what is known of the path."""
        if path:
            self._write(path, MISSING)
        return super().forget(env, path)

    def note_call(self, call: Invocation, *, is_known: bool) -> None:
        """Note what a call that is not followed may have stored."""
        callee = call.callee
        if is_known or not self._is_transparent(call):
            self.written = {**self.written, CALLED: True}
        if callee.attribute in _CHANGES and callee.path != callee.attribute:
            self.written = {**self.written, _ITEMS: True}
            if callee.owner:
                self._write(callee.owner, MISSING)
        if is_known or kind_of_call(callee.path, callee.attribute, dropped=False) is (
            CallKind.UNKNOWN
        ):
            for argument in call.arguments:
                known = argument.constant
                if type(known) is Opaque and self.facts.size(known.value) is not None:
                    self.written = {**self.written, _ITEMS: True}
                    if argument.path:
                        self._write(argument.path, MISSING)

    def result_of(self, call: Invocation) -> Any:
        """Return what a call gives, if that is known."""
        callee = call.callee
        constants = [constant_of(argument) for argument in call.arguments]
        found = MISSING
        if callee.path in ("getattr", "hasattr") and len(constants) > 1 and not call.keywords:
            return self._attribute(call, *constants)
        if callee.path and not call.keywords:
            found = called(callee.path, constants, self.facts)
        if found is MISSING and callee.owner and not call.keywords:
            owner = self.known(callee.owner)
            found = asked(owner, callee.attribute, constants, self.facts)
        return found

    def _attribute(self, call: Invocation, owner: Any, name: Any, default: Any = MISSING) -> Any:
        """Return what ``getattr`` or ``hasattr`` gives."""
        if type(owner) is not Opaque or type(name) is not str:
            return MISSING
        path, asks = call.arguments[0].path, call.callee.path == "hasattr"
        found = self.known(f"{path}.{name}") if path else self._part(owner, f".{name}")
        if found is not MISSING:
            return True if asks else found
        if self._is_stored(f".{name}") or not self.facts.lacks(owner.value, name):
            return MISSING
        return False if asks else default

    def _is_transparent(self, call: Invocation) -> bool:
        """Return whether a call runs no code that could store what conditions ask for."""
        callee = call.callee
        kind = kind_of_call(callee.path, callee.attribute, dropped=False)
        if kind is not CallKind.UNKNOWN or callee.role is not Role.PLAIN:
            return True
        is_method = bool(callee.attribute) and callee.path != callee.attribute
        if is_method and callee.attribute not in self.facts.defined and callee.path == "":
            return True
        return self.facts.is_transparent(callee.path) or (
            is_method and callee.attribute not in self.facts.defined and not callee.codes
        )


def constant_of(value: Value) -> Any:
    """Return what is known of a value: that it is no None, where it is tracked."""
    return TRACKED if value.marks and value.constant is MISSING else value.constant


def rest_of(iterator: Value, facts: Facts) -> Rest:
    """Return what an iterator on the stack still gives."""
    return iterate(iterator.constant, facts)


def _iterated(value: Value, facts: Facts) -> Rest:
    if value.items:
        return Rest(tuple(item.constant for item in value.items)) if not value.marks else Rest()
    if any(mark.rest.startswith("[") for mark in value.marks):
        return Rest(more=True)  # it holds what is tracked
    return Rest() if value.marks else iterate(value.constant, facts)
