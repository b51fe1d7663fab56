"""Asks for the fixes of a finding in the one guarded place: a failure there costs no finding."""

from __future__ import annotations

from collections.abc import Callable

from gradscope.collect.notes import Notes
from gradscope.model import Fix


def proposed(notes: Notes, propose: Callable[[], tuple[Fix, ...]]) -> tuple[Fix, ...]:
    """Return what is proposed; nothing, and a note, where that fails."""
    return notes.attempt("choosing the fix of a finding failed in gradscope", propose, ())
