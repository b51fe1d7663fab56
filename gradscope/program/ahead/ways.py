"""Says what is met along one way ahead: forks, what is done with gradients, and the hazard."""

from __future__ import annotations

from enum import Enum
from types import CodeType
from typing import Any, NamedTuple

from gradscope.program.ahead.values import Marks, Note


class Fork(NamedTuple):
    """A branch on something unknown: where it is, how it is written, and the way taken."""

    code: CodeType
    at: int
    turn: int
    taken: bool
    depth: int


class What(Enum):
    """What makes or uses gradients: a backward call, an optimizer's step, a reset."""

    BACKWARD = 1
    STEP = 2
    ZERO = 3


class GradEvent(NamedTuple):
    """One thing done with gradients ahead; ``of`` is the optimizer, module or tensor."""

    what: What
    of: Any = None


class Way(NamedTuple):
    """How to come to a hazard: which way to go at each fork, after how many backward calls and
    steps of the interpreter it comes.
    """

    choices: tuple[bool, ...]
    calls: int
    steps: int


class Hazard(NamedTuple):
    """A backward call ahead that runs what is looked for."""

    note: Note
    marks: Marks
    sure: bool
    way: Way
    gone: frozenset[str]
    alone: bool
