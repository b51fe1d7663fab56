"""Edits are offered only if every file still parses with them."""

from __future__ import annotations

import symtable

from gradscope.code import source
from gradscope.fixing.patch import Source, apply
from gradscope.model import Edit


class CannotBeWrittenError(Exception):
    """The edit cannot be written down, or would be wrong."""


def checked(*edits: Edit) -> tuple[Edit, ...]:
    """Return the edits if each file can be parsed with all of them; none otherwise."""
    for file in {edit.file for edit in edits}:
        own = [edit for edit in edits if edit.file == file]
        lines = [line for edit in own for line in edit.lines]
        before = Source(file, tuple(source.parsed(file).lines))
        if len(set(lines)) < len(lines) or max(lines) > len(before.lines):
            return ()
        after = apply(before, own).after
        try:
            with source.quietly():
                symtable.symtable("".join(after.lines), file, "exec")
        except (SyntaxError, ValueError):
            return ()
    return edits
