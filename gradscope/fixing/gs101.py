"""Writes the fix of a backward call through a freed graph that was not foretold, as edits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from gradscope.code import changes, source
from gradscope.fixing import calls, moves, recompute, special
from gradscope.fixing.choosing import SAME_GRADIENTS, chosen
from gradscope.model import Applicability, Edit, Fix, FixKind, Site
from gradscope.rules.base import place
from gradscope.rules.gs101 import FreedGraph, fix_for
from gradscope.units import nbytes

_SAFE = Applicability.MACHINE_APPLICABLE
_CHANGES = Applicability.MAYBE_INCORRECT
_OF_WHAT_IS_KEPT = (FixKind.DETACH, FixKind.RECOMPUTE)


def fixes_for_freed(facts: FreedGraph) -> tuple[Fix, ...]:
    """Return what can be done, the expert's choice first."""
    if facts.foreseen:
        return facts.foreseen
    first = fix_for(facts)
    made = facts.made[0] if facts.made else None
    is_checkpoint = first.kind is FixKind.REORDER
    cached = _of_cache(facts, made) if first.kind in _OF_WHAT_IS_KEPT else None
    if cached is not None:
        return chosen((cached, *_others(cached.kind, facts, made)))
    first = replace(
        first,
        edits=_edits(first.kind, facts, made),
        applicability=_SAFE if is_checkpoint else _CHANGES,
        reason="it frees what its calls share in a call of its own" if is_checkpoint else "",
    )
    return chosen((first, *_others(first.kind, facts, made)))


def _of_cache(facts: FreedGraph, made: Site | None) -> Fix | None:
    """Return the fix that fills a cache anew, where one keeps what was freed."""
    call = facts.call.site
    if call is None or facts.call.driven:
        return None
    edits = special.cached_in_loop(call)
    what = "open parametrize.cached() in each iteration" if edits else ""
    if made is not None and not edits:
        function = source.function_around(made)
        line = Site(made.file, getattr(function, "lineno", 0))
        edits = recompute.rebuilt(made) or recompute.uncached(line)
        what = f"compute what {place(made)} caches again for each backward call"
    if not edits:
        return None
    effects = ("what it is computed from would get gradient in each iteration",)
    reason = "a cache belongs to one graph"
    return Fix(FixKind.RECOMPUTE, what, edits, _CHANGES, effects, reason)


def _others(first: FixKind, facts: FreedGraph, made: Site | None) -> Iterator[Fix]:
    """Yield what else could be done than the first."""
    call, by = facts.call.site, facts.freed_by.site if facts.freed_by is not None else None
    if first is FixKind.REORDER:
        yield from _checkpointed_otherwise(facts, made)
        return
    if first is FixKind.RECOMPUTE and made is not None and not facts.same_root:
        yield Fix(
            FixKind.DETACH,
            f"detach() what {place(made)} computes, if it should not be trained",
            moves.detach_stored(made),
            _CHANGES,
            ("what it was computed from would get no gradient through it",),
        )
        return
    in_loop = facts.freed_same_statement or facts.made_again
    if call is None or by is None or in_loop or facts.call.driven:
        return
    if first is not FixKind.RECOMPUTE:
        again = recompute.forward_again(call)
        message = f"run the forward pass again for the call at {place(call)}"
        yield Fix(FixKind.RECOMPUTE, message, again, _CHANGES, ("that forward pass runs twice",))
    if first is not FixKind.RETAIN_GRAPH and facts.freed_by is not None:
        size = facts.freed_by.freed_bytes
        keeps = (f"keeps {nbytes(size)} until the later call",) if size else ()
        yield _retained(by, _CHANGES, keeps)


def _checkpointed_otherwise(facts: FreedGraph, made: Site | None) -> Iterator[Fix]:
    """Yield what else can be done where a reentrant checkpoint frees what its calls share."""
    statement = source.statement_at(made) if made is not None else None
    if facts.call.site is None or statement is None or made is None:
        return
    file, names = facts.call.site.file, sorted(changes.targets_of(statement))
    what = ", ".join(f"`{name}`" for name in names) or "what is shared"
    yield Fix(
        FixKind.REORDER,
        f"hand {what} to the checkpointed function as an argument",
        special.handed_to_checkpoint(file, names),
        _SAFE,
        ("the gradients of all its uses are added up before its graph runs, once",),
    )
    yield Fix(
        FixKind.OTHER,
        "call the function without a checkpoint",
        special.without_checkpoint(file),
        _SAFE,
        ("nothing is computed twice; all that the function saves is held until the call",),
    )


def fixes_for_read(advice: str, readers: Iterable[Site], freed_by: Site | None) -> tuple[Fix, ...]:
    """Return the fixes of a read of what was freed: what leads to it goes before the freeing call.

    ``readers`` are the calls that led to the read and the read itself, the outermost first.
    """
    edits: tuple[Edit, ...] = ()
    if freed_by is not None:
        inside = (site for site in readers if _comes_after(site, freed_by))
        edits = next(filter(None, (moves.move_before(site, freed_by) for site in inside)), ())
    safe = _SAFE if edits else _CHANGES
    earlier = Fix(FixKind.REORDER, advice, edits, safe, (SAME_GRADIENTS,))
    if freed_by is None:
        return (earlier,)
    keeps = (SAME_GRADIENTS, "what the graph saved is held until the graph goes")
    return chosen((earlier, _retained(freed_by, _SAFE, keeps)))


def _retained(freed_by: Site, safe: Applicability, effects: tuple[str, ...]) -> Fix:
    """Return the fix that keeps a graph which a call frees."""
    edits = calls.with_flag(freed_by, "retain_graph")
    message = f"pass retain_graph=True to the call at {place(freed_by)}"
    return Fix(FixKind.RETAIN_GRAPH, message, edits, safe, effects)


def _comes_after(site: Site, other: Site) -> bool:
    """Return whether a site is in the same function, further down."""
    same = (site.file, site.function) == (other.file, other.function)
    return same and (site.line, site.column) > (other.line, other.column)


def _edits(kind: FixKind, facts: FreedGraph, made: Site | None) -> tuple[Edit, ...]:
    call, by = facts.call.site, facts.freed_by.site if facts.freed_by is not None else None
    if call is None or facts.call.driven:
        return ()
    if kind is FixKind.REORDER:
        return special.not_reentrant(call.file)
    if kind is FixKind.RECOMPUTE and (facts.same_root or made is None):
        return recompute.forward_again(call)
    if kind is FixKind.RECOMPUTE and made is not None:
        statement = source.statement_at(made)
        names = sorted(changes.targets_of(statement)) if statement is not None else []
        return recompute.rebuilt(made) or recompute.recomputed(call, names)
    if kind is FixKind.SUM_LOSSES and by is not None:
        return calls.sum_losses(by, call)
    if kind is FixKind.RETAIN_GRAPH and by is not None:
        return calls.with_flag(by, "retain_graph")
    return ()
