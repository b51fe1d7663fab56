"""Makes the fixes that leave what is trained as it is: sum the losses, keep or build a graph."""

from __future__ import annotations

from gradscope.fixing import primitives as edit
from gradscope.fixing.choosing import computed_again, untouched
from gradscope.model import Applicability, Fix, FixKind
from gradscope.rules.base import place
from gradscope.rules.gs102 import SharedGraph, words_for
from gradscope.units import nbytes

_SAFE = Applicability.MACHINE_APPLICABLE
_CHANGES = Applicability.MAYBE_INCORRECT


def sum_of(facts: SharedGraph, reason: str) -> Fix:
    """Return the fix that makes one backward call of the two."""
    site = facts.call.site
    assert site is not None
    if facts.elements:
        edits = edit.sum_of_loop(site, facts.elements)
    else:
        edits = edit.sum_losses(site, facts.next_call)
    safe = (facts.roles.same_optimizer and not facts.stepped_between) or bool(facts.elements)
    changed = "" if not facts.stepped_between else "the first step would come after both losses"
    effects = (changed or untouched(facts.roles),)
    message = words_for(FixKind.SUM_LOSSES, facts)
    return Fix(FixKind.SUM_LOSSES, message, edits, _SAFE if safe else _CHANGES, effects, reason)


def forward_again(facts: SharedGraph, reason: str) -> Fix:
    """Return the fix that gives the later call a graph of its own."""
    names = [link.name for link in facts.roles.links]
    what = f" ({', '.join(f'`{name}`' for name in names)})" if names else ""
    message = f"run the forward pass again{what} for the call at {place(facts.next_call)}"
    if facts.same_root:
        message = words_for(FixKind.RECOMPUTE, facts)
    return Fix(
        FixKind.RECOMPUTE,
        message,
        edit.forward_again(facts.next_call, names),
        _SAFE,
        (untouched(facts.roles), computed_again(facts, "twice")),
        reason,
    )


def retained(facts: SharedGraph, reason: str) -> Fix:
    """Return the fix that keeps the graph for the later call."""
    site, keeps = facts.call.site, facts.call.saved_bytes
    assert site is not None
    how_long = "until the later call" if not facts.again else "from one call to the next"
    held = (f"keeps {nbytes(keeps)} {how_long}",) if keeps else ()
    fails = ("the step between would make the later call fail (GS201)",)
    return Fix(
        FixKind.RETAIN_GRAPH,
        words_for(FixKind.RETAIN_GRAPH, facts),
        edit.with_flag(site, "retain_graph"),
        _SAFE if reason else _CHANGES,
        held + (fails if facts.stepped_between and not reason else ()),
        reason,
    )
