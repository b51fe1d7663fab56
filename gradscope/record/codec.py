"""Turns the model into JSON text and back, by the fields and type hints of its dataclasses.

A dataclass becomes the list of its values. A recording stores the names of the fields once, as
``LAYOUT``, and is read by them: a field added to the model later reads as its default, and one that
the reader does not know is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from operator import attrgetter
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import gradscope.model as model

T = TypeVar("T")
Convert = Callable[[Any], Any]
Layout = Mapping[str, Sequence[str]]

LAYOUT: Layout = {
    kind.__name__: [field.name for field in fields(kind)]
    for kind in vars(model).values()
    if isinstance(kind, type) and is_dataclass(kind)
}
"""The fields of every dataclass of the model, in the order in which they are written."""

_LARGEST = 1 << 63
"""Numbers are no larger, so that those who show them can reckon with them."""

_MOST_LINES = 10_000
"""No place has more: those who show one go through its lines."""


_VALUES = {name: attrgetter(*names) for name, names in LAYOUT.items()}


def row(value: Any) -> Any:
    """Return the values of a dataclass of the model."""
    return _VALUES[type(value).__name__](value)


def dumps(value: Any, row: Convert = row) -> str:
    """Return plain values, and ``row`` of each dataclass of the model, as JSON text in ASCII, which
    every encoding can write: the name of a file may have characters that UTF-8 has not.
    """
    return json.dumps(value, check_circular=False, separators=(",", ":"), default=row)


def parse(text: object) -> Any:
    """Return what JSON text holds; raise ValueError where it is no JSON."""
    if not isinstance(text, str | bytes):
        raise ValueError(f"expected text, found {type(text).__name__}")
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


class Decoder:
    """Reads what ``dumps`` wrote; raises ValueError for what does not fit the model.

    Of texts that are longer than ``most`` characters it reads so many.
    """

    def __init__(self, layout: Layout = LAYOUT, most: int | None = None) -> None:
        self._layout = layout
        self._most = most
        self._readers: dict[Any, Convert] = {}

    def loads(self, kind: type[T], text: object) -> T:
        """Return the value of type ``kind`` in ``text``."""
        return self.read(kind, parse(text))

    def read(self, kind: type[T], plain: Any) -> T:
        """Return the value of type ``kind`` of which ``plain`` was made."""
        return self._reader(kind)(plain)  # type: ignore[no-any-return]

    def _reader(self, kind: Any) -> Convert:
        if kind not in self._readers:
            self._readers[kind] = self._make_reader(kind)
        return self._readers[kind]

    def _make_reader(self, kind: Any) -> Convert:
        """Return what reads values of the type ``kind``, and checks them."""
        if is_dataclass(kind):
            return self._dataclass_reader(kind)
        origin, args = get_origin(kind), get_args(kind)
        if origin is UnionType:
            (inner,) = (self._reader(arg) for arg in args if arg is not type(None))
            return lambda plain: None if plain is None else inner(plain)
        if origin is dict:
            checked, value = _scalar_reader(dict, None), self._reader(args[1])
            return lambda plain: {key: value(each) for key, each in checked(plain).items()}
        if origin is tuple:
            return _tuple_reader(self._reader(args[0]))
        return kind if issubclass(kind, Enum) else _scalar_reader(kind, self._most)

    def _dataclass_reader(self, kind: Any) -> Convert:
        hints = get_type_hints(kind)
        written = self._layout.get(kind.__name__, ())
        readers = [self._reader(hints[name]) if name in hints else _passed_over for name in written]
        required = {
            f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING
        }
        if missing := required.difference(written):
            raise ValueError(f"{kind.__name__} without {', '.join(sorted(missing))}")

        as_now = list(written) == LAYOUT[kind.__name__]

        def read(plain: Any) -> Any:
            if type(plain) is not list or len(plain) != len(readers):
                raise ValueError(f"expected {kind.__name__}")
            if as_now:  # the usual case, by position: half the time
                return kind(*[reader(item) for reader, item in zip(readers, plain, strict=True)])
            known = zip(written, readers, plain, strict=True)
            return kind(**{name: reader(item) for name, reader, item in known if name in hints})

        return _place_reader(read) if {"line", "end_line"} <= hints.keys() else read


def _passed_over(plain: Any) -> None:
    """Take a value of a later version."""


def _place_reader(read: Convert) -> Convert:
    def read_place(plain: Any) -> Any:
        place = read(plain)
        if place.end_line - place.line > _MOST_LINES:
            raise ValueError("a place of so many lines")
        return place

    return read_place


def _scalar_reader(kind: type, most: int | None) -> Convert:
    allowed = (float, int) if kind is float else (kind,)
    is_number = kind in (int, float)

    def read(plain: Any) -> Any:
        if type(plain) not in allowed:
            raise ValueError(f"expected {kind.__name__}, found {type(plain).__name__}")
        if is_number and not -_LARGEST <= plain <= _LARGEST:
            raise ValueError("a number is too large")
        return plain[:most] if kind is str else plain

    return read


def _tuple_reader(item: Convert) -> Convert:
    def read(plain: Any) -> tuple[Any, ...]:
        if type(plain) is not list:
            raise ValueError(f"expected a list, found {type(plain).__name__}")
        return tuple([item(part) for part in plain])

    return read
