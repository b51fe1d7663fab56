"""Proposes fixes for a graph that two backward calls share, the one that an expert would choose
first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gradscope.code import changes, places, source
from gradscope.fixing import primitives as edit
from gradscope.fixing.choosing import added, chosen, computed_again, untouched
from gradscope.fixing.next_run import is_read_first
from gradscope.fixing.once import Holder, detach_where_stored, of_made_once, recomputed
from gradscope.fixing.shared import forward_again, retained, sum_of
from gradscope.fixing.siblings import of_siblings
from gradscope.model import Applicability, Edit, Fix, FixKind
from gradscope.rules.base import is_grad, place
from gradscope.rules.gs102 import SharedGraph, words_for
from gradscope.rules.roles import grouped

_SAFE = Applicability.MACHINE_APPLICABLE
_CHANGES = Applicability.MAYBE_INCORRECT


def fixes_for(facts: SharedGraph, holders: Sequence[Holder]) -> tuple[Fix, ...]:
    """Return what can be done, the expert's choice first.

    ``holders`` are those that lead to the call that will fail.
    """
    return chosen(_candidates(facts, holders))


def _candidates(facts: SharedGraph, holders: Sequence[Holder]) -> Iterator[Fix]:
    roles, call = facts.roles, facts.call
    is_part = facts.same_root and call.inputs is not None
    if facts.accumulated:
        yield from _of_total(facts)
    elif roles.rows and facts.again:
        yield retained(facts, "each call asks for a part of one result")
        yield recomputed(facts, holders, "")
    elif not facts.again and (is_grad(call) or is_part):
        yield from _of_probe(facts)
    elif facts.elements:
        yield sum_of(facts, "all of them are trained by one step")
        yield retained(facts, "")
    elif facts.same_root or roles.alike:
        reason = "each call needs a graph of its own"
        yield forward_again(facts, reason)
        yield retained(facts, "")
    elif facts.again and facts.carried:
        yield from _of_state(facts, holders)
    elif facts.again:
        yield from of_made_once(facts, holders)
    else:
        yield from of_siblings(facts)


def _of_total(facts: SharedGraph) -> Iterator[Fix]:
    assert facts.call.site is not None
    name = facts.holder
    effects = ("each call trains by its own loss alone",)
    item = Fix(
        FixKind.ITEM,
        words_for(FixKind.ITEM, facts),
        _item(facts),
        _SAFE if facts.roles.total else _CHANGES,
        effects,
        f"`{name}` is a running total",
    )
    zero = Fix(
        FixKind.OTHER,
        f"set `{name}` to zero at the start of each iteration: it still holds earlier losses",
        edit.reset_at_head(facts.call.site, name),
        _CHANGES if facts.roles.total else _SAFE,
        effects,
        f"`{name}` is a loss that is not reset",
    )
    yield from (item, zero) if facts.roles.total else (zero, item)


def _item(facts: SharedGraph) -> tuple[Edit, ...]:
    """Add the value of each loss to the total, and call backward on the loss."""
    site, total = facts.call.site, facts.holder
    assert site is not None
    loop = source.loop_around(site)
    stores = changes.stores_in(loop, total) if loop is not None else []
    if len(stores) != 1 or source.root_name(site) != total:
        return ()
    store = places.of_node(stores[0], site.file, site.function)
    loss = added(store, total)
    if not loss:
        return ()
    return edit.joined(edit.item_added(store, total), edit.backward_of(site, loss))


def _of_probe(facts: SharedGraph) -> Iterator[Fix]:
    site = facts.call.site
    assert site is not None
    roles = facts.roles
    create = Fix(
        FixKind.CREATE_GRAPH,
        "pass create_graph=True to this call: the later loss is trained through its result",
        edit.with_flag(site, "create_graph"),
        _CHANGES,
        ("the later loss trains through the gradient as well, which it does not now",),
        "its result is a part of the later loss",
    )
    reason = "its result only steps a copy of the weights" if roles.update else ""
    reason = reason or "its result is only read"
    retain = retained(facts, "" if roles.penalty else reason)
    if roles.penalty:
        yield create
        yield retain
        return
    yield retain
    if roles.update:
        yield create
    yield Fix(
        FixKind.RECOMPUTE,
        "run the forward pass again for the later call",
        edit.forward_again(facts.next_call),
        _SAFE,
        (untouched(roles), computed_again(facts, "twice")),
    )


def _of_state(facts: SharedGraph, holders: Sequence[Holder]) -> Iterator[Fix]:
    """A state that goes from one iteration into the next."""
    name = facts.holder
    lost = grouped(facts.roles.leaves)
    effects = (
        f"{lost or 'the parameters'} would get gradient from each loss through its own iteration, "
        "not through earlier ones",
        "each iteration's graph goes once its call is over",
    )
    message = words_for(FixKind.DETACH, facts)
    stored = Fix(
        FixKind.DETACH, message, detach_where_stored(facts), _SAFE, effects, "a carried state"
    )
    if facts.averaged:
        yield Fix(
            FixKind.NO_GRAD,
            words_for(FixKind.NO_GRAD, facts),
            () if facts.link is None else edit.no_grad(facts.link),
            _SAFE,
            ("no parameter is trained through it",),
            "an average of parameters",
        )
        yield stored
        return
    if facts.call.driven:
        yield Fix(
            FixKind.DETACH,
            message,
            _detach_for_the_next_run(facts),
            _SAFE,
            effects,
            "a carried state",
        )
        return
    yield Fix(FixKind.DETACH, message, _detach_after(holders), _SAFE, effects, "a carried state")
    where = f" at {place(facts.link)}" if facts.link is not None else ""
    message = f"detach() `{name}`{where}, where it is stored"
    read = edit.detach_carried(facts.link, name) if facts.link is not None else ()
    yield Fix(FixKind.DETACH, message, read or stored.edits, _CHANGES, effects)
    yield retained(facts, "")


def _detach_after(holders: Sequence[Holder]) -> tuple[Edit, ...]:
    here = holders[0].at
    plain = [h.name for h in holders if not h.in_tuple and re.fullmatch(r"[\w.\[\]'\"]+", h.name)]
    whole = [*dict.fromkeys(h.name.rpartition("[")[0] for h in holders if h.in_tuple)]
    parts = []
    if plain:
        parts.append(edit.detach_after(here, plain))
    if whole:
        parts.append(edit.detach_after(here, whole, elements=True))
    if not parts or len(plain) + sum(h.in_tuple for h in holders) < len(holders):
        return ()
    return parts[0] if len(parts) == 1 else edit.joined(*parts)


def _detach_for_the_next_run(facts: SharedGraph) -> tuple[Edit, ...]:
    """Detach what is stored, where this run of the function does not read it any more."""
    link = facts.link
    if link is None or facts.holder.endswith("]") or not is_read_first(link, facts.holder):
        return ()
    return detach_where_stored(facts)
