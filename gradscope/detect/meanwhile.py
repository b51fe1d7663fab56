"""Explains what the engine raised of a graph in which the look before had found nothing wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gradscope.collect.calls import Call
from gradscope.collect.evidence import Evidence
from gradscope.detect.built import built_at, node_at
from gradscope.detect.stale import stale_tensor
from gradscope.model import Finding
from gradscope.rules import base, gs101, gs201

_WARNINGS = {"GS101": ("GS102", "GS103"), "GS201": ("GS202",)}


def explain(evidence: Evidence, unexpected: Finding) -> Finding:
    """Return what is known of an error that was not announced, from a look after it.

    Another call may have freed a part of the graph meanwhile, or a hook or another thread may have
    modified what it saved: no look before the call can see that. If a prediction was made of this
    line, the error is what it warned of. All else is ``unexpected``, a fault of gradscope.
    """
    seen = None
    if unexpected.code == "GS101":
        seen = _freed_meanwhile(evidence)
    elif unexpected.code == "GS201":
        seen = _modified_meanwhile(evidence)
    return seen or _as_predicted(evidence.state.foretold, unexpected) or unexpected


def _freed_meanwhile(evidence: Evidence) -> Finding | None:
    look, call = evidence.look, evidence.call
    freed = [i for i in look.freed if _is_another(look.tokens[i].freed_by, call)]
    by = look.tokens[freed[0]].freed_by if freed else call.met or call.beside
    if by is None:
        return None
    made = built_at(look, evidence.state.generations, freed[0]) if freed else None
    return gs101.finding_meanwhile(
        gs101.FreedGraph(
            call=evidence.record,
            nodes=tuple(node_at(look, None, i) for i in freed[:1]),
            made=(made,) if made is not None else (),
            freed_by=by.record,
        )
    )


def _is_another(by: Call | None, call: Call) -> bool:
    """Return whether a call has freed something while ``call`` ran."""
    return by is not None and by is not call and (by.number > call.number or call.met is by)


def _modified_meanwhile(evidence: Evidence) -> Finding | None:
    stale_in_run = [each for each in evidence.look.stale if evidence.look.will_run(each[0])]
    if not stale_in_run:
        return None
    first, stale = stale_in_run[0]
    facts = stale_tensor(evidence, first, {first: [stale]})
    return gs201.finding_meanwhile(facts)


def _as_predicted(foretold: Iterable[Finding], unexpected: Finding) -> Finding | None:
    """Return the error as the one that a prediction for its line warned of."""
    for finding in foretold:
        if finding.code in _WARNINGS.get(unexpected.code, ()) and finding.expects(unexpected.site):
            return replace(
                base.as_announced(unexpected, finding.code),
                related=(*finding.related, *unexpected.related),
                fix=finding.fix,
            )
    return None
