"""Writes down fixes as edits of the user's lines, where they are edits of one or a few lines."""

from __future__ import annotations

from types import FrameType

from gradscope.foresight.held import Held
from gradscope.foresight.reading import Reading
from gradscope.model import Edit
from gradscope.rules.gs102 import SharedGraph


def edits_for(facts: SharedGraph, found: list[tuple[Held, Reading]], frames: list[FrameType]) -> tuple[Edit, ...]:
    """The edits that make the fix; none where it takes more than that."""
    return ()
