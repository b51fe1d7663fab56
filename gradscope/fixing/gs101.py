"""Writes the fix of a backward call through a freed graph that was not foretold, as edits."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

from gradscope.code import changes, places, source
from gradscope.fixing import primitives as edit
from gradscope.fixing.choosing import chosen
from gradscope.model import Applicability, Edit, Fix, FixKind, Site
from gradscope.rules.base import place
from gradscope.rules.gs101 import FreedGraph, fix_for


def fixes_for_freed(facts: FreedGraph) -> tuple[Fix, ...]:
    """Return what can be done, the expert's choice first."""
    if facts.foreseen:
        return facts.foreseen
    first = fix_for(facts)
    made = facts.made[0] if facts.made else None
    first = replace(first, edits=_edits(first.kind, facts, made))
    if first.kind is not FixKind.RECOMPUTE or made is None or facts.same_root:
        return (first,)
    detach = Fix(
        FixKind.DETACH,
        f"detach() what {place(made)} computes, if it should not be trained",
        edit.detach_stored(made),
        Applicability.MAYBE_INCORRECT,
        ("what it was computed from would get no gradient through it",),
    )
    return chosen((first, detach))


def fix_for_read(advice: str, readers: Iterable[Site], freed_by: Site | None) -> Fix:
    """Return the fix of a read of what was freed: what leads to it goes before the freeing call.

    ``readers`` are the calls that led to the read and the read itself, the outermost first.
    """
    edits: tuple[Edit, ...] = ()
    if freed_by is not None:
        inside = (site for site in readers if _comes_after(site, freed_by))
        edits = next(filter(None, (edit.move_before(site, freed_by) for site in inside)), ())
    return Fix(FixKind.REORDER, advice, edits, Applicability.MAYBE_INCORRECT)


def _comes_after(site: Site, other: Site) -> bool:
    """Return whether a site is in the same function, further down."""
    same = (site.file, site.function) == (other.file, other.function)
    return same and (site.line, site.column) > (other.line, other.column)


def _edits(kind: FixKind, facts: FreedGraph, made: Site | None) -> tuple[Edit, ...]:
    call, by = facts.call.site, facts.freed_by.site if facts.freed_by is not None else None
    if call is None or facts.call.driven:
        return ()
    if kind is FixKind.REORDER:
        return _not_reentrant(call.file)
    if kind is FixKind.RECOMPUTE and (facts.same_root or made is None):
        return edit.forward_again(call)
    if kind is FixKind.RECOMPUTE and made is not None:
        statement = source.statement_at(made)
        names = sorted(changes.targets_of(statement)) if statement is not None else []
        return edit.rebuild_cache(made) or edit.recompute(call, names)
    if kind is FixKind.SUM_LOSSES and by is not None:
        return edit.sum_losses(by, call)
    if kind is FixKind.RETAIN_GRAPH and by is not None:
        return edit.with_flag(by, "retain_graph")
    return ()


def _not_reentrant(file: str) -> tuple[Edit, ...]:
    """Have the one checkpoint of a file run its backward without a backward call inside."""
    found = [c for c in source.calls_in(source.tree(file)) if source.called_name(c) == "checkpoint"]
    if len(found) != 1 or not isinstance(found[0], ast.Call):
        return ()
    return edit.with_keyword(places.of_node(found[0], file), "use_reentrant", "False")
