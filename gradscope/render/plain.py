"""Turns the model into plain JSON values, by the fields of its dataclasses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Set
from dataclasses import fields, is_dataclass
from typing import Any

LeftOut = Mapping[type, Set[str]]
"""The fields that a view does not show."""

_NAMES = {"site": "location"}


def plain(value: Any, left_out: LeftOut, shown: Callable[[Any], Any]) -> Any:
    """Return what ``json`` writes: a dataclass as an object by its fields.

    ``shown`` is asked first for what stands in the place of a value.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, tuple | list):
        return [plain(part, left_out, shown) for part in value]
    value = shown(value)
    if not is_dataclass(value):
        return value
    names = keys(type(value), left_out).items()
    return {key: plain(getattr(value, name), left_out, shown) for key, name in names}


def keys(kind: Any, left_out: LeftOut) -> dict[str, str]:
    """Return the keys of a dataclass in JSON, each with the name of its field."""
    names = (field.name for field in fields(kind) if field.name not in left_out.get(kind, ()))
    return {_NAMES.get(name, name): name for name in names}


def dumped(value: Any, **options: Any) -> str:
    """Return a value as JSON that any encoding has, and that no terminal obeys."""
    return json.dumps(value, **options).replace("\x7f", "\\u007f")
