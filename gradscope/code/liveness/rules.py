"""The rule of each kind of instruction: what it does with the abstract values on the stack."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Final, TypeAlias

from gradscope.code.liveness.flow import MISSING, Instruction
from gradscope.code.liveness.opcodes import FIRST_IN_PLACE, SUBSCRIPT_OPERATOR, Action
from gradscope.code.liveness.values import (
    NO_MARKS,
    NULL,
    UNKNOWN,
    Env,
    Kind,
    Mark,
    Marks,
    Role,
    Stack,
    Value,
    is_part,
    take,
    union,
)
from gradscope.code.liveness.words import HARMLESS_ATTRIBUTES

if TYPE_CHECKING:
    from gradscope.code.liveness.machine import Machine

_Result: TypeAlias = tuple[Env, Stack]
_Rule: TypeAlias = Callable[["Machine", Instruction, int, Env, Stack, int], _Result]


def element_path(container: Value, key: Value) -> str:
    """``losses[3]``, ``cache['k']``; empty where the container has no path or the key is not a constant."""
    known = container.path and key.constant is not MISSING and isinstance(key.constant, int | str)
    return f"{container.path}[{key.constant!r}]" if known else ""


def _keep(m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int) -> _Result:
    return env, stack


def _pop(m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int) -> _Result:
    return env, take(stack, -effect)[0]


def _fresh(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    if effect > 0:
        return env, stack + (UNKNOWN,) * effect
    return env, (*take(stack, 1 - effect)[0], UNKNOWN)


def _part(m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int) -> _Result:
    if effect > 0:
        return env, stack + (UNKNOWN,) * effect
    rest, popped = take(stack, 1 - effect)
    return env, (*rest, Value(marks=union(popped)))


def _operate(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, popped = take(stack, 1 - effect)
    return env, (*rest, Value(marks=m.derive(union(popped), stack)))


def _binary(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    if ins.arg == SUBSCRIPT_OPERATOR:
        return _subscript(m, ins, index, env, stack, effect)
    rest, (left, right) = take(stack, 2)
    if not (left.marks or right.marks):
        return env, (*rest, UNKNOWN)
    follower = m.next_instruction(index)
    target = follower.name if follower is not None and follower.action is Action.STORE else ""
    if ins.arg >= FIRST_IN_PLACE or (
        target and target == left.path
    ):  # total += loss, total = total + loss
        return env, (*rest, Value(marks=_summed(m, left, right, stack)))
    if target and target == right.path:
        return env, (*rest, Value(marks=_summed(m, right, left, stack)))
    return env, (*rest, Value(marks=m.derive(left.marks | right.marks, stack)))


def _summed(m: Machine, total: Value, added: Value, stack: Stack) -> Marks:
    """The marks of ``total += added``."""
    if added.items:  # a list grows by a list
        return total.marks | added.marks
    if m.gradients_off(stack):
        return NO_MARKS
    both = total.marks | added.marks
    return frozenset(
        mark if mark.kind is Kind.BUILT else Mark(mark.name, Kind.SUMMED, mark.read)
        for mark in both
    )


def _subscript(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, (container, key) = take(stack, 2)
    path = element_path(container, key)
    marks = _of_part(container, path)
    m.narrow(marks, path, index)
    return env, (*rest, Value(path, marks))


def _of_part(whole: Value, path: str) -> Marks:
    """The marks of ``whole`` without those that are known to be of other parts of it than ``path``."""
    if not path or not whole.marks:
        return whole.marks
    return frozenset(
        m
        for m in whole.marks
        if not is_part(m.name, whole.path) or m.name == path or is_part(m.name, path)
    )


def _constant(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    return env, (*stack, Value(constant=ins.constant))


def _null(m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int) -> _Result:
    return env, (*stack, NULL)


def _load(m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int) -> _Result:
    pushed = (m.read(env, ins.name, index), NULL) if ins.null else (m.read(env, ins.name, index),)
    return env, take(stack, len(pushed) - effect)[0] + pushed


def _load_pair(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    return env, (*stack, m.read(env, ins.name, index), m.read(env, ins.second, index))


def _load_and_clear(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    silent = frozenset(
        Mark(mark.name, mark.kind, -1) for mark in env.get(ins.name, NO_MARKS)
    )  # this is not a read
    return m.forget(env, ins.name), (
        *stack,
        Value(marks=silent, attribute=ins.name, role=Role.SHADOWED),
    )


def _load_cell(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    return env, (
        *stack,
        UNKNOWN,
    )  # the variable itself is handed to a closure; its value is read when that is called


def _bind(m: Machine, env: Env, name: str, value: Value, index: int, stack: Stack) -> Env:
    inner = any(shadowed.role is Role.SHADOWED and shadowed.attribute == name for shadowed in stack)
    return m.bind(env, name, value, index, inner=inner)


def _store(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, (value,) = take(stack, 1)
    return _bind(m, env, ins.name, value, index, stack), rest


def _store_pair(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, (second, first) = take(stack, 2)
    env = _bind(m, env, ins.name, first, index, stack)
    return _bind(m, env, ins.second, second, index, stack), rest


def _store_load(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, (value,) = take(stack, 1)
    env = _bind(m, env, ins.name, value, index, stack)
    return env, (*rest, m.read(env, ins.second, index))


def _delete(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    return m.forget(env, ins.name), stack


def _attribute(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, (owner,) = take(stack, 1)
    path = f"{owner.path}.{ins.name}" if owner.path else ""
    marks = NO_MARKS if ins.name in HARMLESS_ATTRIBUTES else _of_part(owner, path)
    if path:
        marks |= m.load(env, path, index)
    value = m.get(path, marks, ins.name, owner.path)
    return env, (*rest, value, NULL) if ins.null else (*rest, value)


def _super(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    value = Value(f"super().{ins.name}", NO_MARKS, ins.name, "super()")
    return env, take(stack, 3)[0] + ((value, NULL) if ins.null else (value,))


def _store_attribute(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, (value, owner) = take(stack, 2)
    return m.bind(env, f"{owner.path}.{ins.name}" if owner.path else "", value, index), rest


def _delete_attribute(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, (owner,) = take(stack, 1)
    return (m.forget(env, f"{owner.path}.{ins.name}") if owner.path else env), rest


def _store_subscript(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, (value, container, key) = take(stack, 3)
    path = element_path(container, key)
    return m.bind(env, path or container.path, value, index, weak=not path), rest


def _store_slice(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, (value, container, _, _) = take(stack, 4)
    return m.bind(env, container.path, value, index, weak=True), rest


def _delete_subscript(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, (container, key) = take(stack, 2)
    path = element_path(container, key)
    return (m.forget(env, path) if path else env), rest


def _copy(m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int) -> _Result:
    return env, (*stack, stack[-ins.arg] if ins.arg <= len(stack) else UNKNOWN)


def _swap(m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int) -> _Result:
    rest, popped = take(stack, ins.arg)
    return env, (*rest, popped[-1], *popped[1:-1], popped[0])


def _build(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, popped = take(stack, 1 - effect)
    items = popped if ins.opname in ("BUILD_TUPLE", "BUILD_LIST") else ()
    kept = popped[1::2] if ins.opname == "BUILD_MAP" else popped  # a dict is taken for its values
    return env, (*rest, Value(marks=union(kept), items=items))


def _add_to(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, popped = take(stack, -effect)
    if not 0 < ins.arg <= len(rest):
        return env, rest
    place = len(rest) - ins.arg
    container = rest[place]
    popped = popped[-1:]  # of a dict's item the value
    grown = Value(
        marks=container.marks | union(popped), items=container.items and (*container.items, *popped)
    )
    return env, (*rest[:place], grown, *rest[place + 1 :])


def _unpack(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, (value,) = take(stack, 1)
    if ins.opname == "UNPACK_SEQUENCE" and len(value.items) == effect + 1:
        return env, rest + value.items[::-1]
    return env, rest + (Value(marks=value.marks),) * (effect + 1)


def _next(m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int) -> _Result:
    if effect < 0:  # 3.11 pops the iterator as it leaves the loop
        return env, take(stack, -effect)[0]
    return env, (*stack, Value(marks=stack[-1].marks if stack else NO_MARKS))


def _function(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, popped = take(stack, 1 - effect)
    codes = tuple(value.constant for value in popped if isinstance(value.constant, CodeType))
    return env, (*rest, Value(marks=union(popped), codes=codes))


def _function_attribute(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, (extra, function) = take(stack, 2)
    return env, (*rest, function._replace(marks=function.marks | extra.marks))


def _call(m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int) -> _Result:
    rest, popped = take(stack, ins.arg + 2)
    return _called(m, index, env, stack, rest, popped, ins.keywords)


def _call_kw(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, popped = take(stack, ins.arg + 3)
    names = popped[-1].constant
    return _called(
        m, index, env, stack, rest, popped[:-1], names if isinstance(names, tuple) else ()
    )


def _call_ex(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, popped = take(stack, 1 - effect)
    return _called(m, index, env, stack, rest, popped, ())


def _called(
    m: Machine,
    index: int,
    env: Env,
    stack: Stack,
    rest: Stack,
    popped: Stack,
    keywords: tuple[str, ...],
) -> _Result:
    # Callable and NULL stand in either order, by version; without a NULL the second value is the first argument.
    callee, *arguments = (
        value for place, value in enumerate(popped) if place > 1 or value.role is not Role.NULL
    )
    env, result = m.call(env, stack, callee, tuple(arguments), keywords, index)
    return env, (*rest, result)


def _enter(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, (manager,) = take(stack, 1)
    leave = Value(role=Role.NO_GRAD_EXIT) if manager.role is Role.NO_GRAD else UNKNOWN
    return env, (*rest, leave, Value(marks=manager.marks))


def _enter_special(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, (manager,) = take(
        stack, 1
    )  # 3.14: pushes the manager's __enter__ or __exit__, and the manager or NULL
    method = Value(
        marks=manager.marks, role=Role.NO_GRAD_EXIT if manager.role is Role.NO_GRAD else Role.PLAIN
    )
    return env, (*rest, method, NULL)


def _send(m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int) -> _Result:
    rest, (receiver, value) = take(stack, 2)
    result = Value(marks=receiver.marks | value.marks)
    return env, (*rest, result) if effect < 0 else (
        *rest,
        receiver,
        result,
    )  # 3.11 pops the receiver as it ends


def _end_send(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, popped = take(stack, 2)
    return env, (
        *rest,
        Value(marks=union(popped)),
    )  # what was awaited was made of the awaitable's arguments


def _yield(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, (value,) = take(stack, 1)
    m.gave(value, awaiting=index > 0 and m.flow.instructions[index - 1].action is Action.SEND)
    return env, (*rest, UNKNOWN)


def _return(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    rest, (value,) = take(stack, 1)
    m.gave(value)
    return env, rest


def _return_generator(
    m: Machine, ins: Instruction, index: int, env: Env, stack: Stack, effect: int
) -> _Result:
    return env, (*stack, UNKNOWN)  # the first value sent in; a POP_TOP follows


RULES: Final[dict[Action, _Rule]] = {
    Action.KEEP: _keep,
    Action.POP: _pop,
    Action.FRESH: _fresh,
    Action.PART: _part,
    Action.OPERATE: _operate,
    Action.BINARY: _binary,
    Action.SUBSCRIPT: _subscript,
    Action.CONSTANT: _constant,
    Action.NULL: _null,
    Action.LOAD: _load,
    Action.LOAD_PAIR: _load_pair,
    Action.LOAD_AND_CLEAR: _load_and_clear,
    Action.LOAD_CELL: _load_cell,
    Action.STORE: _store,
    Action.STORE_PAIR: _store_pair,
    Action.STORE_LOAD: _store_load,
    Action.DELETE: _delete,
    Action.ATTRIBUTE: _attribute,
    Action.METHOD: _attribute,
    Action.SUPER: _super,
    Action.STORE_ATTRIBUTE: _store_attribute,
    Action.DELETE_ATTRIBUTE: _delete_attribute,
    Action.STORE_SUBSCRIPT: _store_subscript,
    Action.STORE_SLICE: _store_slice,
    Action.DELETE_SUBSCRIPT: _delete_subscript,
    Action.COPY: _copy,
    Action.SWAP: _swap,
    Action.BUILD: _build,
    Action.ADD_TO: _add_to,
    Action.UNPACK: _unpack,
    Action.NEXT: _next,
    Action.FUNCTION: _function,
    Action.FUNCTION_ATTRIBUTE: _function_attribute,
    Action.CALL: _call,
    Action.CALL_KW: _call_kw,
    Action.CALL_EX: _call_ex,
    Action.INTRINSIC: _part,
    Action.ENTER: _enter,
    Action.ENTER_SPECIAL: _enter_special,
    Action.SEND: _send,
    Action.END_SEND: _end_send,
    Action.YIELD: _yield,
    Action.RETURN: _return,
    Action.RETURN_CONSTANT: _keep,
    Action.RETURN_GENERATOR: _return_generator,
    Action.KEEP_OR_POP: _pop,
}
