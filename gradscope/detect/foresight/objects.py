"""Looks up what a name as it is written stands for, without running any of the user's code."""

from __future__ import annotations

import ast
from types import FrameType
from typing import Any

from gradscope.code.bytecode import MISSING
from gradscope.program.containers import Contents
from gradscope.program.layouts import is_a, is_exactly
from gradscope.program.reach import ON_DEMAND
from gradscope.program.variables import local_variables

_READER = Contents(ON_DEMAND.max_items)


class Objects:
    """The variables of one frame, held: to be dropped after the look."""

    def __init__(self, frame: FrameType) -> None:
        self._variables = {**frame.f_globals, **dict(local_variables(frame))}

    def find(self, text: str) -> Any:
        """Return what the text stands for; MISSING where only the user's code could tell."""
        match ast.parse(text).body:
            case [ast.Expr(value=node)]:
                return self._value(node)
        return MISSING

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name):
                return self._variables.get(name, MISSING)
            case ast.Attribute(value=owner, attr=name):
                return _part_of(self._value(owner), "attribute", name)
            case ast.Subscript(value=owner, slice=key):
                return _part_of(self._value(owner), "item", self._value(key))
            case ast.Constant(value=value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))):
                return -number
        return MISSING


def _part_of(owner: Any, kind: str, key: Any) -> Any:
    """Return an attribute or element as it is stored, without asking descriptors."""
    if not is_exactly(key, str, int):
        return MISSING
    held = _READER.of(owner)
    if is_a(owner, list, tuple) and type(key) is int and key < 0:
        key += sum(how == "item" for how, *_ in held)
    for how, name, value in held:
        if how == kind and name == key:
            return value
        if how in ("class", "globals") and kind == "attribute":
            found = _part_of(value, "attribute" if how == "class" else "item", key)
            if found is not MISSING:
                return found
    return MISSING
