"""Names the functions that a tracked call runs, and the marks that their parameters start with."""

from __future__ import annotations

from collections.abc import Callable
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType
from typing import Any, NamedTuple, TypeAlias

from gradscope.code.liveness.flow import MISSING
from gradscope.code.liveness.parts import put
from gradscope.code.liveness.values import NO_MARKS, Invocation, Marks, union


class Callee(NamedTuple):
    """A function that a call runs: its code, the path of its object, whether under ``no_grad``."""

    code: CodeType
    owner: str = ""
    no_grad: bool = False
    defaults: tuple[tuple[str, Any], ...] = ()


Resolve: TypeAlias = Callable[[str], Callee | None]
"""Finds the code behind a dotted name of the frame; None where it is not to be followed."""


def parameters(code: CodeType, call: Invocation, *, bound: bool) -> dict[str, Marks]:
    """Return the marks of a function's parameters; ``bound``: the first is its object."""
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = call.arguments[: call.positional]
    places = names[bound : code.co_argcount]
    found = [(name, value.marks) for name, value in zip(places, given, strict=False)]
    has_rest = code.co_flags & CO_VARARGS
    extra = code.co_varnames[len(names) : len(names) + 2]
    rest = union(given[len(places) :])
    if rest and has_rest:
        found.append((extra[0], put(rest)))
    for keyword, value in call.named.items():
        if keyword in names:
            found.append((keyword, value.marks))
        elif code.co_flags & CO_VARKEYWORDS:
            found.append((extra[1] if has_rest else extra[-1], put(value.marks)))
    parameters: dict[str, Marks] = {}
    for name, marks in found:
        if marks:
            parameters[name] = parameters.get(name, NO_MARKS) | marks
    return parameters


def given_values(callee: Callee, call: Invocation, *, bound: bool) -> dict[str, Any]:
    """Return what is known of a function's parameters: MISSING where that is nothing."""
    code = callee.code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found: dict[str, Any] = {**dict.fromkeys(names, MISSING), **dict(callee.defaults)}
    given = call.arguments[: call.positional]
    for name, value in zip(names[bound : code.co_argcount], given, strict=False):
        found[name] = MISSING if value.marks else value.constant
    for keyword, value in call.named.items():
        if keyword in found:
            found[keyword] = MISSING if value.marks else value.constant
    return found
