"""Defines a way that the code can go, and what comes at its end."""

from __future__ import annotations

from collections.abc import Mapping
from types import CodeType
from typing import Any, NamedTuple

from gradscope.code.liveness.notes import Phase
from gradscope.code.liveness.values import Env, State, Value

_MOST_STEPS = 6_000  # instructions followed for one question
_MOST_ELSEWHERE = 1_500  # of those, in one function of another file

Written = Mapping[str, Any]
"""What the followed code has stored: by path; ``*.h``: an attribute of some object."""


class Condition(NamedTuple):
    """A test whose outcome is not known, and the outcome that it has on this way."""

    code: CodeType
    at: int
    taken: bool


Conditions = tuple[Condition, ...]


class Way(NamedTuple):
    """A way through the code, up to an instruction."""

    at: int
    state: State
    written: Written
    phase: Phase = Phase()
    conditions: Conditions = ()
    distance: int = 0


class Coming(NamedTuple):
    """A backward call through what is tracked: the read that it comes of, where, on which way."""

    read: int
    at: tuple[CodeType, int]
    conditions: Conditions
    phase: Phase = Phase()
    distance: int = 0


class Returned(NamedTuple):
    """A way on which the function returns first."""

    env: Env
    value: Value
    written: Written
    conditions: Conditions


class Exploration:
    """What was found on all ways so far.

    ``unread``: what is tracked went into code that was not read to its end, which may let go of it.
    """

    def __init__(self, *, to_yield: bool = False, most: int = _MOST_STEPS) -> None:
        self.to_yield = to_yield
        self.most = most
        self.unread = False
        self.steps = 0
        self.coming: list[Coming] = []
        self.lost: list[Conditions] = []  # ways on which nothing refers to it any more
        self.raised: list[Conditions] = []
        self.decided: set[int] = set()  # branches of the outermost code whose outcome is known

    @property
    def is_complete(self) -> bool:
        """Whether all ways were followed to their end."""
        return self.steps < self.most

    def elsewhere(self) -> Exploration:
        """Return an exploration of a function of another file, which may be a large one."""
        return Exploration(most=min(_MOST_ELSEWHERE, self.most - self.steps))

    def add(self, part: Exploration) -> None:
        """Count what a part of it has found in a function that the code calls."""
        self.steps += part.steps
        self.unread = self.unread or part.unread or not part.is_complete
        if part.is_complete:
            self.coming += part.coming
            self.lost += part.lost
            self.raised += part.raised
