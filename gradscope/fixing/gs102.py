"""Proposes fixes for a graph that two backward calls share, the one that an expert would choose
first.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradscope.code import changes, places, source
from gradscope.code.names import owner_of
from gradscope.fixing import calls, moves, recompute, special, values
from gradscope.fixing.choosing import added, chosen, computed_again, loses, untouched
from gradscope.fixing.edits import joined
from gradscope.model import Applicability, Edit, Fix, FixKind, Site
from gradscope.rules.base import is_grad, place
from gradscope.rules.gs102 import SharedGraph, fix_kind, words_for
from gradscope.rules.roles import Cut, Link, Loss, grouped
from gradscope.units import nbytes

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
        yield from _of_made_once(facts, holders)
    else:
        yield from _of_siblings(facts)


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
        recompute.reset_at_head(facts.call.site, name),
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
    return joined(values.item_added(store, total), calls.backward_of(site, loss))


def _of_probe(facts: SharedGraph) -> Iterator[Fix]:
    site = facts.call.site
    assert site is not None
    roles = facts.roles
    create = Fix(
        FixKind.CREATE_GRAPH,
        "pass create_graph=True to this call: the later loss is trained through its result",
        calls.with_flag(site, "create_graph"),
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
        recompute.forward_again(facts.next_call),
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
            () if facts.link is None else moves.no_grad(facts.link),
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
    read = values.detach_carried(facts.link, name) if facts.link is not None else ()
    yield Fix(FixKind.DETACH, message, read or stored.edits, _CHANGES, effects)
    yield retained(facts, "")


def _detach_after(holders: Sequence[Holder]) -> tuple[Edit, ...]:
    here = holders[0].at
    plain = [h.name for h in holders if not h.in_tuple and re.fullmatch(r"[\w.\[\]'\"]+", h.name)]
    whole = [*dict.fromkeys(h.name.rpartition("[")[0] for h in holders if h.in_tuple)]
    parts = []
    if plain:
        parts.append(moves.detach_after(here, plain))
    if whole:
        parts.append(moves.detach_after(here, whole, elements=True))
    if not parts or len(plain) + sum(h.in_tuple for h in holders) < len(holders):
        return ()
    return parts[0] if len(parts) == 1 else joined(*parts)


def _detach_for_the_next_run(facts: SharedGraph) -> tuple[Edit, ...]:
    """Detach what is stored, where this run of the function does not read it any more."""
    link = facts.link
    if link is None or facts.holder.endswith("]") or not _is_read_first(link, facts.holder):
        return ()
    return detach_where_stored(facts)


def _is_read_first(link: Site, holder: str) -> bool:
    """Return whether the store at a site may put something else in place for the next run: this
    run does not read the attribute any more.
    """
    store = source.statement_at(link)
    if not isinstance(store, ast.Assign) or not isinstance(store.value, ast.Name):
        return False
    attribute = holder.rpartition(".")[2]
    reads = (
        node
        for node in ast.walk(source.tree(link.file))
        if isinstance(node, ast.Attribute) and node.attr == attribute
    )
    return all(
        not isinstance(node.ctx, ast.Load) or _comes_first(node, store, link) for node in reads
    )


def _comes_first(node: ast.expr, store: ast.stmt, link: Site) -> bool:
    """Return whether a read stands before the store in its function."""
    around = source.function_around(link)
    return source.spans(around, node.lineno) and node.lineno < store.lineno


def _of_siblings(facts: SharedGraph) -> Iterator[Fix]:
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
        moves.detach_stored(store, link.name) if store is not None else (),
        _SAFE,
        effects,
        reason,
    )
    yield Fix(
        FixKind.NO_GRAD,
        f"compute `{link.name}` under torch.no_grad()",
        moves.no_grad(store) if store is not None else (),
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
        joined(*parts) if len(parts) > 1 else parts[0],
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
    return parts[0] if len(parts) == 1 else joined(*parts)


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
    return values.detach_to_leaf(site, leaf) if leaf else values.detach_reads(site, name)


def _peers(facts: SharedGraph) -> Fix:
    """Each loss takes what the other one trains as a constant."""
    fixes = [_detached(facts, cut) for cut in (Cut.FIRST, Cut.SECOND)]
    edits = joined(*(fix.edits for fix in fixes))
    message = " and ".join(fix.message.removeprefix("use ") for fix in fixes)
    effects = tuple(effect for fix in fixes for effect in fix.effects)
    return Fix(FixKind.DETACH, f"use {message}", edits, _SAFE, effects, fixes[0].reason)


@dataclass(frozen=True, slots=True)
class Holder:
    """A variable that holds the graph, by the name that it has in the code at ``at``.

    ``again``: a library runs that code anew. ``in_tuple``: the name is that of an element of a
    tuple.
    """

    name: str
    at: Site
    again: bool = False
    in_tuple: bool = False


def _of_made_once(facts: SharedGraph, holders: Sequence[Holder]) -> Iterator[Fix]:
    """What was made once, and is used by every iteration: a constant, or a cache to be trained."""
    roles = facts.roles
    if facts.holder.startswith("<cached "):
        yield _cached_in_loop(facts)
        yield retained(facts, "")
        return
    trained = facts.trained and not roles.constant
    lost = grouped(roles.leaves)
    at = facts.link or (facts.made[0] if facts.made else None)
    effects = (loses(lost, roles.second, f"through `{facts.holder}`"),)
    is_safe = not (roles.second and roles.second.trains) if roles.known else not facts.trained
    detach = Fix(
        FixKind.DETACH,
        words_for(FixKind.DETACH, facts),
        detach_where_stored(facts),
        _SAFE if is_safe else _CHANGES,
        effects,
        roles.constant if not trained else "",
    )
    again = recomputed(facts, holders, "what it is computed from is trained" if trained else "")
    no_grad = Fix(
        FixKind.NO_GRAD,
        f"compute `{facts.holder}` under torch.no_grad(): it keeps no graph at all",
        () if at is None or facts.call.driven else moves.no_grad(_cached(facts.holder, at) or at),
        _SAFE if is_safe else _CHANGES,
        effects,
    )
    yield from (again, detach, no_grad) if trained else (detach, no_grad, again)


def _cached_in_loop(facts: SharedGraph) -> Fix:
    """What ``parametrize.cached()`` keeps over the iterations of a loop."""
    call = facts.call.site
    edits = special.cached_in_loop(call) if call is not None else ()
    who = grouped(facts.roles.leaves) or "the parameters"
    return Fix(
        FixKind.RECOMPUTE,
        "open parametrize.cached() in each iteration of the loop, not around it",
        edits,
        _SAFE,
        (f"{who} would get gradient in each iteration", computed_again(facts, "each time")),
        "a cache belongs to one graph",
    )


def recomputed(facts: SharedGraph, holders: Sequence[Holder], reason: str) -> Fix:
    """Return the fix that computes what is shared anew, where it is used."""
    roles = facts.roles
    kept = f"{grouped(roles.leaves)} would get gradient in each iteration" if roles.leaves else ""
    return Fix(
        FixKind.RECOMPUTE,
        words_for(FixKind.RECOMPUTE, facts),
        _again(facts, holders),
        _SAFE if reason else _CHANGES,
        tuple(filter(None, (kept, computed_again(facts, "each time")))),
        reason,
    )


def _again(facts: SharedGraph, holders: Sequence[Holder]) -> tuple[Edit, ...]:
    """Compute a cache, or what was made before the loop, where it is used."""
    if facts.call.driven:
        return ()
    link = facts.link
    if facts.holder.startswith("<lru_cache of ") and link is not None:
        return recompute.uncached(link)
    found: tuple[Edit, ...] = ()
    if link is not None and "." not in facts.holder and "[" not in facts.holder:
        found = recompute.recomputed(holders[0].at, [each.name for each in holders])
    elif link is not None:
        inside = getattr(source.function_around(link), "name", "")
        lazy = recompute.rebuilt(link)
        found = lazy or (recompute.recomputed_in(facts.read, link) if inside == "__init__" else ())
    found = found or recompute.recomputed(holders[0].at, [each.name for each in holders])
    return found or (() if link is None else recompute.refilled(link, facts.next_call))


def detach_where_stored(facts: SharedGraph) -> tuple[Edit, ...]:
    """Return the edits that store the holder detached."""
    link = facts.link or (facts.made[0] if facts.made else None)
    if link is None:
        return ()
    if function := _cached(facts.holder, link):
        return values.detach_returned(function)
    name = "" if facts.holder.startswith("<") else facts.holder
    found = moves.detach_stored(link, name)
    return found if found or not _is_the_tensor(link, name) else moves.detach_stored(link)


def _cached(holder: str, link: Site) -> Site | None:
    """Return the function whose decorator at a place keeps its results."""
    if not holder.startswith("<lru_cache of "):
        return None
    for node in ast.walk(source.tree(link.file)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if any(source.spans(each, link.line) for each in node.decorator_list):
            return places.of_node(node, link.file, link.function)
    return None


def _is_the_tensor(link: Site, name: str) -> bool:
    """Return whether a statement stores the tensor itself, not a tuple or a list that it is in."""
    statement = source.statement_at(link)
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr="append"))):
            container = owner_of(name)[0].rpartition(".")[2]
            return bool(container) and ast.unparse(owner).rpartition(".")[2] == container
    stored = () if statement is None else changes.targets_of(statement)
    return not name.endswith("]") or any(target.endswith("]") for target in stored)


def sum_of(facts: SharedGraph, reason: str) -> Fix:
    """Return the fix that makes one backward call of the two."""
    site = facts.call.site
    assert site is not None
    if facts.elements:
        edits = calls.sum_of_loop(site, facts.elements)
    else:
        edits = calls.sum_losses(site, facts.next_call)
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
        recompute.forward_again(facts.next_call, names),
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
        calls.with_flag(site, "retain_graph"),
        _SAFE if reason else _CHANGES,
        held + (fails if facts.stepped_between and not reason else ()),
        reason,
    )
