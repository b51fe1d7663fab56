"""Proposes fixes for two losses over one forward pass, by which of them trains what they share."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradscope.code import changes, places, source
from gradscope.fixing import primitives as edit
from gradscope.fixing.choosing import loses
from gradscope.fixing.shared import forward_again, retained, sum_of
from gradscope.model import Applicability, Edit, Fix, FixKind, Site
from gradscope.rules.gs102 import SharedGraph, fix_kind, words_for
from gradscope.rules.roles import Cut, Link, Loss, grouped

_SAFE = Applicability.MACHINE_APPLICABLE
_CHANGES = Applicability.MAYBE_INCORRECT


def of_siblings(facts: SharedGraph) -> Iterator[Fix]:
    """Two losses over one forward pass."""
    roles = facts.roles
    cuts = {link.cut for link in roles.links}
    detaches = [_detached(facts, cut) for cut in (Cut.FIRST, Cut.SECOND)]
    sides = [Cut.FIRST, Cut.SECOND]
    together = sum_of(facts, "one optimizer steps with both" if roles.same_optimizer else "")
    apart = "each loss has a step of its own" if facts.stepped_between else ""
    again = forward_again(facts, apart if roles.same_optimizer else "each loss trains another part")
    retain = retained(facts, "")
    if not roles.known or not roles.links:
        first = 1 if facts.only_shared else 0
        if fix_kind(facts) is FixKind.DETACH:
            yield from (detaches[first], together, detaches[1 - first], again)
        else:
            yield from (together, detaches[0], again, retain)
    elif cuts == {Cut.NEITHER}:
        yield from _of_constant(facts, detaches)
    elif len(cuts) == 1 and cuts <= {Cut.FIRST, Cut.SECOND}:
        at = sides.index(next(iter(cuts)))
        yield from (detaches[at], again, retain, detaches[1 - at])
    elif cuts == {Cut.FIRST, Cut.SECOND}:
        yield from (_peers(facts), again, together)
    elif roles.same_optimizer or not facts.stepped_between:
        if facts.stepped_between and again.edits and not together.edits:
            together, again = again, together
        yield from (together, again, retain, detaches[0])
    else:
        yield from (again, together, *detaches)


def _of_constant(facts: SharedGraph, detaches: list[Fix]) -> Iterator[Fix]:
    """What neither loss trains."""
    link = facts.roles.links[0]
    reason = "no optimizer that steps with these losses has its parameters"
    effects = (f"{grouped(link.leaves)} would get no gradient, which no step uses",)
    store = _store_of(link, facts)
    yield Fix(
        FixKind.DETACH,
        f"detach() `{link.name}` where it is computed",
        edit.detach_stored(store, link.name) if store is not None else (),
        _SAFE,
        effects,
        reason,
    )
    yield Fix(
        FixKind.NO_GRAD,
        f"compute `{link.name}` under torch.no_grad()",
        edit.no_grad(store) if store is not None else (),
        _SAFE,
        effects,
    )
    yield detaches[0]


def _store_of(link: Link, facts: SharedGraph) -> Site | None:
    name = link.name_first or link.name
    site = facts.call.site
    store = changes.last_store(site, name) if site is not None else None
    if site is None or store is None:
        return facts.link
    return places.of_node(store, site.file, site.function)


def _detached(facts: SharedGraph, cut: Cut) -> Fix:
    """Detach what is shared in one of the two losses."""
    roles = facts.roles
    links = [link for link in roles.links if link.cut is cut] or [*roles.links[:1]]
    is_first = cut is Cut.FIRST
    loss, other = (roles.first, roles.second) if is_first else (roles.second, roles.first)
    if not links or loss is None or other is None:
        return Fix(FixKind.DETACH, words_for(FixKind.DETACH, facts), (), _CHANGES)
    parts = [_detach_in(link, is_first=is_first) for link in links]
    names = ", ".join(_cut_name(link, is_first=is_first) for link in links)
    lost = grouped(n for link in links for n in (link.lost_first if is_first else link.lost_second))
    is_right = all(link.cut is cut for link in links)
    return Fix(
        FixKind.DETACH,
        f"use {names} in {loss.words}",
        edit.joined(*parts) if len(parts) > 1 else parts[0],
        _SAFE if is_right else _CHANGES,
        (loses(lost, loss), _keeps(grouped(links[0].leaves), other)),
        _why(links[0], loss, other) if is_right else "",
    )


def _why(link: Link, loss: Loss, other: Loss) -> str:
    """Return why one loss may do without the gradient of a variable."""
    if not other.steps:
        return ""
    steps, others = _optimizers(loss.steps), _optimizers(other.steps)
    if loss.trains:
        return f"`{link.name}` is named as a constant"
    return f"{steps} steps with this loss, and only {others} has {grouped(link.leaves)}"


def _optimizers(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _keeps(leaves: str, other: Loss) -> str:
    return f"{leaves or 'the shared part'} would get gradient from {other.words} as before"


def _cut_name(link: Link, *, is_first: bool) -> str:
    name = (link.name_first if is_first else link.name_second) or link.name
    return f"`{name}.detach()`"


def _detach_in(link: Link, *, is_first: bool) -> tuple[Edit, ...]:
    sites = link.first if is_first else link.second
    name = link.name_first if is_first else link.name_second
    parts = [_detach_at(site, name) for site in sites]
    if not parts:
        return ()
    return parts[0] if len(parts) == 1 else edit.joined(*parts)


def _detach_at(site: Site, name: str) -> tuple[Edit, ...]:
    """Detach a variable in a statement; what ``autograd.grad`` is asked for must be a leaf then."""
    statement = source.statement_at(site)
    targets = changes.targets_of(statement) if statement is not None else frozenset[str]()
    asked = {
        ast.unparse(node)
        for call in source.calls_in(source.function_around(site))
        if source.called_name(call) == "grad"
        for given in (*call.args[1:], *(k.value for k in call.keywords if k.arg == "inputs"))
        for node in source.reads_of(given)
    }
    leaf = next(iter(targets & asked), "")
    return edit.detach_to_leaf(site, leaf) if leaf else edit.detach_reads(site, name)


def _peers(facts: SharedGraph) -> Fix:
    """Each loss takes what the other one trains as a constant."""
    fixes = [_detached(facts, cut) for cut in (Cut.FIRST, Cut.SECOND)]
    edits = edit.joined(*(fix.edits for fix in fixes))
    message = " and ".join(fix.message.removeprefix("use ") for fix in fixes)
    effects = tuple(effect for fix in fixes for effect in fix.effects)
    return Fix(FixKind.DETACH, f"use {message}", edits, _SAFE, effects, fixes[0].reason)
