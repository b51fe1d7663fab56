"""Text for machines, one format a file."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from gradscope.model import Recording


class Format(StrEnum):
    """How a report is written: for people, or for machines."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"
    TRACE = "trace"


def writer(form: Format) -> Callable[[Recording], str]:
    """Return what writes a recording in a format but ``text``; most commands import none."""
    match form:
        case Format.JSON:
            from gradscope.render.machine.json import to_json as write
        case Format.SARIF:
            from gradscope.render.machine.sarif import to_sarif as write
        case Format.GITHUB:
            from gradscope.render.machine.github import to_github as write
        case Format.TRACE:
            from gradscope.render.machine.trace import to_trace as write
        case Format.TEXT:
            raise ValueError("text is for people")
    return write
