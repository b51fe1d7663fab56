"""Text for machines, one format a file; ``WRITERS`` names them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from gradscope.model import Recording
from gradscope.render.machine.github import to_github
from gradscope.render.machine.json import to_json
from gradscope.render.machine.junit import to_junit
from gradscope.render.machine.sarif import to_sarif
from gradscope.render.machine.speedscope import to_speedscope
from gradscope.render.machine.trace import to_trace


class Format(StrEnum):
    """How a report is written: for people, or for machines."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"
    JUNIT = "junit"
    SPEEDSCOPE = "speedscope"
    TRACE = "trace"


WRITERS: Mapping[Format, Callable[[Recording], str]] = {
    Format.JSON: to_json,
    Format.SARIF: to_sarif,
    Format.GITHUB: to_github,
    Format.JUNIT: to_junit,
    Format.SPEEDSCOPE: to_speedscope,
    Format.TRACE: to_trace,
}
"""What writes a recording in each format but ``text``."""
