"""Proposes fixes where a compiled graph is to be kept that has given its buffers away."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.fixing import calls, special
from gradscope.fixing.choosing import SAME_GRADIENTS, chosen
from gradscope.model import Applicability, Fix, FixKind
from gradscope.rules.base import place
from gradscope.rules.gs104 import SETTING, DonatedGraph, first_fix

_SAFE = Applicability.MACHINE_APPLICABLE
_CHANGES = Applicability.MAYBE_INCORRECT


def fixes_for_donated(facts: DonatedGraph) -> tuple[Fix, ...]:
    """Return what can be done, the expert's choice first."""
    return chosen(_candidates(facts))


def _candidates(facts: DonatedGraph) -> Iterator[Fix]:
    first, site = first_fix(facts), facts.call.site
    creates = facts.call.create_graph
    file = site.file if site is not None else ""
    eager = special.uncompiled(file) if file else ()
    if creates:
        yield Fix(first.kind, first.message, eager, _SAFE, (SAME_GRADIENTS, "nothing is compiled"))
    else:
        off = special.set_after_imports(file, SETTING, "False") if file else ()
        yield Fix(first.kind, first.message, off, _SAFE, (SAME_GRADIENTS,))
    flag = "create_graph" if creates else "retain_graph"
    effect = "no second derivative can be taken" if creates else "no later call can run this graph"
    yield Fix(
        FixKind.OTHER if creates else FixKind.REMOVE_RETAIN,
        f"leave {flag}=True out of the call at {place(site)}",
        () if site is None else calls.without_flag(site, flag),
        _CHANGES,
        (effect,),
    )
    if not creates:
        yield Fix(
            FixKind.EAGER,
            "call the function without torch.compile",
            eager,
            _SAFE,
            (SAME_GRADIENTS, "nothing is compiled"),
        )
