"""A machine that looks for nothing, and what it gives of live iterators."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gradscope.program.ahead import iteration, questions
from gradscope.program.ahead.machine import Machine, Question
from gradscope.program.ahead.values import NO_TAINTS, Taint, Taints


class Nothing(Question):
    """The question that no tensor is of interest for."""

    def __init__(self, *wanted: Tensor) -> None:
        self.wanted = wanted

    def taints(self, tensor: Tensor) -> Taints:
        found = next((at for at, each in enumerate(self.wanted) if each is tensor), None)
        return NO_TAINTS if found is None else frozenset((Taint(found),))


def machine_for(*wanted: Tensor) -> Machine:
    return Machine(questions.KINDS, Nothing(*wanted), [], 10_000)


def ahead_of(iterator: Any) -> list[Any]:
    """What an iterator will still give, which is not moved."""
    machine = machine_for()
    try:
        return iteration.drain(machine, iteration.iterator(machine, iterator))
    finally:
        machine.let_go()
