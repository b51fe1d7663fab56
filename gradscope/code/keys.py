"""Tells which elements a subscript in a loop can take from here on: ``data[i]``, ``data[-i - 1]``.

A loop's variable takes what its iterator still gives, a counter counts on, and what
nothing stores keeps its value.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gradscope.code import changes, source
from gradscope.code.liveness import is_exactly
from gradscope.code.names import is_part
from gradscope.model import Site

ALL: Any = object()
"""A loop that is begun again takes every element."""

_MOST = 4_096
_Operation: TypeAlias = Callable[[Any, Any], Any]
_OPERATIONS: Mapping[type[ast.operator], _Operation] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


_Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class _UnknownError(Exception):
    """What a variable will be is not known."""


@dataclass(frozen=True, slots=True)
class LoopAtHand:
    """A loop around the starting point, and what it will still give: None where not all is known.

    Each object comes with the part of the element that it is.
    """

    node: source.Loop
    coming: Sequence[tuple[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Here:
    """A place at which a function stands: the loops around it, innermost first, and its values.

    ``value`` raises LookupError for what is not known. ``names_given`` returns the names that a
    method of an object gives, each with something else; None where they are not known.
    """

    site: Site
    loops: tuple[LoopAtHand, ...]
    value: Callable[[str], Any]
    names_given: Callable[[str, str], Sequence[str] | None]


def keys_taken(at: Site, here: Here | None, level: int) -> Any:
    """Return the keys, as parts, that the subscript at a place can have once the next iteration of
    the loop with number ``level``, counted from the innermost, has begun; 0: in this iteration.

    ALL where the loops in which it stands begin again; None where the keys are not known. Without
    ``here``, the place is in another function than the one that stands still.
    """
    node = source.node_at(at, ast.Subscript)
    if node is None:
        return None
    try:
        found = _Keys(here, level, node, at.file).all()
    except _UnknownError:
        return None
    return found if found is ALL else frozenset(f"[{key!r}]" for key in found)


class _Keys:
    def __init__(self, here: Here | None, level: int, node: ast.Subscript, file: str) -> None:
        self._file = file
        self._here = here
        self._level = level
        self._node = node

    def all(self) -> Any:
        """Return all keys; ALL if a loop that begins again has the choice."""
        names = sorted({n.id for n in ast.walk(self._node.slice) if isinstance(n, ast.Name)})
        names = [name for name in names if name != "len"]
        choices = [self._choices(name) for name in names]
        if any(choice is ALL for choice in choices):
            return ALL
        found: set[Any] = set()
        for number, values in enumerate(itertools.product(*choices)):
            if number > _MOST:
                raise _UnknownError
            found.update(self._keys(dict(zip(names, values, strict=True))))
        return found

    # what a variable will be

    def _choices(self, name: str) -> Any:
        line = self._node.lineno
        inner = _comprehensions_around(self._node, self._file)
        given = [g for each in inner for g in each.generators if _part_of(g.target, name)]
        if given:
            return self._in_comprehension(inner, given[0], name)
        around = [loop.node for loop in self._here.loops] if self._here is not None else []
        for loop in source.loops_around(self._file, line):
            if loop not in around and isinstance(loop, ast.For) and _part_of(loop.target, name):
                return ALL
        if self._here is None:
            raise _UnknownError
        region = source.function_around(self._here.site)
        stores = [s for s in source.statements_of(region) if name in changes.targets_of(s)]
        for depth, at_hand in enumerate(self._here.loops, 1):
            part = _part_of(at_hand.node.target, name) if isinstance(at_hand.node, ast.For) else ()
            if not part:
                continue
            inside = [s for s in stores if s is not at_hand.node and _in(s, at_hand.node)]
            if inside or not source.spans(at_hand.node, line):
                raise _UnknownError
            if self._level > depth:
                return ALL
            if self._level == depth:
                return _given(at_hand, part[0])
            return [self._value(name)]
        return self._stored_in_between(name, stores)

    def _in_comprehension(
        self, inner: Sequence[_Comprehension], given: ast.comprehension, name: str
    ) -> Any:
        """Return what a comprehension, which begins again and leaves nothing out, gives."""
        if len(inner) > 1 or len(inner[0].generators) > 1 or given.ifs:
            raise _UnknownError
        part, iterated = _part_of(given.target, name)[0], ast.unparse(given.iter)
        container = ast.unparse(self._node.value)
        own = {container: "", f"{container}.keys()": "", f"{container}.items()": "[0]"}
        if own.get(iterated) == part:
            return ALL
        match given.iter:
            case ast.Tuple(elts=elements) | ast.List(elts=elements) if not part:
                return [self._computed(each, {}) for each in elements]
            case ast.Call(func=ast.Attribute(value=owner, attr=method), args=[], keywords=[]):
                known = self._names_given(ast.unparse(owner), method) if part == "[0]" else None
            case _:
                known = None
        if known is None:
            raise _UnknownError
        return known

    def _names_given(self, owner: str, method: str) -> Sequence[str] | None:
        if self._here is None:
            return None
        here, region = self._here.site, source.function_around(self._here.site)
        outer = self._here.loops[-1].node if self._here.loops else None
        for statement in source.statements_of(region):
            ahead = statement.lineno >= here.line or (outer is not None and _in(statement, outer))
            targets = changes.targets_of(statement) if ahead else ()
            if any(target == owner or is_part(owner, target) for target in targets):
                return None
        return self._here.names_given(owner, method)

    def _stored_in_between(self, name: str, stores: list[ast.stmt]) -> Sequence[Any]:
        """Return what a variable that is no loop's will be: as it is, or counted on."""
        assert self._here is not None
        here = self._here.site.line
        if not self._level:
            if any(here < s.lineno <= self._node.lineno for s in stores):
                raise _UnknownError
            return [self._value(name)]
        loop = self._here.loops[self._level - 1].node
        between = [s for s in stores if _in(s, loop)]
        if not between:
            return [self._value(name)]
        step = _step(between[0]) if len(between) == 1 and between[0] in loop.body else None
        first = self._value(name)
        if step is None or type(first) is not int:
            raise _UnknownError
        first += step if between[0].lineno > here else 0
        return range(first, first + step * _MOST, step)

    def _value(self, path: str) -> Any:
        assert self._here is not None
        try:
            return self._here.value(path)
        except LookupError:
            raise _UnknownError from None

    # what the key then is

    def _keys(self, known: Mapping[str, Any]) -> Iterator[Any]:
        size = self._size()
        key = self._node.slice
        if isinstance(key, ast.Slice):
            bounds = [
                None if each is None else self._computed(each, known)
                for each in (key.lower, key.upper, key.step)
            ]
            if size is None or bounds[2] == 0:
                raise _UnknownError
            yield from range(size)[slice(*bounds)]
            return
        found = self._computed(key, known)
        if type(found) is int and found < 0:
            if size is None:
                raise _UnknownError
            found += size
        yield found

    def _size(self) -> int | None:
        container = self._container()
        return len(container) if is_exactly(container, list, tuple) else None

    def _container(self) -> Any:
        try:
            return self._value(ast.unparse(self._node.value)) if self._here is not None else None
        except _UnknownError:
            return None

    def _computed(self, node: ast.expr, known: Mapping[str, Any]) -> Any:
        match node:
            case ast.Constant(value=found):
                pass
            case ast.Name(id=name):
                found = known[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                found = -self._number(operand, known)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
                numbers = self._number(left, known), self._number(right, known)
                if numbers[1] == 0:
                    raise _UnknownError
                found = _OPERATIONS[type(op)](*numbers)
            case ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)]):
                found = known[name]
                found = len(found) if is_exactly(found, list, tuple) else None
            case ast.Subscript(value=ast.Name(id=name), slice=key) if type(known[name]) is list:
                place = self._number(key, known)
                if not -len(known[name]) <= place < len(known[name]):
                    raise _UnknownError
                found = known[name][place]
            case _:
                raise _UnknownError
        if not is_exactly(found, int, str):
            raise _UnknownError
        return found

    def _number(self, node: ast.expr, known: Mapping[str, Any]) -> int:
        found = self._computed(node, known)
        if type(found) is not int:
            raise _UnknownError
        return found


def _comprehensions_around(node: ast.AST, file: str) -> list[_Comprehension]:
    """Return the comprehensions that an expression is in."""
    statement = source.enclosing(file, getattr(node, "lineno", 0))[-1:]
    return [
        each
        for each in ast.walk(statement[0] if statement else node)
        if isinstance(each, _Comprehension) and any(inner is node for inner in ast.walk(each))
    ]


def _in(statement: ast.stmt, loop: ast.AST) -> bool:
    return statement is not loop and source.spans(loop, statement.lineno)


def _part_of(target: ast.expr, name: str, part: str = "") -> tuple[str, ...]:
    """Return which part of an element a loop stores in a variable; nothing if none."""
    if isinstance(target, ast.Name):
        return (part,) if target.id == name else ()
    if not isinstance(target, ast.Tuple | ast.List):
        return ()
    inner = (_part_of(each, name, f"{part}[{i}]") for i, each in enumerate(target.elts))
    return next((found for found in inner if found), ())


def _given(loop: LoopAtHand, part: str) -> list[Any]:
    """Return what a loop will still store in the variable for this part of its elements."""
    if loop.coming is None:
        raise _UnknownError
    found = []
    for at, each in loop.coming:
        if part.startswith(at):
            found.append(_followed(each, part[len(at) :]))
    return found


def _followed(found: Any, part: str) -> Any:
    while part:
        place, _, part = part[1:].partition("]")
        if not is_exactly(found, list, tuple) or len(found) <= int(place):
            raise _UnknownError
        found = found[int(place)]
    return found


def _step(statement: ast.stmt) -> int | None:
    """Return by how much ``i += 1`` counts on."""
    if not isinstance(statement, ast.AugAssign) or not isinstance(statement.value, ast.Constant):
        return None
    step = statement.value.value
    if type(step) is not int or step == 0:
        return None
    return {ast.Add: step, ast.Sub: -step}.get(type(statement.op))
