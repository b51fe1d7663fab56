"""Text for machines, one format a file."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from importlib import import_module

from gradscope.model import Recording


class Format(StrEnum):
    """How a report is written: for people, or for machines."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"


def writer(form: Format) -> Callable[[Recording], str]:
    """Return what writes a recording in a format but ``text``; most commands import none."""
    module = import_module(f"{__name__}.{form}")
    return getattr(module, f"to_{form}")  # type: ignore[no-any-return]
