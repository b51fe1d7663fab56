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
from gradscope.program.containers import derives, ids, is_a, is_exactly

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


class Taint(NamedTuple):
    """Says that a value leads to the target through the live tensor ``held``, read at ``note``.

    ``sure``: everything between the two is known.
    """

    held: Any
    note: Bookmark | None = None
    sure: bool = True


Taints = frozenset[Taint]
NO_TAINTS: Taints = frozenset()
# Live tensors that a simulated value may lead to: the sum over a list of states leads to all of
# them, and each operation joins the sets of its arguments. Of more, some are dropped, and a
# prediction names one of the others.
_MOST_TAINTS = 24


def unsure(taints: Taints) -> Taints:
    """Return the taints of an unknown value that was made from values with these taints."""
    return frozenset(taint._replace(sure=False) for taint in taints) if taints else taints


def union(found: Iterable[Taints]) -> Taints:
    """Return the union of these taints, up to ``_MOST_TAINTS``."""
    result = NO_TAINTS
    for taints in found:
        if taints and len(result) < _MOST_TAINTS:
            result |= taints
    return result


class _Reading(threading.local):
    """The values that this thread's reading has made and that hold other values, while anything
    refers to them.

    Unlike with a WeakSet, no Python code runs when one of them dies. If a signal handler raised an
    exception in such code, Python would print and drop it, and Ctrl-C would do nothing.
    """

    def __init__(self) -> None:
        self._made: list[weakref.ref[FutureValue]] = []

    def add(self, made: FutureValue) -> None:
        """Note a value that holds other values, and so may be part of a reference cycle."""
        self._made.append(weakref.ref(made))

    def alive(self) -> list[FutureValue]:
        """Return those values that something still refers to."""
        found = [made for each in self._made if (made := each()) is not None]
        self._made = [*map(weakref.ref, found)]
        return found

    def let_go(self) -> None:
        """Release all values now: in a reference cycle they would live on, with objects of the
        program, until the garbage collector comes.
        """
        for made in self.alive():
            made.clear()
        self._made.clear()


reading: Final = _Reading()


class FutureValue:
    """A value that the interpreter made. All other values are objects of the program, and only
    read.
    """

    __slots__ = ("__weakref__",)

    def __call__(self) -> None:
        """Exist, so that Python accepts a value as the function of a method or of a partial."""

    def clear(self) -> None:
        """Release what it holds."""
        for name in type(self).__slots__:
            setattr(self, name, None)


class Unknown(FutureValue):
    """A value of which nothing is known; ``why`` says in a word what it came from."""

    __slots__ = ("taints", "why")

    def __init__(self, taints: Taints = NO_TAINTS, why: str = "") -> None:
        self.taints = taints
        self.why = why


def known(found: Any, why: str) -> Any:
    """Return what was found, or an unknown value if that is None."""
    return Unknown(why=why) if found is None else found


def any_of(found: Sequence[Any]) -> Any:
    """Return True if any of these is True; else an unknown one, if there is one; else False."""
    return any(one is True for one in found) or next((one for one in found if one), False)


Twin: TypeAlias = "functools._lru_cache_wrapper[Any]"
"""The shape of a tensor, found on the meta device when it is first asked for: it gives a tensor
without memory, or a tuple of them; None if unknown.
"""
NO_TWIN: Final[Twin] = functools.cache(lambda: None)
ANYTHING: Final = object()
NO_TENSOR: Final[Twin] = functools.cache(lambda: ANYTHING)
"""For a result that may be no tensor, but an object whose attributes lead where it leads."""


class FutureTensor(FutureValue):
    """A tensor that the program will make, or a tuple of tensors if an operator returns several."""

    __slots__ = ("apart", "base", "fields", "kind", "requires_grad", "taints", "twin")

    def __init__(
        self, taints: Taints = NO_TAINTS, twin: Twin = NO_TWIN, requires_grad: bool | None = None
    ) -> None:
        self.taints = taints
        self.twin = twin
        self.requires_grad = True if taints else requires_grad
        self.apart = True  # may lead to more than its taints
        self.base: Any = None  # of a view: what is written into it is written there as well
        self.fields = OwnDict()
        self.kind: type = torch.Tensor


class Instance(FutureValue):
    """An object that the program will make; ``payload`` is the content of a built-in type."""

    __slots__ = ("fields", "kind", "payload")

    def __init__(self, kind: type, payload: Any = None, **fields: Any) -> None:
        self.kind = kind
        self.fields = OwnDict(fields)
        self.payload = payload
        reading.add(self)


class Function(FutureValue):
    """A function that the program will make, with the attributes of a Python function."""

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
        reading.add(self)


class BuiltinMethod(FutureValue):
    """A method of a built-in type, by its name, bound to what it is called on."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: Any, name: str) -> None:
        self.owner = owner
        self.name = name


class Cell(FutureValue):
    """A variable of a function made ahead that functions in it share."""

    __slots__ = ("cell_contents",)

    def __init__(self, value: Any = NULL) -> None:
        self.cell_contents = value
        reading.add(self)


class Super(FutureValue):
    """What ``super()`` gives."""

    __slots__ = ("after", "owner")

    def __init__(self, after: type, owner: Any) -> None:
        self.after = after
        self.owner = owner


class Suspended(FutureValue):
    """A generator or coroutine: a frame that is entered again; ``state`` says how far it is."""

    __slots__ = ("frame", "state")

    def __init__(self, frame: Any, state: str = "new") -> None:
        self.frame = frame
        self.state = state  # new, suspended, running, done
        reading.add(self)


class Elements(FutureValue):
    """An iterator over ``elements``; ``holds`` are the values that it takes them from."""

    __slots__ = ("elements", "holds")

    def __init__(self, elements: Iterable[Any], *holds: Any) -> None:
        self.elements = iter(elements)
        self.holds = holds
        reading.add(self)


class Wrapped(FutureValue):
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
    """The simulated program raises an exception."""


class Stop(Exception):  # noqa: N818 - no error of ours
    """The reading of one path ends here.

    ``kind`` is ``hazard`` if it has come to what is looked for, ``clear`` if nothing leads there
    any more, ``end`` if the program ends, and ``lost`` if it cannot be read any further.
    """

    def __init__(self, kind: str, why: str = "") -> None:
        super().__init__()
        self.kind = kind
        self.why = why


class Unordered(Exception):  # noqa: N818 - no error of ours
    """It is not known which of two values is the smaller one."""


def lost(why: str) -> Any:
    """End this path, because what comes now is not known."""
    raise Stop("lost", why)


class OwnList(list[Any]):
    """A simulated list."""


class OwnDict(dict[Any, Any]):
    """A simulated dict."""


class OwnSet(set[Any]):
    """A simulated set."""


class OwnDeque(deque[Any]):
    """A simulated deque."""


KINDS: Final = ((dict, OwnDict), (list, OwnList), (set, OwnSet), (deque, OwnDeque))
OWN: Final[dict[int, type]] = {id(own): kind for kind, own in KINDS}
"""The type of a simulated container, by the id of its class: to hash a class may run its code."""
CONTAINERS: Final = (list, dict, set, frozenset, tuple, deque)
MUTABLE: Final = (list, dict, set, deque)

PLAIN: Final = ids(
    *(int, float, str, bool, type(None), bytes, complex, range, slice, type(...)),
    *(torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format, CodeType),
)
"""Types, by their ids, whose values are compared and computed with as they are."""


# Parts of a nested tuple that are checked for code of the user, in a few milliseconds.
_MOST_PARTS = 10_000


def is_plain(value: Any) -> bool:
    """Return whether comparing and hashing a value runs no code of the user.

    A value that contains itself, or has very many parts, is taken to run some.
    """
    waiting = [value]
    for number, each in enumerate(waiting):  # which grows on the way
        kind = type(each)
        if kind is tuple or kind is frozenset:
            waiting += gc.get_referents(each)  # C may still be filling a tuple
        elif id(kind) not in PLAIN:
            return False
        if number > _MOST_PARTS:
            return False
    return True


class ById(NamedTuple):
    """A key that is compared by identity, because hashing it could run code of the user."""

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
    """What is known of objects, by their ids. It holds the objects, so that no id is used again."""

    def known(self, of: Any, find: Callable[[Any], Any]) -> Any:
        """Return what is known of an object; if that is nothing yet, what ``find`` finds."""
        found = self.get(id(of))
        if found is None:
            found = self[id(of)] = of, find(of)
        return found[1]


class Overlay:
    """What the simulated program has written to objects. The objects themselves stay as they are.

    ``view`` returns an object as the program would see it, ``to_write`` a copy to write into.
    """

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
        is_made = issubclass(type(of), FutureValue) or id(type(of)) in OWN
        known: Any = (self._copies, self._attributes, self._cells)
        return not is_made and not any(id(of) in each for each in known)

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

    def value_in(self, variable: Any) -> Any:
        """Return the value in a frame's variable, where it may lie in a cell."""
        return self.cell(variable) if is_exactly(variable, Cell, CellType) else variable

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
    if kind is Instance or kind is FutureTensor:
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
    return type(value) is FutureTensor or derives(type(value), torch.Tensor)


class Fork(NamedTuple):
    """A branch on something unknown: where it is, how it is written, and the way taken."""

    code: CodeType
    at: int
    turn: int
    taken: bool


class Hazard(NamedTuple):
    """A backward call ahead that runs what is looked for; ``parted``: an optimizer steps or resets
    gradients before.
    """

    note: Bookmark
    taints: Taints
    sure: bool
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
