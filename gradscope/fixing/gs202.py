"""Writes down the fixes of GS202: an operation out of place, or a clone for the graph to save."""

from __future__ import annotations

from collections.abc import Container, Sequence

from gradscope.code.statements import Statement
from gradscope.fixing import primitives
from gradscope.model import Applicability, Edit, Fix, FixKind, Site
from gradscope.rules.base import place


def fix_for(
    change: Statement, made: Sequence[Site], methods: Container[str], *, computed: bool
) -> Fix:
    """Return what an expert would do, with edits where they can be written down.

    Only a tensor that an operation has ``computed`` is replaced by another; a buffer or a table
    must stay the tensor that it is, as other code may know it. ``methods`` are those that a tensor
    has.
    """
    site, name = change.site, change.target
    edits = primitives.out_of_place(site, methods) if computed else ()
    if edits:
        return cloned(f"at {place(site)}, use the out-of-place form of the operation", edits)
    edits = _clone_where_saved(name, made)
    if edits:
        saved = ", ".join(place(each) for each in made)
        message = f"let {saved} use `{name}.clone()`, or change `{name}` after the backward call"
        return cloned(message, edits)
    where = f" at {place(made[0])}" if made else ""
    form = "use the out-of-place form of the operation or change a clone()"
    return cloned(f"save a clone(){where}, or at {place(site)} {form}", ())


def fix_for_hidden(change: Statement, made: Sequence[Site]) -> Fix | None:
    """Return the fix of a write through ``.data`` to a buffer or an activation: its graph saves a
    clone.

    None where the lines that saved it do not name it.
    """
    name = change.target.removesuffix(".data")
    edits = _clone_where_saved(name, made)
    if not edits:
        return None
    saved = ", ".join(place(each) for each in made)
    message = f"let {saved} use `{name}.clone()`, or write to `{name}.data` after the backward call"
    return cloned(message, edits)


def cloned(message: str, edits: tuple[Edit, ...]) -> Fix:
    """Return the fix that has the graph save a tensor of its own."""
    effects = ("one more tensor of that size is held until the graph goes",)
    return Fix(FixKind.CLONE, message, edits, Applicability.MACHINE_APPLICABLE, effects)


def _clone_where_saved(name: str, made: Sequence[Site]) -> tuple[Edit, ...]:
    """Let the lines that saved a tensor use a clone of it, where they name it."""
    sites = {site.line: site for site in made} if name else {}
    return primitives.joined(*(primitives.clone_reads(site, name) for site in sites.values()))
