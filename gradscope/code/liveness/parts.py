"""Follows what leads from a value to the tracked object, as containers are filled and emptied."""

from __future__ import annotations

import re
from collections.abc import Callable

from gradscope.code.liveness.values import NO_MARKS, Invocation, Mark, Marks, Value, union

ANYWHERE = "[*]"
"""A part of a container whose place is not known."""

_FIRST = re.compile(r"\.\w+|\[(?:\*|-?\d+|'[^']*'|\"[^\"]*\")\]")
_LONGEST = 60


def taken(marks: Marks, part: str = "") -> Marks:
    """Return the marks of an element or attribute, ``part``, of a container; of any one if empty.

    Where it is not known what leads to the object, the part may lead to it.
    """
    if not marks:
        return NO_MARKS
    found = set()
    for mark in marks:
        first, rest = _split(mark.rest)
        if not _differ(first, part):
            found.add(mark._replace(rest=rest))
    return frozenset(found)


def of_attribute(marks: Marks, name: str) -> Marks:
    """Return the marks of an attribute; a method of a container leads where the container does."""
    fields = frozenset(mark for mark in marks if mark.rest.startswith("."))
    return taken(fields, f".{name}") | (marks - fields) if fields else marks


def given_one_by_one(marks: Marks) -> Marks:
    """Return the marks of what an iterator gives: of a dict that is its keys, not what is kept."""
    return taken(frozenset(m for m in marks if m.rest[:2] not in ("['", '["')))


def place_of(mark: Mark) -> str:
    """Return the part of a container that leads to the object; empty where any may."""
    first = _split(mark.rest)[0]
    return "" if first == ANYWHERE else first


def put(marks: Marks, part: str = ANYWHERE) -> Marks:
    """Return the marks of a container that such a value was put into, as this part."""
    return frozenset(mark._replace(rest=_shortened(part + mark.rest)) for mark in marks)


def rearranged(marks: Marks, inner: str = "") -> Marks:
    """Return the marks of a container with the same elements at other places, each wrapped as the
    part ``inner`` of a tuple.
    """
    found = set()
    for mark in marks:
        first, rest = _split(mark.rest)
        found.add(mark._replace(rest=_shortened(ANYWHERE + inner + rest) if first else ""))
    return frozenset(found)


def sliced(marks: Marks, bounds: object) -> Marks:
    """Return the marks of a slice of a sequence."""
    return rearranged(frozenset(m for m in marks if not _is_outside(_split(m.rest)[0], bounds)))


def _is_outside(part: str, bounds: object) -> bool:
    """Return whether a slice leaves out a part whatever the length of the sequence is."""
    place = part[1:-1]
    if not isinstance(bounds, slice) or not place.isdigit() or (bounds.step or 1) < 1:
        return False
    first, end = bounds.start or 0, bounds.stop
    if int(place) < first:
        return True
    return end is not None and 0 <= end <= int(place)


def transposed(marks: Marks) -> Marks:
    """Return the marks of ``zip(*rows)``."""
    found = set()
    for mark in marks:
        first, rest = _split(mark.rest)
        second, rest = _split(rest)
        found.add(mark._replace(rest=second + first + rest if second else ""))
    return frozenset(found)


def blurred(marks: Marks) -> Marks:
    """Return the marks of what may lead to the object in any way."""
    return frozenset(mark._replace(rest="") for mark in marks)


def handed_on(call: Invocation) -> Marks:
    """Return the marks of what a call returns that hands on what it was given, or an element."""
    callee, arguments = call.callee, call.arguments
    if callee.path == callee.attribute:
        of_builtin = _BUILTINS.get(callee.attribute)
        return blurred(union(arguments)) if of_builtin is None else of_builtin(arguments)
    of_method = _METHODS.get(callee.attribute)
    if of_method is None:
        return blurred(callee.marks | union(arguments))
    return of_method(callee.marks) | union(arguments)


def _zipped(arguments: tuple[Value, ...]) -> Marks:
    each = (rearranged(value.marks, f"[{i}]") for i, value in enumerate(arguments))
    return NO_MARKS.union(*each)


def _same_elements(arguments: tuple[Value, ...]) -> Marks:
    return rearranged(union(arguments))


def _one_of(arguments: tuple[Value, ...]) -> Marks:
    return taken(arguments[0].marks) | union(arguments[1:]) if arguments else NO_MARKS


def _largest(arguments: tuple[Value, ...]) -> Marks:
    return _one_of(arguments) if len(arguments) == 1 else blurred(union(arguments))


_BUILTINS: dict[str, Callable[[tuple[Value, ...]], Marks]] = {
    **dict.fromkeys(
        ("list", "tuple", "set", "frozenset", "reversed", "sorted", "deque", "filter", "chain"),
        _same_elements,
    ),
    **dict.fromkeys(("iter", "aiter"), union),
    **dict.fromkeys(("next", "anext"), _one_of),
    **dict.fromkeys(("max", "min"), _largest),
    "zip": _zipped,
    "enumerate": lambda arguments: rearranged(union(arguments), "[1]"),
}
_METHODS: dict[str, Callable[[Marks], Marks]] = {
    **dict.fromkeys(("pop", "popleft", "get", "get_nowait"), taken),
    "popitem": lambda marks: put(taken(marks), "[1]"),
    "items": lambda marks: rearranged(marks, "[1]"),
    "values": rearranged,
}


def _split(rest: str) -> tuple[str, str]:
    """Return the first part and what follows it; both empty where it is not known."""
    first = _FIRST.match(rest)
    return (first[0], rest[first.end() :]) if first is not None else ("", "")


def _differ(one: str, other: str) -> bool:
    """Return whether two parts are of different places; a field has a name and a number."""
    return one != other and ANYWHERE not in (one, other) and one[:1] == other[:1]


def _shortened(rest: str) -> str:
    return rest if len(rest) <= _LONGEST else ""
