"""Carries what is tracked from a caller into a function, and back."""

from __future__ import annotations

from inspect import CO_OPTIMIZED
from types import CodeType

from gradscope.code.liveness.callees import Callee, parameters
from gradscope.code.liveness.values import NO_MARKS, Env, Invocation, Marks
from gradscope.code.names import is_part, root_of


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
