"""Opens ``parametrize.cached()`` anew in each iteration of the loop that it is around."""

from __future__ import annotations

import ast

import libcst as cst

from gradscope.code.statements import with_cached
from gradscope.fixing.drafts import Draft
from gradscope.fixing.edits import CannotBeWrittenError
from gradscope.model import Edit, Site


def opened_in_loop(at: Site) -> tuple[Edit, ...]:
    """Put the loop around a place on the outside of the ``cached()`` that is around the loop."""
    draft, found = Draft(at.file), with_cached(at)
    if found is None or len(found.items) != 1 or found.items[0].optional_vars is not None:
        raise CannotBeWrittenError
    loop = found.body[0]
    if len(found.body) != 1 or not isinstance(loop, ast.For | ast.While) or loop.orelse:
        raise CannotBeWrittenError

    def make(updated: cst.With) -> cst.For | cst.While:
        inner = updated.body.body[0]
        assert isinstance(inner, cst.For | cst.While)
        inside = updated.with_changes(body=inner.body, leading_lines=())
        block = cst.IndentedBlock([inside])
        return inner.with_changes(
            body=block, leading_lines=(*updated.leading_lines, *inner.leading_lines)
        )

    draft.change(found, make)
    return draft.edits()
