"""What is told of a program before it fails, against what then happens in it."""

from __future__ import annotations

import enum
from pathlib import Path

from gradscope.model import Finding, Severity
from tests.watching import found_in

RAISED = {"second time": "GS101", "inplace operation": "GS201"}
AHEAD = ("GS102", "GS103", "GS202")


class Told(enum.Enum):
    """How a run of a program and what was told of it compare."""

    EARLY = "told early"
    LATE = "told at the call alone"
    UNTOLD = "not told before it was raised"
    IN_VAIN = "told in vain"
    HEALTHY = "healthy, nothing told"
    BROKEN = "ended by another error"


def told_of(path: Path) -> Told:
    """Run a program; return what was told of it in time."""
    found, raised, _ = found_in(path)
    return told(found, raised)


def told(found: list[Finding], raised: str) -> Told:
    """Return what was told in time of what a program raised."""
    loud = [each for each in found if each.severity is not Severity.ADVICE]
    code = next((code for words, code in RAISED.items() if words in raised), None)
    if raised and code is None:
        return Told.BROKEN
    ahead = [each for each in loud if each.code in AHEAD]
    if code is None:
        failed = any(each.code in RAISED.values() for each in loud)
        return Told.IN_VAIN if ahead or failed else Told.HEALTHY
    failures = [each for each in loud if each.code == code]
    if not failures:
        return Told.UNTOLD
    first = min(each.backward_call for each in failures)
    return Told.EARLY if any(each.backward_call < first for each in ahead) else Told.LATE
