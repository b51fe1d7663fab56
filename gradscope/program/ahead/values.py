"""Defines the values of the interpreter: live objects, objects made ahead, tensors, unknowns.

Also what is met along one way ahead: forks, conditions on numbers, and the hazard.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from math import inf, isfinite
from types import AsyncGeneratorType, CellType, CodeType, CoroutineType, FunctionType, GeneratorType
from typing import Any, Final, NamedTuple, TypeAlias

import torch

from gradscope.code.bytecode import MISSING
from gradscope.program.containers import derives, ids, is_a

Given = tuple[Any, ...]
Named = Mapping[str, Any]


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


NULL: Any = type("Null", (), {"__slots__": (), "__repr__": lambda self: "NULL"})()
"""The filler of the call convention, and a variable that is not bound."""


class Bookmark(NamedTuple):
    """Where a live tensor was read: the instruction, and what was crossed on the way to it.

    ``depth`` counts the live frames from the innermost; ``again``: a loop around the place where
    the reading began had started its next iteration; ``steps`` says how soon.
    """

    code: CodeType
    at: int
    depth: int
    again: bool
    steps: int


class Mark(NamedTuple):
    """Says that a value leads to the target through the live tensor ``held``, read at ``note``.

    ``sure``: everything between the two is known.
    """

    held: Any
    note: Bookmark | None = None
    sure: bool = True


Marks = frozenset[Mark]
NO_MARKS: Marks = frozenset()
# Live tensors that a simulated value may lead to: the sum over a list of states leads to all of
# them, and each operation joins the sets of its arguments.
_MOST_MARKS = 24


def unsure(marks: Marks) -> Marks:
    """Return the marks of something unknown that was made of what has these."""
    return frozenset(mark._replace(sure=False) for mark in marks) if marks else marks


def union(found: Iterable[Marks]) -> Marks:
    """Return all these marks, or as many as are worth following."""
    result = NO_MARKS
    for marks in found:
        if marks and len(result) < _MOST_MARKS:
            result |= marks
    return result


class _Alive:
    """The objects of a set that are still alive. Unlike in a WeakSet, no Python code runs when one
    dies: an exception that a signal handler raised there would be lost.
    """

    def __init__(self) -> None:
        self._references: list[weakref.ref[Made]] = []

    def add(self, made: Made) -> None:
        self._references.append(weakref.ref(made))

    def __iter__(self) -> Iterator[Made]:
        found = dict.fromkeys(made for each in self._references if (made := each()) is not None)
        self._references = [*map(weakref.ref, found)]
        return iter(found)

    def clear(self) -> None:
        self._references.clear()


class _Reading(threading.local):
    """What the reading of this thread has made, as long as anything refers to it."""

    def __init__(self) -> None:
        self.holding = _Alive()
        """What may hold other values, and be part of a cycle of references."""

    def let_go(self) -> None:
        """Let go of all values: none may outlive the reading, which the collector would decide."""
        for made in self.holding:
            made.clear()
        self.holding.clear()


reading: Final = _Reading()


class Made:
    """What the interpreter made; everything else is an object of the program's, only looked at."""

    __slots__ = ("__weakref__",)

    def __call__(self) -> None:
        """Be something that can be called, for a method or partial to be made of it."""

    def clear(self) -> None:
        """Let go of what it holds."""
        for name in type(self).__slots__:
            setattr(self, name, None)


class Unknown(Made):
    """Anything at all; ``why`` says in a word what it came from."""

    __slots__ = ("marks", "why")

    def __init__(self, marks: Marks = NO_MARKS, why: str = "") -> None:
        self.marks = marks
        self.why = why


def known(found: Any, why: str) -> Any:
    """Return what was found, or something unknown where that is None."""
    return Unknown(why=why) if found is None else found


def any_of(found: Sequence[Any]) -> Any:
    """Return True if one of these is; else what is not known, if there is something; else False."""
    return any(one is True for one in found) or next((one for one in found if one), False)


Twin: TypeAlias = "functools._lru_cache_wrapper[Any]"
"""The shape of a tensor, found on the meta device when it is first asked for: it gives a tensor
without memory, or a tuple of them; None if unknown.
"""
NO_TWIN: Final[Twin] = functools.cache(lambda: None)
ANYTHING: Final = object()
NO_TENSOR: Final[Twin] = functools.cache(lambda: ANYTHING)
"""Of a result that may be another object, whose attributes lead where it leads."""


class Ahead(Made):
    """A tensor that will be made, or a tuple of those where an operator gives several."""

    __slots__ = ("apart", "base", "fields", "kind", "marks", "requires_grad", "twin")

    def __init__(
        self, marks: Marks = NO_MARKS, twin: Twin = NO_TWIN, requires_grad: bool | None = None
    ) -> None:
        self.marks = marks
        self.twin = twin
        self.requires_grad = True if marks else requires_grad
        self.apart = True  # may lead to more than its marks
        self.base: Any = None  # of a view: what is written into it is written there as well
        self.fields = OwnDict()
        self.kind: type = torch.Tensor


class Instance(Made):
    """An object that will be made; ``payload`` is what one of a built-in type holds."""

    __slots__ = ("fields", "kind", "payload")

    def __init__(self, kind: type, payload: Any = None, **fields: Any) -> None:
        self.kind = kind
        self.fields = OwnDict(fields)
        self.payload = payload
        reading.holding.add(self)


class Function(Made):
    """A function that will be made; its attributes are named as those of one that is there."""

    __slots__ = (
        *("__closure__", "__code__", "__defaults__", "__globals__", "__kwdefaults__"),
        "fields",
    )

    def __init__(self, code: CodeType, space: Any) -> None:
        self.__code__ = code
        self.__globals__ = space
        self.__defaults__: tuple[Any, ...] = ()
        self.__kwdefaults__: Mapping[str, Any] = {}
        self.__closure__: tuple[Any, ...] = ()
        names = {"__name__": code.co_name, "__qualname__": code.co_qualname, "__doc__": None}
        self.fields = OwnDict(names)
        reading.holding.add(self)


class BuiltinMethod(Made):
    """A method of a built-in type, by its name, bound to what it is called on."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: Any, name: str) -> None:
        self.owner = owner
        self.name = name


class Cell(Made):
    """A variable of a function made ahead that functions in it share."""

    __slots__ = ("cell_contents",)

    def __init__(self, value: Any = NULL) -> None:
        self.cell_contents = value
        reading.holding.add(self)


class Super(Made):
    """What ``super()`` gives."""

    __slots__ = ("after", "owner")

    def __init__(self, after: type, owner: Any) -> None:
        self.after = after
        self.owner = owner


class Suspended(Made):
    """A generator or coroutine: a frame that is entered again; ``state`` is one of STATES."""

    __slots__ = ("frame", "state")

    def __init__(self, frame: Any, state: str = "new") -> None:
        self.frame = frame
        self.state = state  # new, suspended, running, done
        reading.holding.add(self)


class Elements(Made):
    """An iterator: ``step`` gives the next element or raises Exhausted.

    ``holds`` are the values that it takes them from.
    """

    __slots__ = ("holds", "step")

    def __init__(self, step: Callable[[], Any], *holds: Any) -> None:
        self.step = step
        self.holds = holds
        reading.holding.add(self)


class Wrapped(Made):
    """What an asynchronous generator gives, to tell it from what that itself waits for."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class _Carrying(Exception):  # noqa: N818 - no error of ours
    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self.value = value


class Exhausted(_Carrying):
    """An iterator has no more elements; ``value`` is what a generator returned."""


class Raised(_Carrying):
    """The program read ahead raises an exception."""


class Stop(Exception):  # noqa: N818 - no error of ours
    """The reading of one way ends here; ``kind`` is ``lost``, ``end``, ``clear`` or ``hazard``."""

    def __init__(self, kind: str, why: str = "") -> None:
        super().__init__()
        self.kind = kind
        self.why = why


class Unordered(Exception):  # noqa: N818 - no error of ours
    """It is not known which of two values is the smaller one."""


def lost(why: str) -> Any:
    """End this way: what comes now is not known."""
    raise Stop("lost", why)


class OwnList(list[Any]):
    """A list made ahead."""


class OwnDict(dict[Any, Any]):
    """A dict made ahead."""


class OwnSet(set[Any]):
    """A set made ahead."""


class OwnDeque(deque[Any]):
    """A deque made ahead."""


KINDS: Final = ((dict, OwnDict), (list, OwnList), (set, OwnSet), (deque, OwnDeque))
OWN: Final[dict[int, type]] = {id(own): kind for kind, own in KINDS}
"""What a container made ahead stands for, by the id of its class: to hash one may run its code."""
CONTAINERS: Final = (list, dict, set, frozenset, tuple, deque)
MUTABLE: Final = (list, dict, set, deque)

PLAIN: Final = ids(
    *(int, float, str, bool, type(None), bytes, complex, range, slice, type(...)),
    *(torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format, CodeType),
)
"""Types, by their ids, whose values are compared and computed with as they are."""


# Parts of a nested tuple that are checked for code of the user, in some milliseconds.
_MOST_PARTS = 10_000


def is_plain(value: Any) -> bool:
    """Return whether comparing and hashing a value runs none of the user's code.

    What holds itself, is nested deep or has very many parts is taken to run some.
    """
    waiting = [value]
    for number, each in enumerate(waiting):  # which grows on the way
        kind = type(each)
        if kind is tuple or kind is frozenset:
            waiting += gc.get_referents(each)  # what C keeps for itself may have empty places
        elif id(kind) not in PLAIN:
            return False
        if number > _MOST_PARTS:
            return False
    return True


class ById(NamedTuple):
    """A key that is compared by identity in the overlay, as hashing it could run user code."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return type(other) is ById and other.value is self.value

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return id(self.value)


def key_of(value: Any) -> Any:
    """Return what stands for a key in the overlay."""
    if id(type(value)) in PLAIN or is_plain(value):
        return value
    return tuple(map(key_of, value)) if type(value) is tuple else ById(value)


def value_of(key: Any) -> Any:
    """Return the key that this stands for."""
    if type(key) is ById:
        return key.value
    return tuple(map(value_of, key)) if type(key) is tuple else key


class ByIdentity(dict[int, tuple[Any, Any]]):
    """What is known of objects by their ids, which the objects, being held, keep taken."""

    def known(self, of: Any, find: Callable[[Any], Any]) -> Any:
        """Return what is known of an object; what is found, where that is nothing yet."""
        found = self.get(id(of))
        if found is None:
            found = self[id(of)] = of, find(of)
        return found[1]


class Overlay:
    """What the program would have written: everything else is as it is."""

    def __init__(self) -> None:
        self._copies, self._attributes = ByIdentity(), ByIdentity()
        self._cells, self._plain = ByIdentity(), ByIdentity()

    def view(self, of: Any) -> Any:
        """Return the container itself or what stands for it; keys are as ``key_of`` gives them."""
        is_own = type(of) is Instance or id(type(of)) in OWN or id(of) in self._copies
        if is_own or (
            is_a(of, dict, set, frozenset) and not self._plain.known(of, _has_plain_keys)
        ):
            return self.to_write(of)
        return of

    def to_write(self, of: Any) -> Any:
        """Return what takes the place of a container, to be written to."""
        if type(of) is Instance:
            return of.payload
        if id(type(of)) in OWN:
            return of
        return self._copies.known(of, _copied)

    def attributes(self, of: Any) -> dict[str, Any]:
        """Return the attributes that would have been stored in an object, to be read."""
        found: dict[str, Any] = self._attributes.get(id(of), (of, {}))[1]
        return found

    def attributes_to_write(self, of: Any) -> dict[str, Any]:
        """Return the attributes that would have been stored in an object, to be written to."""
        found: dict[str, Any] = self._attributes.known(of, lambda _: {})
        return found

    def dict_of(self, of: Any, own: dict[str, Any]) -> OwnDict:
        """Return ``own`` and the attributes that would have been stored as the object's dict."""
        stored = self.attributes_to_write(of)
        if type(stored) is not OwnDict:
            found = {**own, **stored}
            stored = OwnDict({name: value for name, value in found.items() if value is not MISSING})
            self._attributes[id(of)] = of, stored
        return stored

    def is_untouched(self, of: Any) -> bool:
        """Return whether an object is the program's and nothing would have been written to it."""
        known: Any = (self._copies, self._attributes, self._cells)
        return not issubclass(type(of), Made | OwnList | OwnDict | OwnSet | OwnDeque) and not any(
            id(of) in each for each in known
        )

    def written(self) -> Iterator[Any]:
        """Yield what is in all that the program would have written to."""
        for inside in (*self._copies.values(), *self._attributes.values()):
            yield from dict.values(inside[1]) if is_a(inside[1], dict) else inside[1]
        yield from (inside for _, inside in self._cells.values())

    def cell(self, cell: Any) -> Any:
        """Return what is in a cell; NULL where nothing is."""
        known = self._cells.get(id(cell))
        if known is not None:
            return known[1]
        try:
            return cell.cell_contents
        except ValueError:
            return NULL

    def set_cell(self, cell: Any, value: Any) -> None:
        """Put a value into a cell."""
        if type(cell) is Cell:
            cell.cell_contents = value
        else:
            self._cells[id(cell)] = cell, value


_OWN = next(sys.getrefcount(of) - 1 for of in [object()])  # references that looking at it adds


def base_of(of: Any, *kinds: type) -> Any:
    """Return the first of these classes that an object is of; None if there is none."""
    return next((kind for kind in kinds if is_a(of, kind)), None)


def _has_plain_keys(of: Any) -> bool:
    return all(map(is_plain, base_of(of, dict, set, frozenset).__iter__(of)))


def _copied(of: Any) -> Any:
    base = base_of(of, *CONTAINERS)
    if base is dict:
        return OwnDict((key_of(key), value) for key, value in [*dict.items(of)])
    if base is list:
        return OwnList(list.__iter__(of))
    if base is deque:
        return OwnDeque(deque.__iter__(of), deque.maxlen.__get__(of))
    if base in (set, frozenset):
        return OwnSet(map(key_of, [*base.__iter__(of)]))
    return lost(f"a write to {type(of).__name__}")


def kind_of(value: Any) -> type:
    """Return the class of a value, as the program would see it."""
    kind = type(value)
    if kind is Instance or kind is Ahead:
        found: type = value.kind
        return found
    if kind is Suspended and value.frame is not None:
        flags = value.frame.code.co_flags
        generator = AsyncGeneratorType if flags & CO_ASYNC_GENERATOR else GeneratorType
        return CoroutineType if flags & CO_COROUTINE else generator
    return OWN.get(id(kind)) or _KINDS.get(id(kind)) or kind


_KINDS: Final[dict[int, type]] = {id(Function): FunctionType, id(Cell): CellType}


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor, live or ahead."""
    return type(value) is Ahead or derives(type(value), torch.Tensor)


class Fork(NamedTuple):
    """A branch on something unknown: where it is, how it is written, and the way taken."""

    code: CodeType
    at: int
    turn: int
    taken: bool
    depth: int


class Hazard(NamedTuple):
    """A backward call ahead that runs what is looked for, after so many ``steps`` of the
    interpreter; ``parted``: an optimizer steps or resets gradients before.
    """

    note: Bookmark
    marks: Marks
    sure: bool
    steps: int
    parted: bool
    gone: frozenset[str]
    alone: bool


class Compared(NamedTuple):
    """A condition on a number: whether it held, and by how much the number has to rise or to fall
    for it to turn.
    """

    holds: bool
    number: float
    rise: float
    fall: float


Conditions: TypeAlias = dict[tuple[int, int], Compared]
"""Conditions by the id of their code and their instruction, as they were met first."""


def compared(number: Any, others: Sequence[Any], holds: Any) -> Compared | None:
    """Return what a condition says that turns where a number comes to one of others."""
    if not others or not all(map(is_number, (number, *others))) or type(holds) is not bool:
        return None
    apart = [other - number for other in others]
    rise = min((each for each in apart if each >= 0), default=inf)
    fall = min((-each for each in apart if each <= 0), default=inf)
    return Compared(holds, -apart[0], rise, fall)


def divided(number: Any, by: Any) -> Compared | None:
    """Return what a remainder says, which is zero now and then."""
    if not (type(number) is type(by) is int and by > 0):
        return None
    remainder = number % by
    return Compared(not remainder, number, by - remainder, remainder or by)


def is_number(value: Any) -> bool:
    """Return whether a value is a plain number that can be extrapolated."""
    return type(value) is int or (type(value) is float and isfinite(value))
