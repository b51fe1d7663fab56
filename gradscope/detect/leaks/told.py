"""Puts what holds graphs into a finding, and brings its figures up to date later on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradscope.code.bounds import Bound, bound_of
from gradscope.code.stores import find_store
from gradscope.code.through_data import writes_data
from gradscope.collect.state import State
from gradscope.detect.leaks.loops import Sightings
from gradscope.detect.leaks.suspects import Suspect
from gradscope.fixing.leaks import (
    detached_after,
    detached_where_stored,
    fixes_for_carried,
    fixes_for_kept,
)
from gradscope.model import BackwardCall, Finding, Fix
from gradscope.model.paths import Path
from gradscope.rules import gs301, gs302
from gradscope.rules.base import Seen

_ENOUGH_KEYS = 100  # iterations held by a dict, whose keys may come again


@dataclass(frozen=True, slots=True)
class Told:
    """What was said of a holder."""

    facts: gs301.Carried | gs302.KeptAlive
    fixes: tuple[Fix, ...]

    @property
    def finding(self) -> Finding:
        """What was said, in words."""
        if isinstance(self.facts, gs301.Carried):
            return gs301.finding(self.facts, self.fixes)
        return gs302.finding(self.facts, self.fixes)

    def again(self, sightings: Sightings, seen: Seen) -> Told:
        """Return the same with the newest figures."""
        suspect, (nodes, nbytes) = sightings.newest, sightings.rates
        facts = replace(
            self.facts,
            iterations=suspect.iterations,
            nodes=suspect.nodes,
            nbytes=suspect.nbytes,
            nodes_each=nodes,
            nbytes_each=nbytes,
            seen=replace(seen, cut=suspect.cut),
        )
        return replace(self, facts=facts)


def carried(
    watch: State, sightings: Sightings, record: BackwardCall | None, *, steps: bool
) -> Told:
    """Return what is said of a tensor whose graph goes back over the iterations."""
    suspect = sightings.newest
    site = record.site if record is not None else None
    nodes, nbytes = sightings.rates
    names = suspect.names if suspect.is_direct else suspect.names[: suspect.is_tuple]
    facts = gs301.Carried(
        call=record,
        holder=suspect.names[0].text,
        stored=find_store(suspect.names, container=False, files=suspect.files),
        iterations=suspect.iterations,
        nodes=suspect.nodes,
        nbytes=suspect.nbytes,
        nodes_each=nodes,
        nbytes_each=nbytes,
        silent=site is not None and writes_data(site.file),
        counts_bytes=watch.hooked,
        seen=Seen(cut=suspect.cut),
        steps=steps,
    )
    edits = detached_after(site, names, in_tuple=not suspect.is_direct)
    words, in_tuple = gs301.words_for(facts), not suspect.is_direct
    return Told(facts, fixes_for_carried(facts, edits, words, in_tuple=in_tuple))


def kept_alive(watch: State, sightings: Sightings, record: BackwardCall | None) -> Told:
    """Return what is said of a holder of the graphs of earlier iterations."""
    suspect = sightings.newest
    container = suspect.is_container
    store = find_store(suspect.names, container=container, files=suspect.files)
    nodes, nbytes = sightings.rates
    name = suspect.names[0]
    facts = gs302.KeptAlive(
        call=record,
        holder=name.text,
        stored=store,
        is_container=container,
        is_scalar=suspect.is_scalar,
        through_frame=name.through_frame,
        iterations=suspect.iterations,
        nodes=suspect.nodes,
        nbytes=suspect.nbytes,
        nodes_each=nodes,
        nbytes_each=nbytes,
        after=watch.calls,
        counts_bytes=watch.hooked,
        seen=Seen(cut=suspect.cut),
        parts=suspect.parts or _part_named(name),
    )
    writable = suspect.is_direct and not name.through_frame
    edits = detached_where_stored(store, in_container=container) if writable else ()
    return Told(facts, fixes_for_kept(facts, edits, gs302.words_for(facts)))


def _part_named(name: Path) -> tuple[object, ...]:
    """Return the index of a part whose name this is: ``memory[3][1]``."""
    ends = name.steps[-2:]
    if len(ends) == 2 and all(step.kind == "item" for step in ends):
        return (ends[1].key,)
    return ()


def has_grown(sightings: Sightings, *, ended: bool) -> bool:
    """Return whether a holder was seen to grow, and nothing in the code says that it will stop.

    ``ended``: it has held nearly every iteration to the end.
    """
    if not sightings.grows:
        return False
    suspect = sightings.newest
    if ended and sightings.holds_all:
        return True
    if not sightings.is_enough:
        return False
    bound = _bound(suspect)
    return bound is Bound.NONE or (
        bound is Bound.KEYED and not ended and suspect.iterations >= _ENOUGH_KEYS
    )


def is_kept_between_calls(sightings: Sightings, looks: int, at_once: int) -> bool:
    """Return the same where no backward call marks the iterations, after so many looks."""
    suspect = sightings.newest
    often = len(sightings.seen) > 1 or suspect.iterations >= at_once
    grown = sightings.count == looks and sightings.grows and often
    return grown and _bound(suspect) is not Bound.EMPTIED


def _bound(suspect: Suspect) -> Bound:
    if not suspect.is_container:
        return Bound.NONE
    store = find_store(suspect.names, container=True, files=suspect.files)
    return bound_of(suspect.names, store)
