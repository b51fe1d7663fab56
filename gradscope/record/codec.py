"""Turns the model into JSON text and back, by the fields and type hints of its dataclasses.

A dataclass becomes the list of its values, without their names: a recording says of which
``FORMAT`` it is, and is read by a gradscope with the same one.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import gradscope.model as model

T = TypeVar("T")
Convert = Callable[[Any], Any]

_KINDS = [kind for kind in vars(model).values() if isinstance(kind, type)]

_ROWS = [kind for kind in _KINDS if is_dataclass(kind)]

LAYOUT = {kind.__name__: {field.name: field.type for field in fields(kind)} for kind in _ROWS}
"""The fields of every dataclass of the model with their types, in the order in which they are
written.
"""

_WORDS = {kind.__name__: [word.value for word in kind] for kind in _KINDS if issubclass(kind, Enum)}

FORMAT = zlib.crc32(f"4 {LAYOUT} {_WORDS}".encode())
"""What a file of another layout of the model has another one of; so has another layout of logs."""

_LARGEST = 1 << 63  # no number is larger, so that views can compute with them: 64 bits

# No site has more: views go through its lines, and a file made to do harm must not hold them up.
_MOST_LINES = 10_000

# Longer texts are cut to this; an argument of a program is never longer (Linux allows 128 KiB).
_MOST_CHARACTERS = 1 << 17

_VALUES = {name: attrgetter(*names) for name, names in LAYOUT.items()}


def _row(value: Any) -> Any:
    return [*value] if isinstance(value, Sequence) else _VALUES[type(value).__name__](value)


def dumps(value: Any) -> str:
    """Return plain values and dataclasses of the model as JSON text in ASCII, which every encoding
    can write: the name of a file may have characters that UTF-8 has not.
    """
    return json.dumps(value, check_circular=False, separators=(",", ":"), default=_row)


def parse(text: str | bytes) -> Any:
    """Return what JSON text holds; raise ValueError where it is no JSON."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


def loads(kind: type[T], text: str | bytes) -> T:
    """Return the value of type ``kind`` that ``dumps`` wrote as ``text``; raise ValueError for what
    does not fit the model.
    """
    return _reader(kind)(parse(text))  # type: ignore[no-any-return,arg-type]


@cache
def _reader(kind: Any) -> Convert:
    """Return what reads values of the type ``kind``, and checks them."""
    if is_dataclass(kind):
        return _dataclass_reader(kind)
    origin, args = get_origin(kind), get_args(kind)
    if origin is UnionType:
        (inner,) = (_reader(arg) for arg in args if arg is not type(None))
        return lambda plain: None if plain is None else inner(plain)
    if origin is dict:
        checked, value = _scalar_reader(dict), _reader(args[1])
        return lambda plain: {key: value(each) for key, each in checked(plain).items()}
    if origin in (tuple, Sequence):
        items, item = _scalar_reader(list), _reader(args[0])
        return lambda plain: tuple([item(part) for part in items(plain)])
    return kind if issubclass(kind, Enum) else _scalar_reader(kind)


def _dataclass_reader(kind: Any) -> Convert:
    hints = get_type_hints(kind)
    readers = [_reader(hints[field.name]) for field in fields(kind)]
    is_place = {"line", "end_line"} <= hints.keys()

    def read(plain: Any) -> Any:
        if type(plain) is not list or len(plain) != len(readers):
            raise ValueError(f"expected {kind.__name__}")
        made = kind(*[reader(item) for reader, item in zip(readers, plain, strict=True)])
        if is_place and made.end_line - made.line > _MOST_LINES:
            raise ValueError("a place of so many lines")
        return made

    return read


def _scalar_reader(kind: type) -> Convert:
    allowed = (float, int) if kind is float else (kind,)
    is_number = kind in (int, float)

    def read(plain: Any) -> Any:
        if type(plain) not in allowed:
            raise ValueError(f"expected {kind.__name__}, found {type(plain).__name__}")
        if is_number and not -_LARGEST <= plain <= _LARGEST:
            raise ValueError("a number is too large")
        return plain[:_MOST_CHARACTERS] if kind is str else plain

    return read
