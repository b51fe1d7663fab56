"""Defines for each kind of instruction what it does with the abstract values on the stack."""

from __future__ import annotations

from types import CodeType
from typing import Final

from gradscope.code.liveness.element_rules import ELEMENT_RULES, of_part, subscript
from gradscope.code.liveness.opcodes import FIRST_IN_PLACE, NULL_FIRST, SUBSCRIPT_OPERATOR, Action
from gradscope.code.liveness.parts import (
    blurred,
    of_attribute,
    put,
    transposed,
)
from gradscope.code.liveness.steps import Result, Rule, Step
from gradscope.code.liveness.values import (
    NO_MARKS,
    NULL,
    UNKNOWN,
    Invocation,
    Mark,
    Marks,
    Role,
    Stack,
    Value,
    attribute_path,
    summed,
    union,
)
from gradscope.code.liveness.words import HARMLESS_ATTRIBUTES, PART_METHODS


def _keep(s: Step) -> Result:
    return s.env, s.stack


def _pop(s: Step) -> Result:
    return s.env, s.pop(-s.effect)[0]


def _fresh(s: Step) -> Result:
    if s.effect > 0:
        return s.env, s.stack + (UNKNOWN,) * s.effect
    return s.env, (*s.pop_all()[0], UNKNOWN)


def _part(s: Step) -> Result:
    if s.effect > 0:
        return s.env, s.stack + (UNKNOWN,) * s.effect
    rest, popped = s.pop_all()
    return s.env, (*rest, Value(marks=union(popped)))


def _operate(s: Step) -> Result:
    rest, popped = s.pop_all()
    return s.env, (*rest, Value(marks=s.machine.derive(union(popped), s.stack)))


def _binary(s: Step) -> Result:
    if s.instruction.arg == SUBSCRIPT_OPERATOR:
        return subscript(s)
    rest, (left, right) = s.pop(2)
    if not (left.marks or right.marks):
        return s.env, (*rest, UNKNOWN)
    follower = s.machine.next_instruction(s.at)
    target = follower.name if follower is not None and follower.action is Action.STORE else ""
    if s.instruction.arg >= FIRST_IN_PLACE or (target and target == left.path):
        marks = _summed(s, left, right)  # total += loss, total = total + loss
    elif target and target == right.path:
        marks = _summed(s, right, left)
    else:
        marks = s.machine.derive(left.marks | right.marks, s.stack)
    return s.env, (*rest, Value(marks=marks))


def _summed(s: Step, total: Value, added: Value) -> Marks:
    """Return the marks of ``total += added``."""
    both = total.marks | added.marks
    if added.items:  # a list grows by a list
        return both
    return NO_MARKS if s.machine.gradients_off(s.stack) else summed(both)


def _constant(s: Step) -> Result:
    return s.env, (*s.stack, Value(constant=s.instruction.constant))


def _null(s: Step) -> Result:
    return s.env, (*s.stack, NULL)


def _load(s: Step) -> Result:
    value = s.read(s.instruction.name)
    pushed: Stack = (value,)
    if s.instruction.null:
        pushed = (NULL, value) if NULL_FIRST else (value, NULL)
    return s.env, s.pop(len(pushed) - s.effect)[0] + pushed


def _load_pair(s: Step) -> Result:
    return s.env, (*s.stack, s.read(s.instruction.name), s.read(s.instruction.second))


def _load_and_clear(s: Step) -> Result:
    name = s.instruction.name
    marks = s.env.get(name, NO_MARKS)
    silent = frozenset(Mark(m.name, m.kind, -1) for m in marks)  # this is not a read
    shadowed = Value(marks=silent, attribute=name, role=Role.SHADOWED)
    return s.forget(name), (*s.stack, shadowed)


def _store(s: Step) -> Result:
    rest, (value,) = s.pop(1)
    return s.bind_name(s.instruction.name, value).env, rest


def _store_pair(s: Step) -> Result:
    rest, (second, first) = s.pop(2)
    names = s.instruction.name, s.instruction.second
    return s.bind_name(names[0], first).bind_name(names[1], second).env, rest


def _store_load(s: Step) -> Result:
    rest, (value,) = s.pop(1)
    after = s.bind_name(s.instruction.name, value)
    return after.env, (*rest, after.read(s.instruction.second))


def _delete(s: Step) -> Result:
    return s.forget(s.instruction.name), s.stack


def _attribute(s: Step) -> Result:
    rest, (owner,) = s.pop(1)
    name = s.instruction.name
    path = attribute_path(owner, name)
    marks = NO_MARKS
    if name not in HARMLESS_ATTRIBUTES:
        marks = of_attribute(of_part(owner, path), name)
        if name in PART_METHODS:  # of a container, whose elements it gives
            marks |= frozenset(mark for mark in owner.marks if mark.rest.startswith("["))
    if path:
        marks |= s.machine.load(s.env, path, s.at)
    value = s.machine.get(path, marks, name, owner.path)
    return s.env, (*rest, value, NULL) if s.instruction.null else (*rest, value)


def _super(s: Step) -> Result:
    name = s.instruction.name
    value = Value(f"super().{name}", NO_MARKS, name, "super()")
    return s.env, s.pop(3)[0] + ((value, NULL) if s.instruction.null else (value,))


def _store_attribute(s: Step) -> Result:
    rest, (value, owner) = s.pop(2)
    return s.bind(attribute_path(owner, s.instruction.name), value), rest


def _delete_attribute(s: Step) -> Result:
    rest, (owner,) = s.pop(1)
    return s.forget(attribute_path(owner, s.instruction.name)), rest


def _copy(s: Step) -> Result:
    depth = s.instruction.arg
    return s.env, (*s.stack, s.stack[-depth] if depth <= len(s.stack) else UNKNOWN)


def _swap(s: Step) -> Result:
    rest, popped = s.pop(s.instruction.arg)
    return s.env, (*rest, popped[-1], *popped[1:-1], popped[0])


def _function(s: Step) -> Result:
    rest, popped = s.pop_all()
    codes = tuple(value.constant for value in popped if isinstance(value.constant, CodeType))
    return s.env, (*rest, Value(marks=union(popped), codes=codes))


def _function_attribute(s: Step) -> Result:
    rest, (extra, function) = s.pop(2)
    return s.env, (*rest, function._replace(marks=function.marks | extra.marks))


def _call(s: Step) -> Result:
    rest, popped = s.pop(s.instruction.arg + 2)
    return _called(s, rest, popped, s.instruction.keywords)


def _call_kw(s: Step) -> Result:
    rest, popped = s.pop(s.instruction.arg + 3)
    names = popped[-1].constant
    return _called(s, rest, popped[:-1], names if isinstance(names, tuple) else ())


def _call_ex(s: Step) -> Result:
    rest, popped = s.pop_all()
    if popped and any(value.path == "zip" for value in popped[:2]):
        return s.env, (*rest, Value(marks=transposed(union(popped))))
    popped = tuple(v._replace(marks=blurred(v.marks)) if v.marks else v for v in popped)
    return _called(s, rest, popped, ())


def _called(s: Step, rest: Stack, popped: Stack, keywords: tuple[str, ...]) -> Result:
    # Callable and NULL stand in either order, by version; without a NULL the second value is the
    # first argument.
    callee, *arguments = (v for i, v in enumerate(popped) if i > 1 or v.role is not Role.NULL)
    invocation = Invocation(callee, tuple(arguments), keywords, s.stack, s.at)
    env, result = s.machine.call(s.env, invocation)
    return env, (*rest, result)


def _exit_of(manager: Value) -> Role:
    return Role.NO_GRAD_EXIT if manager.role is Role.NO_GRAD else Role.PLAIN


def _enter(s: Step) -> Result:
    rest, (manager,) = s.pop(1)
    return s.env, (*rest, Value(role=_exit_of(manager)), Value(marks=manager.marks))


def _enter_special(s: Step) -> Result:
    # 3.14 pushes the manager's __enter__ or __exit__, and the manager or NULL.
    rest, (manager,) = s.pop(1)
    return s.env, (*rest, Value(marks=manager.marks, role=_exit_of(manager)), NULL)


def _send(s: Step) -> Result:
    rest, (receiver, value) = s.pop(2)
    result = Value(marks=receiver.marks | value.marks)
    is_end = s.effect < 0  # 3.11 pops the receiver as it ends
    return s.env, (*rest, result) if is_end else (*rest, receiver, result)


def _yield(s: Step) -> Result:
    rest, (value,) = s.pop(1)
    before = s.machine.flow.instructions[s.at - 1]
    awaiting = s.at > 0 and before.action is Action.SEND
    s.machine.gave(value if awaiting else Value(marks=put(value.marks)), awaiting=awaiting)
    return s.env, (*rest, UNKNOWN)


def _return(s: Step) -> Result:
    rest, (value,) = s.pop(1)
    s.machine.gave(value)
    return s.env, rest


def _return_generator(s: Step) -> Result:
    return s.env, (*s.stack, UNKNOWN)  # the first value sent in; a POP_TOP follows


RULES: Final[dict[Action, Rule]] = {
    **ELEMENT_RULES,
    Action.KEEP: _keep,
    Action.POP: _pop,
    Action.FRESH: _fresh,
    Action.PART: _part,
    Action.OPERATE: _operate,
    Action.BINARY: _binary,
    Action.CONSTANT: _constant,
    Action.NULL: _null,
    Action.LOAD: _load,
    Action.LOAD_PAIR: _load_pair,
    Action.LOAD_AND_CLEAR: _load_and_clear,
    Action.STORE: _store,
    Action.STORE_PAIR: _store_pair,
    Action.STORE_LOAD: _store_load,
    Action.DELETE: _delete,
    Action.ATTRIBUTE: _attribute,
    Action.SUPER: _super,
    Action.STORE_ATTRIBUTE: _store_attribute,
    Action.DELETE_ATTRIBUTE: _delete_attribute,
    Action.COPY: _copy,
    Action.SWAP: _swap,
    Action.FUNCTION: _function,
    Action.FUNCTION_ATTRIBUTE: _function_attribute,
    Action.CALL: _call,
    Action.CALL_KW: _call_kw,
    Action.CALL_EX: _call_ex,
    Action.ENTER: _enter,
    Action.ENTER_SPECIAL: _enter_special,
    Action.SEND: _send,
    Action.YIELD: _yield,
    Action.RETURN: _return,
    Action.RETURN_CONSTANT: _keep,
    Action.RETURN_GENERATOR: _return_generator,
}
