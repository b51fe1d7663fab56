"""Defines what the instructions do that fill containers and take them apart."""

from __future__ import annotations

from types import NoneType
from typing import Final

from gradscope.code.liveness.flow import MISSING
from gradscope.code.liveness.opcodes import Action
from gradscope.code.liveness.parts import (
    ANYWHERE,
    blurred,
    given_one_by_one,
    place_of,
    put,
    rearranged,
    sliced,
    taken,
)
from gradscope.code.liveness.steps import Result, Rule, Step
from gradscope.code.liveness.values import (
    NO_MARKS,
    UNKNOWN,
    Marks,
    Role,
    Stack,
    Value,
    element_path,
    union,
)
from gradscope.code.names import is_part


def subscript(s: Step) -> Result:
    """Take an element of a container, or a slice of it."""
    rest, (container, key) = s.pop(2)
    if not isinstance(key.constant, int | str | slice) and container.marks:
        container = container._replace(marks=s.machine.pick(container.marks, s.at))
    if _is_slice(key):
        return s.env, (*rest, Value(marks=sliced(container.marks, key.constant)))
    path = element_path(container, key)
    marks = taken(of_part(container, path), _part_named(key))
    s.machine.narrow(marks, path, s.at)
    return s.env, (*rest, Value(path, marks))


def of_part(whole: Value, path: str) -> Marks:
    """Return the marks of ``whole`` that may be of its part ``path``.

    The name that the object had at the start tells only as long as nothing else tells its place: it
    may have moved, as in ``kept['last'] = kept['now']``.
    """
    if not path or not whole.marks:
        return whole.marks
    is_key = path.endswith("]")  # a method of the object is none of what it holds
    return frozenset(
        m
        for m in whole.marks
        if (is_key and place_of(m))
        or not is_part(m.name, whole.path)
        or m.name == path
        or is_part(m.name, path)
    )


def _part_named(key: Value) -> str:
    return f"[{key.constant!r}]" if isinstance(key.constant, int | str) else ANYWHERE


def _slice(s: Step) -> Result:
    if s.instruction.opname == "BUILD_SLICE":
        rest, bounds = s.pop_all()
        return s.env, (*rest, _slice_of(bounds))
    rest, popped = s.pop_all()
    container, key = popped[0], _slice_of(popped[1:])
    if not isinstance(key.constant, int | str | slice) and container.marks:
        container = container._replace(marks=s.machine.pick(container.marks, s.at))
    return s.env, (*rest, Value(marks=sliced(container.marks, key.constant)))


def _slice_of(bounds: Stack) -> Value:
    known = all(isinstance(bound.constant, int | NoneType) for bound in bounds)
    constant = slice(*(bound.constant for bound in bounds)) if known else MISSING
    return Value(constant=constant, role=Role.SLICE)


def _is_slice(key: Value) -> bool:
    return key.role is Role.SLICE or isinstance(key.constant, slice)


def _is_whole(key: Value) -> bool:
    return isinstance(key.constant, slice) and key.constant == slice(None)


def _store_subscript(s: Step) -> Result:
    rest, (value, container, key) = s.pop(3)
    path = element_path(container, key)
    if not path:
        marks = rearranged(value.marks) if _is_slice(key) else put(value.marks)
        changed = value._replace(marks=marks)
        return s.bind(container.path, changed, weak=not _is_whole(key)), rest
    return s.bind(path, value), rest


def _store_slice(s: Step) -> Result:
    rest, (value, container, *bounds) = s.pop(4)
    value = value._replace(marks=rearranged(value.marks))
    is_whole = _is_whole(_slice_of(tuple(bounds)))
    return s.bind(container.path, value, weak=not is_whole), rest


def _delete_subscript(s: Step) -> Result:
    rest, (container, key) = s.pop(2)
    return s.forget(container.path if _is_whole(key) else element_path(container, key)), rest


def _build(s: Step) -> Result:
    rest, popped = s.pop_all()
    if s.instruction.opname in ("BUILD_TUPLE", "BUILD_LIST"):
        each = (put(value.marks, f"[{i}]") for i, value in enumerate(popped))
        return s.env, (*rest, Value(marks=NO_MARKS.union(*each), items=popped))
    is_dict = s.instruction.opname == "BUILD_MAP"  # a dict is taken for its values
    return s.env, (*rest, Value(marks=put(union(popped[1::2] if is_dict else popped))))


def _add_to(s: Step) -> Result:
    rest, popped = s.pop(-s.effect)
    if not 0 < s.instruction.arg <= len(rest):
        return s.env, rest
    place = len(rest) - s.instruction.arg
    container = rest[place]
    added = popped[-1:]  # of a dict's item the value
    items = container.items and (*container.items, *added)
    is_one = s.instruction.opname in ("LIST_APPEND", "SET_ADD", "MAP_ADD")
    marks = put(union(added)) if is_one else rearranged(union(added))
    grown = Value(marks=container.marks | marks, items=items)
    return s.env, (*rest[:place], grown, *rest[place + 1 :])


def _unpack(s: Step) -> Result:
    rest, (value,) = s.pop(1)
    count = s.effect + 1
    if s.instruction.opname == "UNPACK_SEQUENCE" and len(value.items) == count:
        return s.env, rest + value.items[::-1]
    if s.instruction.opname != "UNPACK_SEQUENCE":
        return s.env, rest + (Value(marks=blurred(value.marks)),) * count
    places = reversed(range(count))
    return s.env, rest + tuple(Value(marks=taken(value.marks, f"[{i}]")) for i in places)


def _next(s: Step) -> Result:
    if s.effect < 0:  # 3.11 pops the iterator as it leaves the loop
        return s.env, s.pop(-s.effect)[0]
    iterator = s.stack[-1] if s.stack else UNKNOWN
    return s.env, (*s.stack, Value(marks=given_one_by_one(iterator.marks)))


ELEMENT_RULES: Final[dict[Action, Rule]] = {
    Action.SUBSCRIPT: subscript,
    Action.SLICE: _slice,
    Action.STORE_SUBSCRIPT: _store_subscript,
    Action.STORE_SLICE: _store_slice,
    Action.DELETE_SUBSCRIPT: _delete_subscript,
    Action.BUILD: _build,
    Action.ADD_TO: _add_to,
    Action.UNPACK: _unpack,
    Action.NEXT: _next,
}
