"""Traces numbers and arrays that have left torch in a rehearsal back to the values they came from.

Results know their values too, if Python or numpy computes them.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_UNARY = ("neg", "pos", "abs")
# Plain floats that are kept alive so that their ids stay unique: the `loss.item()` of each
# iteration of a rehearsal, which ends after tens of them. Of further ones, the origin is not
# known.
_MOST_KEPT = 10_000

_bare: dict[int, tuple[object, tuple[int, ...]]] = {}
"""The plain numbers that ``float(x)`` gave, by identity, with the values that they came from."""


_owned: dict[int, tuple[weakref.ref[Any], tuple[int, ...]]] = {}
"""What arrays were computed from, by the identity of the one whose memory it is: ``np.asarray``
gives a plain view of that.
"""


class Number(float):
    """A float that knows the values that it was computed from."""

    __slots__ = ("origins",)
    origins: tuple[int, ...]

    def __reduce__(self) -> Any:
        return float, (float(self),)


def number(value: float, origins: tuple[int, ...]) -> Number:
    """Return a number that knows its origins."""
    made = Number(value)
    made.origins = origins
    return made


def _computed(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def method(self: Number, *others: Any) -> Any:
        result = plain(self, *others)
        if type(result) is not float:
            return result
        return number(result, _merged((self, *others)))

    method.__name__ = name
    return method


for _name in (*_BINARY, *(f"r{name}" for name in _BINARY), *_UNARY):
    setattr(Number, f"__{_name}__", _computed(f"__{_name}__"))


def origins_of(value: object) -> tuple[int, ...]:
    """Return the values that a number or an array was computed from; none if that is unknown."""
    kind = type(value)
    if kind is Number:
        return value.origins  # type: ignore[attr-defined, no-any-return]
    if kind is float:
        kept, origins = _bare.get(id(value), (None, ()))
        return origins if kept is value else ()
    if array_class is not None and isinstance(value, _plain_array):
        if kind is array_class:
            return value.origins  # type: ignore[no-any-return]
        owner = _owner(value)
        ref, origins = _owned.get(id(owner), (None, ()))
        return origins if ref is not None and ref() is owner else ()
    return ()


def _owner(array: Any) -> Any:
    """Return the array whose memory an array shows."""
    while isinstance(array.base, _plain_array):
        array = array.base
    return array


def _merged(values: Iterable[object]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(n for value in values for n in origins_of(value)))


def traced(value: Any, origins: tuple[int, ...], *, is_bare: bool = False) -> Any:
    """Return what has left torch so that it knows from where; ``is_bare``: Python takes nothing but
    a plain float.
    """
    if type(value) is float:
        if is_bare:
            if len(_bare) < _MOST_KEPT:
                _bare[id(value)] = value, origins
            return value
        return number(value, origins)
    if type(value) is list:
        return [traced(each, origins) for each in value]
    if array_class is not None and type(value) is _plain_array:
        view = value.view(array_class)
        view.origins = origins
        owner = _owner(value)
        _owned[id(owner)] = weakref.ref(owner), origins
        return view
    return value


_plain_array: Any = ()
array_class: Any = None
"""The class of arrays that know their origins; None without numpy."""


def _define() -> None:
    global _plain_array, array_class
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return

    def bare(value: Any) -> Any:
        if isinstance(value, array_class):
            return value.view(_plain_array)
        if type(value) in (tuple, list):
            return type(value)(map(bare, value))
        return value

    def each_in(values: Any) -> Any:
        for value in values:
            if type(value) in (tuple, list):
                yield from each_in(value)
            else:
                yield value

    class Array(numpy.ndarray):  # type: ignore[misc]
        """An array that knows the values that it was computed from."""

        origins: tuple[int, ...] = ()

        def __array_finalize__(self, source: Any) -> None:
            self.origins = getattr(source, "origins", ())

        def __array_ufunc__(self, function: Any, method: str, *given: Any, **named: Any) -> Any:
            return self.__array_function__(getattr(function, method), (), given, named)

        def __array_function__(self, function: Any, types: Any, given: Any, named: Any) -> Any:
            origins = _merged(each_in((*given, *named.values())))
            named = {key: bare(value) for key, value in named.items()}
            return marked(function(*map(bare, given), **named), origins)

        def __getitem__(self, key: Any) -> Any:
            return marked(super().__getitem__(bare(key)), self.origins)

        def __setitem__(self, key: Any, value: Any) -> None:
            super().__setitem__(key, value)
            self.origins = _merged((self, value))

        def item(self, *given: Any) -> Any:
            return traced(super().item(*given), self.origins)

        def tolist(self) -> Any:
            return traced(super().tolist(), self.origins)

        def __float__(self) -> float:
            return traced(float(self.view(_plain_array)), self.origins, is_bare=True)  # type: ignore[no-any-return]

        def __reduce__(self) -> Any:
            return self.view(_plain_array).__reduce__()

    def marked(result: Any, origins: tuple[int, ...]) -> Any:
        if isinstance(result, numpy.floating):
            result = numpy.asarray(result)  # a number of numpy's has no place for a note
        if type(result) is Array:
            result.origins = origins
            return result
        if type(result) in (tuple, list):
            return type(result)(marked(each, origins) for each in result)
        return traced(result, origins)

    _plain_array, array_class = numpy.ndarray, Array


_define()
