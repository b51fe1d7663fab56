"""What is known when a backward call is about to run: all that a judgement of it is made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gradscope.collect.calls import Call
from gradscope.collect.look import Look
from gradscope.collect.state import State
from gradscope.model import BackwardCall, Finding, Graph


@dataclass(frozen=True, slots=True)
class Evidence:
    """One backward call: the look at its graph, its record so far, and its picture if there is one.

    It holds nodes and tensors, so it must not outlive the judgement.
    """

    state: State
    call: Call
    look: Look
    record: BackwardCall
    graph: Graph | None


class Judge(Protocol):
    """Finds what is certain of a call. ``gradscope.detect.hazards`` is one."""

    def examine(self, evidence: Evidence) -> list[Finding]:
        """Return the finding for what the engine will raise, if it will."""

    def missed(self, text: str, call: Call, look_again: Callable[[], Evidence]) -> Finding | None:
        """Return a finding where the engine raised what was not announced before the call."""
