"""Computes with values that are known: what a condition gives, without running any user's code."""

from __future__ import annotations

import dis
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from gradscope.code.liveness.flow import MISSING, Instruction

_PLAIN: Final = (bool, int, float, str, bytes, type(None), type(...), range)
_MOST_ITEMS = 64
_LARGEST = 2**64
_COMPARED = 4 if sys.version_info >= (3, 12) else 0
_COMPARED += 1 if sys.version_info >= (3, 13) else 0

_SYMBOLS: Final = ["+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^"]
"""The operators of BINARY_OP by its argument; those in place follow in the same order."""

Operation = Callable[[Any, Any], Any]
_COMPARE: Final[Mapping[str, Operation]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}
_COMPUTE: Final[Mapping[str, Operation]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "/": operator.truediv,
    "%": operator.mod,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}
_OF_NUMBERS: Final[Mapping[str, Callable[..., Any]]] = {
    each.__name__: each for each in (bool, int, float, abs, min, max, range, round, str, len)
}
_OF_TEXT: Final = frozenset({"startswith", "endswith", "lower", "upper", "strip"})
_ITERATES: Final = frozenset({"enumerate", "zip", "reversed", "list", "tuple", "iter", "tqdm"})


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """An object of the program that is known, but may only be asked what runs none of its code."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return type(other) is Opaque and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


TRACKED: Final = Opaque(object())
"""Stands for a tracked object: no more is known of it than that it is not None."""


@dataclass(frozen=True, slots=True)
class Rest:
    """An iterator: over what, how many elements were taken in thought, and whether more come."""

    source: Any = MISSING
    ahead: int = 0
    more: bool | None = None


class Facts(Protocol):
    """What can be said of the program's objects without running any of its code.

    Values are plain, Opaque, or MISSING where nothing is known. ``changeable`` are the names of
    variables and attributes that functions of the program store; ``defined`` those of functions.
    """

    changeable: frozenset[str]
    defined: frozenset[str]

    def within(self, resolve: Any) -> Facts:
        """Return the same for a function whose names that resolves."""

    def find(self, path: str, *, glob: bool = False) -> Any:
        """Return what a path of the frame stands for; ``glob``: of its module."""

    def part(self, owner: Any, rest: str) -> Any:
        """Return an attribute or element of an object: ``.h``, ``[3]``."""

    def lacks(self, owner: Any, name: str) -> bool:
        """Return whether it is known that an object has no attribute of this name."""

    def truth(self, found: Any) -> bool | None:
        """Return whether an object counts as true."""

    def size(self, found: Any) -> int | None:
        """Return the length of a container."""

    def has(self, container: Any, found: Any) -> bool | None:
        """Return whether something plain is in a container."""

    def is_a(self, found: Any, kind: Any) -> bool | None:
        """Return what ``isinstance`` says."""

    def is_compared_by_identity(self, found: Any) -> bool:
        """Return whether ``==`` asks for nothing but identity."""

    def peek(self, source: Any, ahead: int) -> tuple[bool | None, Any]:
        """Return whether an iterator or container has that many elements and one more; and that."""

    def is_finite(self, source: Any) -> bool:
        """Return whether it is known how many elements an iterator or container has."""

    def gives(self, owner: Any, method: str) -> bool | None:
        """Return whether what a method of an object iterates over has any element."""

    def running(self, depth: int) -> Any:
        """Return the iterator of a loop of the frame, at a depth of its stack."""

    def is_transparent(self, path: str) -> bool:
        """Return whether what is called is known, and no code of the program's."""


def is_exactly(found: object, *classes: type) -> bool:
    """Return whether an object is of one of these classes themselves. No metaclass is asked, which
    ``type(found) in classes`` does: it may define equality and a hash.
    """
    kind = type(found)
    return any(kind is cls for cls in classes)


def is_plain(value: object) -> bool:
    """Return whether a value can be computed with: no user's class is involved."""
    if type(value) is tuple:
        return len(value) <= _MOST_ITEMS and all(map(is_plain, value))
    return is_exactly(value, *_PLAIN)


def truth(value: Any, facts: Facts) -> bool | None:
    """Return whether a known value counts as true; None if unknown."""
    if type(value) is Opaque:
        return None if value is TRACKED else facts.truth(value.value)
    return bool(value) if value is not MISSING and is_plain(value) else None


def compute(instruction: Instruction, popped: Sequence[Any], facts: Facts) -> Any:
    """Return the result of an operator on known values; MISSING where it is not known."""
    if any(value is MISSING for value in popped):
        return MISSING
    name, arg = instruction.opname, instruction.arg
    found: Any = MISSING
    if name == "IS_OP":
        same = _is_same(*popped)
        return MISSING if same is None else same != bool(arg)
    if name == "CONTAINS_OP":
        inside = _is_in(popped[0], popped[1], facts)
        return MISSING if inside is None else inside != bool(arg)
    if name == "COMPARE_OP":
        found = _compared(dis.cmp_op[arg >> _COMPARED], popped[0], popped[1], facts)
    elif name in ("UNARY_NOT", "TO_BOOL"):
        known = truth(popped[0], facts)
        found = MISSING if known is None else known != (name == "UNARY_NOT")
    elif name == "UNARY_NEGATIVE" and type(popped[0]) in (int, float):
        found = -popped[0]
    elif name == "BINARY_OP":
        found = _computed(_SYMBOLS[arg % 13], *popped)
    elif name == "BUILD_TUPLE" and all(map(is_plain, popped)):
        found = tuple(popped)
    return found


def _is_same(a: Any, b: Any) -> bool | None:
    if type(a) is Opaque and type(b) is Opaque:
        return None if TRACKED in (a, b) else bool(a == b)
    if type(a) is Opaque or type(b) is Opaque:
        return False
    singles = (bool, type(None))
    return a is b if is_exactly(a, *singles) or is_exactly(b, *singles) else None


def _is_in(found: Any, container: Any, facts: Facts) -> bool | None:
    if type(container) is Opaque and container is not TRACKED:
        return facts.has(container.value, found) if is_plain(found) else None
    if type(container) in (tuple, range) or (type(container) is str and type(found) is str):
        return found in container if is_plain(found) else None
    return None


def _compared(symbol: str, a: Any, b: Any, facts: Facts) -> Any:
    if is_plain(a) and is_plain(b):
        return _tried(_COMPARE[symbol], a, b)
    if TRACKED in (a, b):
        return MISSING
    by_identity = all(is_plain(x) or facts.is_compared_by_identity(x.value) for x in (a, b))
    if symbol in ("==", "!=") and by_identity and Opaque in (type(a), type(b)):
        return (type(a) is type(b) and a == b) == (symbol == "==")
    return MISSING


def _computed(symbol: str, a: Any, b: Any) -> Any:
    is_number = type(a) in (int, float, bool) and type(b) in (int, float, bool)
    if symbol not in _COMPUTE or not (is_number or (type(a) is type(b) is str and symbol == "+")):
        return MISSING
    found = _tried(_COMPUTE[symbol], a, b)
    return found if found is MISSING or type(found) is str or abs(found) < _LARGEST else MISSING


def _tried(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (ArithmeticError, TypeError, ValueError):
        return MISSING


def called(path: str, arguments: Sequence[Any], facts: Facts) -> Any:
    """Return what a builtin function gives for known values."""
    name = path.rpartition(".")[2]
    if name in _ITERATES:
        rests = [iterate(a) for a in arguments if not is_plain(a) or type(a) is range]
        if not rests:
            return MISSING
        answers = {rest.more for rest in (rests if name == "zip" else rests[:1])}
        return Rest(more=False if False in answers else None if None in answers else True)
    if "." in path or not arguments or any(a is MISSING for a in arguments):
        return MISSING
    if name == "len" and type(arguments[0]) is Opaque:
        size = facts.size(arguments[0].value)
        return MISSING if size is None else size
    if name == "isinstance" and len(arguments) == 2 and type(arguments[1]) is Opaque:
        found = arguments[0].value if type(arguments[0]) is Opaque else arguments[0]
        known = facts.is_a(found, arguments[1].value)
        return MISSING if known is None else known
    if name in _OF_NUMBERS and all(map(is_plain, arguments)):
        return _tried(_OF_NUMBERS[name], *arguments)
    return MISSING


def asked(owner: Any, method: str, arguments: Sequence[Any], facts: Facts) -> Any:
    """Return what a method of a known text or dict gives."""
    if not all(map(is_plain, arguments)):
        return MISSING
    gives = facts.gives(owner.value, method) if type(owner) is Opaque else None
    if gives is not None:
        return Rest(more=gives)
    if type(owner) is str and method in _OF_TEXT:
        return _tried(getattr(owner, method), *arguments)
    if type(owner) is Opaque and type(owner.value) is dict and method == "get" and arguments:
        inside = facts.has(owner.value, arguments[0])
        if inside:
            return facts.part(owner.value, f"[{arguments[0]!r}]")
        if inside is False:
            return arguments[1] if len(arguments) > 1 else None
    return MISSING


def iterate(value: Any) -> Rest:
    """Return the iterator over a value."""
    if type(value) is Rest:
        return value
    return Rest(value) if type(value) in (range, tuple, Opaque) else Rest()


_FARTHEST = 3


def advance(rest: Rest, facts: Facts) -> tuple[bool | None, Any, Rest]:
    """Return whether an iterator gives one more element, which, and the iterator after that."""
    if rest.source is MISSING:
        return rest.more, MISSING, Rest()
    more, element = facts.peek(rest.source, rest.ahead)
    if more and rest.ahead >= _FARTHEST:
        # one more iteration stands for all that are left, if they are to end
        last = (True, MISSING, Rest(more=False))
        return last if facts.is_finite(rest.source) else (None, MISSING, Rest())
    return more, element, Rest(rest.source, rest.ahead + 1)
