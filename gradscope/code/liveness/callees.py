"""Carries what is tracked from a call into the functions that it runs, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import CO_OPTIMIZED, CO_VARARGS, CO_VARKEYWORDS
from types import CodeType
from typing import Any, NamedTuple, TypeAlias

from gradscope.code.liveness.flow import MISSING
from gradscope.code.liveness.parts import put
from gradscope.code.liveness.values import NO_MARKS, Env, Invocation, Marks, Value, union
from gradscope.code.names import is_part, root_of


class Callee(NamedTuple):
    """A function that a call runs: its code, the path of its object, whether under ``no_grad``.

    ``given`` are as many of its first arguments as it has already, as a bound method its object.
    ``inside`` returns what its own names mean, for the caller's paths of its parameters; without
    it, they mean what they mean to the caller.
    """

    code: CodeType
    owner: str = ""
    no_grad: bool = False
    defaults: tuple[tuple[str, Any], ...] = ()
    given: int = 0
    inside: Callable[[Mapping[str, str]], Resolve] | None = None

    @property
    def bound(self) -> int:
        """How many of its first parameters get nothing that the call is written with."""
        return self.given + bool(self.owner and self.code.co_argcount)


Resolve: TypeAlias = Callable[[str], Callee | None]
"""Finds the code behind a dotted name of the frame; None where it is not to be followed."""


def arguments(callee: Callee, call: Invocation) -> dict[str, Value]:
    """Return what a call gives to the parameters that have a name."""
    code = callee.code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    places = names[callee.bound : code.co_argcount]
    found = dict(zip(places, call.arguments[: call.positional], strict=False))
    return {**found, **{name: value for name, value in call.named.items() if name in names}}


def names_in(callee: Callee, caller: CodeType, resolve: Resolve | None, call: Invocation) -> Any:
    """Return what finds the code behind the names of a function that is called."""
    if callee.inside is None:
        return resolve if callee.code.co_filename == caller.co_filename else None
    return callee.inside({n: v.path for n, v in arguments(callee, call).items() if v.path})


def parameters(callee: Callee, call: Invocation) -> dict[str, Marks]:
    """Return the marks of a function's parameters."""
    code = callee.code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found = {name: value.marks for name, value in arguments(callee, call).items()}
    has_rest = code.co_flags & CO_VARARGS
    extra = code.co_varnames[len(names) : len(names) + 2]
    rest = union(call.arguments[max(code.co_argcount - callee.bound, 0) : call.positional])
    if rest and has_rest:
        found[extra[0]] = put(rest)
    for keyword, value in call.named.items():
        if keyword not in names and code.co_flags & CO_VARKEYWORDS:
            name = extra[1] if has_rest else extra[-1]
            found[name] = found.get(name, NO_MARKS) | put(value.marks)
    return {name: marks for name, marks in found.items() if marks}


def given_values(callee: Callee, call: Invocation) -> dict[str, Any]:
    """Return what is known of a function's parameters: MISSING where that is nothing."""
    code = callee.code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = arguments(callee, call).items()
    values = {name: MISSING if value.marks else value.constant for name, value in given}
    return {**dict.fromkeys(names, MISSING), **dict(callee.defaults), **values}


class Crossing:
    """One call of a known function: which of the caller's paths it has, and under which names."""

    def __init__(self, caller: CodeType, callee: Callee, env: Env, call: Invocation) -> None:
        code = callee.code
        self._same_file = code.co_filename == caller.co_filename
        self.owner = callee.owner
        self.first = code.co_varnames[0] if callee.owner and code.co_argcount else ""
        self._caller, self._code, self._env = caller, code, env
        owned = {
            self.first + path[len(callee.owner) :]: path
            for path in env
            if self.first and is_part(path, callee.owner)
        }
        # What a method stores under its own name for the owner is stored under the caller's, too.
        shared = {
            path: marks
            for path, marks in env.items()
            if path not in owned.values() and self.shares(path)
        }
        self._taken = {*shared, *owned.values()}
        self.start: dict[str, Marks] = {
            **shared,
            **{name: env[path] for name, path in owned.items()},
        }
        for name, marks in parameters(callee, call).items():
            self.start[name] = self.start.get(name, NO_MARKS) | marks

    def after(self, left: Env) -> Env:
        """Return what the caller has after a call that left this behind."""
        after = {path: marks for path, marks in self._env.items() if path not in self._taken}
        for path, marks in left.items():
            if outer := self.outer_path(path):
                after[outer] = marks
        return after

    def outer_path(self, path: str) -> str:
        """Return the caller's name for a path of the function; empty where it has none."""
        if self.first and is_part(path, self.first):
            return self.owner + path[len(self.first) :]
        return path if self.shares(path) else ""

    def shares(self, path: str) -> bool:
        """Return whether a function of the same file has the path's variable too."""
        root, code, own = root_of(path), self._code, self._caller
        if not self._same_file:
            return False
        if root in code.co_freevars:
            return True
        local = root in code.co_varnames or root in code.co_cellvars
        mine = own.co_flags & CO_OPTIMIZED and root in (
            *own.co_varnames,
            *own.co_cellvars,
            *own.co_freevars,
        )
        return not local and not mine
