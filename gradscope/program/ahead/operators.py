"""Says what Python's operators give, as far as their operands are known."""

from __future__ import annotations

import operator
from typing import Any

from gradscope.code.bytecode import MISSING
from gradscope.program.ahead import iteration, tensors
from gradscope.program.ahead import values as v
from gradscope.program.ahead.machine import Machine
from gradscope.program.layouts import is_a, is_exactly

Given = tuple[Any, ...]
Named = dict[str, Any]


def computed(m: Machine, function: Any, given: Given, named: Named) -> Any:
    """Return what a function gives of plain values; what else it is given leads nowhere."""
    given = tuple(plainly(m, each) for each in given)
    if not (v.is_plain(given) and v.is_plain(tuple(named.values()))):
        return v.Unknown(v.unsure(m.held(given)), getattr(function, "__name__", ""))
    if any(is_large(each) for each in given):
        return v.Unknown(why="a large number")
    return m.compute(function, *given, **named)


def plainly(m: Machine, value: Any) -> Any:
    """Return a list of plain values as a tuple, which may be compared."""
    if is_a(value, list) and len(found := iteration.elements_of(m, value)) < 1_000:
        return tuple(found) if all(map(v.is_plain, found)) else value
    return value


def is_large(value: Any) -> bool:
    """Return whether to compute with a value may take long."""
    return (type(value) is int and abs(value) > 2**64) or (
        is_exactly(value, str, bytes, tuple) and len(value) > 10_000
    )


def binary(m: Machine, name: str, left: Any, right: Any, *, in_place: bool) -> Any:
    """Return what an operator gives of two values."""
    if v.is_tensor(left) or v.is_tensor(right):
        if in_place and v.is_tensor(left):
            return tensors.in_place(m, left, (right,), {})
        return tensors.operate(m, getattr(operator, name), (left, right), {})
    if in_place and is_a(left, list) and name == "add":
        m.overlay.to_write(left).extend(iteration.drain(m, right))
        return left
    if in_place and is_a(left, dict) and name == "or_":
        m.overlay.to_write(left).update(iteration.as_dict(m, right))
        return left
    word = name.strip("_")
    for owner, other, prefix in (
        *([(left, right, "i")] if in_place else []),
        (left, right, ""),
        (right, left, "r"),
    ):
        found = m.method_of_user(owner, f"__{prefix}{word}__")
        if found is not MISSING:
            return m.call(found, (owner, other), {})
    if is_a(left, *v.CONTAINERS) and is_a(right, *v.CONTAINERS):
        return _of_containers(m, name, left, right)
    if is_a(left, list, tuple) and name == "mul" and type(right) is int:
        found = iteration.elements_of(m, left) * min(right, 10_000)
        return tuple(found) if is_a(left, tuple) else v.OwnList(found)
    if v.is_plain(left) and v.is_plain(right):
        if name in ("pow", "lshift", "mul") and any(map(is_large, (left, right))):
            return v.Unknown(why="a large number")
        if name == "mod" and type(left) is str:
            return v.Unknown(why="text")
        return computed(m, getattr(operator, name), (left, right), {})
    given = (left, right)
    if type(left) is v.Unknown or type(right) is v.Unknown:
        marks = m.held(given)
        return v.Unknown(v.unsure(marks), "arithmetic") if not marks else m.unknown(name, *given)
    return m.unknown(f"the operator {word}", *given)


def _of_containers(m: Machine, name: str, left: Any, right: Any) -> Any:
    if is_a(left, dict) and name == "or_":
        return v.OwnDict({**iteration.as_dict(m, left), **iteration.as_dict(m, right)})
    first, second = iteration.elements_of(m, left), iteration.elements_of(m, right)
    if name == "add":
        return (tuple if is_a(left, tuple) else v.OwnList)([*first, *second])
    if is_a(left, set, frozenset) and name in ("or_", "and_", "sub", "xor"):
        function = getattr(operator, name)
        return v.OwnSet(function(set(map(v.key_of, first)), set(map(v.key_of, second))))
    return m.unknown(name, left, right)


def unary(m: Machine, name: str, value: Any) -> Any:
    """Return what ``-``, ``+`` or ``~`` gives."""
    if v.is_tensor(value):
        return tensors.operate(m, getattr(operator, name), (value,), {})
    found = m.method_of_user(value, f"__{name}__")
    if found is not MISSING:
        return m.call(found, (value,), {})
    return computed(m, getattr(operator, name), (value,), {})


def compare(m: Machine, function: Any, left: Any, right: Any) -> Any:
    """Return what a comparison gives."""
    if v.is_tensor(left) or v.is_tensor(right):
        return tensors.operate(m, function, (left, right), {})
    if type(left) is v.Unknown or type(right) is v.Unknown:
        return v.Unknown(why="a comparison")
    left, right = plainly(m, left), plainly(m, right)
    if v.is_plain(left) and v.is_plain(right):
        return computed(m, function, (left, right), {})
    name = f"__{function.__name__}__"
    found = m.method_of_user(left, name)
    if found is not MISSING:
        return m.call(found, (left, right), {})
    is_equality = function is operator.eq or function is operator.ne
    if is_equality and all(
        is_a(each, type) or iteration.compares_by_identity(m, each) for each in (left, right)
    ):
        return (left is right) == (function is operator.eq)
    return v.Unknown(why="a comparison")
