"""Says what Python's operators give, as far as their operands are known."""

from __future__ import annotations

import operator
import types
from typing import Any, Final

from gradscope.code.bytecode import MISSING
from gradscope.program.ahead import iteration, tensors
from gradscope.program.ahead import values as v
from gradscope.program.ahead.machine import Machine
from gradscope.program.ahead.values import Given, Named
from gradscope.program.layouts import class_namespace, is_a, is_exactly


def computed(m: Machine, function: Any, given: Given, named: Named) -> Any:
    """Return what a function gives of plain values; what else it is given leads nowhere."""
    lists = [iteration.elements_of(m, each) for each in given if is_exactly(each, list, v.OwnList)]
    others = [each for each in given if not is_exactly(each, list, v.OwnList)]
    if not v.is_plain((*others, *named.values(), *map(tuple, lists))):
        return v.Unknown(v.unsure(m.held(given)), getattr(function, "__name__", ""))
    if any(map(is_large, others)):
        return v.Unknown(why="a large number")
    return m.compute(function, *given, **named)


def is_large(value: Any) -> bool:
    """Return whether to compute with a value may take long."""
    is_long = is_exactly(value, str, bytes, tuple) and len(value) > 10_000
    return is_long or (type(value) is int and abs(value) > 2**64)


def binary(m: Machine, name: str, left: Any, right: Any, *, in_place: bool) -> Any:
    """Return what an operator gives of two values."""
    word = name.strip("_")
    own = [m.method_of_user(left, f"__{prefix}{word}__") for prefix in ("i", "")]
    if v.is_tensor(left) or (v.is_tensor(right) and own == [MISSING, MISSING]):
        if in_place and v.is_tensor(left):
            return tensors.in_place(m, left, (right,), {})
        return tensors.operate(m, getattr(operator, name), (left, right), {})
    if in_place and is_a(left, list, dict) and name in ("add", "or_"):
        m.method(left, f"__i{word}__", right)
        return left
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
    kinds = (type, types.UnionType, type(None))
    if name == "or_" and is_exactly(left, *kinds) and is_exactly(right, *kinds):
        return m.compute(operator.or_, left, right)
    if v.is_plain(left) and v.is_plain(right):
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
    if name in ("or_", "and_", "sub", "xor"):  # of sets, or of a dict's keys
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


_REFLECTED: Final = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def compare(m: Machine, function: Any, left: Any, right: Any) -> Any:
    """Return what a comparison gives."""
    if v.is_tensor(left) or v.is_tensor(right):
        return tensors.operate(m, function, (left, right), {})
    if type(left) is v.Unknown or type(right) is v.Unknown:
        return v.Unknown(why="a comparison")
    name = function.__name__
    plain = _as_plain(m, left), _as_plain(m, right)
    if v.is_plain(plain):
        return computed(m, function, plain, {})
    for of, other, method in ((left, right, name), (right, left, _REFLECTED.get(name, name))):
        found = m.method_of_user(of, f"__{method}__")
        if found is not MISSING:
            given = m.call(found, (of, other), {})
            if given is not NotImplemented:
                return given
    if function is operator.ne:
        same = m.known_truth(compare(m, operator.eq, left, right))
        return v.Unknown(why="a comparison") if same is None else not same
    views = m.overlay.view(left), m.overlay.view(right)
    if any(all(is_a(each, kind) for each in views) for kind in (list, tuple)):
        first, second = iteration.elements_of(m, left), iteration.elements_of(m, right)
        for one, other in zip(first, second, strict=False):
            if not (same := are_same(m, one, other)):
                is_known = same is not None and function is operator.eq
                return False if is_known else compare(m, function, one, other)
        return function(len(first), len(second))
    if function is operator.eq and all(is_a(each, dict) for each in views):
        sizes = [len(each) for each in views]
        if sizes[0] != sizes[1] or not any(sizes):
            return sizes[0] == sizes[1]
    known = [is_a(e, type) or iteration.is_known_key(m, e) for e in (left, right)]
    if function is operator.eq and all(known):
        return left is right
    return v.Unknown(why="a comparison")


def _as_plain(m: Machine, value: Any) -> Any:
    """Return the text or number that a value is compared as, such as an enumeration's member."""
    plain: Any = ((str, str.__str__), (int, int.__int__), (float, float.__float__))
    for base, plainly in plain:
        if is_a(value, base):
            compares = [m.lookup(type(value), name) for name in v.words("__eq__ __ne__ __lt__")]
            own = [class_namespace(base)[name] for name in v.words("__eq__ __ne__ __lt__")]
            return plainly(value) if all(map(operator.is_, compares, own)) else value
    return value


def are_same(m: Machine, one: Any, value: Any) -> bool | None:
    """Return whether a container takes two values for the same; None if unknown."""
    if one is value or iteration.compares_by_identity(m, value):
        return one is value
    return m.known_truth(compare(m, operator.eq, one, value))


def contains(m: Machine, of: Any, value: Any) -> bool | None:
    """Return whether a value is in a container; None if unknown."""
    if type(of) is v.Unknown or type(value) is v.Unknown:
        return None
    found = m.method_of_user(of, "__contains__")
    if found is not MISSING:
        return m.known_truth(m.call(found, (of, value), {}))
    payload = m.overlay.view(of)
    if is_exactly(of, type({}.keys())):
        payload = dict.fromkeys(map(v.key_of, of))
    if is_a(payload, dict, set, frozenset):
        at = v.key_of(value)
        return True if at in payload else False if iteration.is_known_key(m, value) else None
    if is_a(payload, str, bytes, range):
        return bool(m.compute(operator.contains, payload, value)) if v.is_plain(value) else None
    if not is_a(payload, *v.CONTAINERS):
        return None
    found = [are_same(m, each, value) for each in iteration.elements_of(m, of)]
    return any(found) or (None if None in found else False)
