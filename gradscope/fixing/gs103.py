"""Proposes fixes for a forward pass that goes on from a graph which a backward call has freed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gradscope.code import changes, source
from gradscope.fixing import calls, moves, recompute, values
from gradscope.fixing.choosing import chosen
from gradscope.model import Applicability, Edit, Fix, FixKind
from gradscope.rules.base import place
from gradscope.rules.gs103 import ForwardOnFreed, fix_for
from gradscope.units import nbytes

_CHANGES = Applicability.MAYBE_INCORRECT


def fixes_for(facts: ForwardOnFreed) -> tuple[Fix, ...]:
    """Return what can be done, the expert's choice first."""
    return chosen(_candidates(facts))


def _candidates(facts: ForwardOnFreed) -> Iterator[Fix]:
    first = fix_for(facts)
    reason = "a carried state" if facts.carried else ""
    yield replace(first, edits=_edits(first.kind, facts), applicability=_CHANGES, reason=reason)
    yield _computed_again(facts) if facts.again else _summed(facts)
    yield Fix(
        FixKind.DETACH,
        f"detach() `{facts.holder}` where it is read here",
        values.detach_reads(facts.read, facts.holder),
        _CHANGES,
        (f"the call at {place(facts.next_call)} would not train what `{facts.holder}` comes from",),
    )
    yield _retained(facts)


def _edits(kind: FixKind, facts: ForwardOnFreed) -> tuple[Edit, ...]:
    by = facts.freed_by
    if kind is FixKind.RETAIN_GRAPH:
        return _retained(facts).edits
    if kind is FixKind.SUM_LOSSES:
        return _summed(facts).edits
    if kind is FixKind.RECOMPUTE:
        return _computed_again(facts).edits
    if kind is FixKind.DETACH and by.site is not None and not by.driven:
        return moves.detach_after(by.site, [facts.holder])
    return ()


def _summed(facts: ForwardOnFreed) -> Fix:
    by = facts.freed_by.site
    edits = calls.sum_losses(by, facts.next_call) if by is not None else ()
    message = f"add this loss to that of the call at {place(by)}"
    return Fix(FixKind.SUM_LOSSES, message, edits, _CHANGES, ("all is trained as before, at once",))


def _computed_again(facts: ForwardOnFreed) -> Fix:
    message = f"compute `{facts.holder}` again for each backward call"
    edits: tuple[Edit, ...] = ()
    if facts.made:
        made = source.statement_at(facts.made[0])
        names = sorted(changes.targets_of(made)) if made is not None else []
        edits = recompute.rebuilt(facts.made[0]) or recompute.recomputed(facts.next_call, names)
    return Fix(FixKind.RECOMPUTE, message, edits, _CHANGES, ("all is trained in each iteration",))


def _retained(facts: ForwardOnFreed) -> Fix:
    by = facts.freed_by
    edits = calls.with_flag(by.site, "retain_graph") if by.site is not None else ()
    keeps = (f"keeps {nbytes(by.saved_bytes)} until the graph is dropped",)
    message = f"pass retain_graph=True to the call at {place(by.site)}"
    return Fix(FixKind.RETAIN_GRAPH, message, edits, _CHANGES, keeps if by.saved_bytes else ())
