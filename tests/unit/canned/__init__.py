"""Hand-written recordings for the tests of every view: ``from canned import canned_recording``."""

from typing import Any

from gradscope.model import Applicability, Certainty, Finding, Fix, FixKind, Severity, Site

from .recordings import canned_recording, clean_recording, empty_recording, unfinished_recording

__all__ = [
    "CHOICE",
    "RECORDINGS",
    "SUM",
    "canned_recording",
    "clean_recording",
    "empty_recording",
    "small_finding",
    "unfinished_recording",
]

RECORDINGS = {
    "canned": canned_recording(),
    "clean": clean_recording(),
    "empty": empty_recording(),
    "unfinished": unfinished_recording(),
}

CHOICE = Fix(
    FixKind.DETACH,
    "detach `fake`",
    applicability=Applicability.MAYBE_INCORRECT,
    effects=("`G.*` would get nothing",),
    reason="why so",
)
SUM = Fix(FixKind.SUM_LOSSES, "add them", (), Applicability.MACHINE_APPLICABLE)
"""Two fixes that have more to say than what they are."""


def small_finding(code: str = "GS101", site: Site | None = None, **fields: Any) -> Finding:
    """A finding of no graph; an error that is certain unless ``fields`` say otherwise."""
    error = {"severity": Severity.ERROR, "certainty": Certainty.CERTAIN, "message": "message"}
    return Finding(code, "name", site=site, **(error | fields))
