"""Says what is met along one way ahead: forks, and the hazard."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from types import CodeType
from typing import Any, NamedTuple, TypeAlias

from gradscope.program.ahead.values import Marks, Note


class Fork(NamedTuple):
    """A branch on something unknown: where it is, how it is written, and the way taken."""

    code: CodeType
    at: int
    turn: int
    taken: bool
    depth: int


class Hazard(NamedTuple):
    """A backward call ahead that runs what is looked for, after so many ``steps`` of the
    interpreter; ``parted``: an optimizer steps or resets gradients before.
    """

    note: Note
    marks: Marks
    sure: bool
    steps: int
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
