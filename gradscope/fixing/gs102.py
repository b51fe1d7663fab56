"""Writes down the fixes of GS102 as edits of the user's lines, where a few lines are enough."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from gradscope.code import changes, places, source
from gradscope.fixing import primitives, spots
from gradscope.model import Edit, FixKind, Site
from gradscope.rules.gs102 import SharedGraph, fix_kind


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


def edits_for(facts: SharedGraph, holders: Sequence[Holder]) -> tuple[Edit, ...]:
    """Return the edits that make the fix; none where it takes more than that.

    ``holders`` are those that lead to the call that will fail.
    """
    assert facts.call.site is not None
    if facts.call.driven:  # no line of the user's comes before or after the call
        return _detach_for_the_next_run(facts) if fix_kind(facts) is FixKind.DETACH else ()
    match fix_kind(facts):
        case FixKind.RETAIN_GRAPH:
            return primitives.with_flag(facts.call.site, "retain_graph")
        case FixKind.SUM_LOSSES if facts.elements:
            return primitives.sum_of_loop(facts.call.site, facts.elements)
        case FixKind.SUM_LOSSES:
            return primitives.sum_losses(facts.call.site, facts.next_call)
        case FixKind.ITEM:
            return _item(facts.call.site, facts.holder)
        case FixKind.NO_GRAD if facts.link is not None:
            return primitives.no_grad(facts.link)
        case FixKind.RECOMPUTE if not facts.same_root:
            return _recompute(facts, holders)
        case FixKind.DETACH if facts.again and facts.carried:
            return _detach_after(holders)
        case FixKind.DETACH if facts.again:
            link = facts.link or (facts.made[0] if facts.made else None)
            return primitives.detach_stored(link) if link is not None else ()
        case FixKind.DETACH:
            return _detach_in_loss(facts)
    return ()


def _item(site: Site, total: str) -> tuple[Edit, ...]:
    """Add the value of each loss to the total, and call backward on the loss."""
    region = source.loop_around(site)
    stores = changes.stores_in(region, total) if region is not None else []
    call = spots.call_at(site)
    root = getattr(call.func, "value", None) if call is not None else None
    if len(stores) != 1 or not isinstance(root, ast.expr) or ast.unparse(root) != total:
        return ()
    added = _added(stores[0], total)
    if added is None:
        return ()
    store = places.of_node(stores[0], site.file)
    return primitives.joined(
        primitives.item_added(store, total), primitives.backward_of(site, added.id)
    )


def _added(store: ast.stmt, total: str) -> ast.Name | None:
    """Return the variable that a statement adds to a total."""
    match store:
        case ast.AugAssign(op=ast.Add(), value=ast.Name() as added):
            return added
        case ast.Assign(value=ast.BinOp(left=left, op=ast.Add(), right=right)):
            others = [each for each in (left, right) if ast.unparse(each) != total]
            return others[0] if len(others) == 1 and isinstance(others[0], ast.Name) else None
    return None


def _recompute(facts: SharedGraph, holders: Sequence[Holder]) -> tuple[Edit, ...]:
    """Take the cache off, or compute the holders in the loop or the function that is run anew."""
    if facts.holder.startswith("<lru_cache of "):
        return primitives.without_decorator(facts.link) if facts.link is not None else ()
    here = holders[0].at
    if source.loop_around(here) is None and not holders[0].again:
        return ()
    return primitives.recompute(here, [holder.name for holder in holders])


def _detach_after(holders: Sequence[Holder]) -> tuple[Edit, ...]:
    """Detach the holders after the backward call."""
    here = holders[0].at
    in_tuple = {holder.in_tuple for holder in holders}
    names = [holder.name for holder in holders]
    if len(in_tuple) > 1:
        return ()
    return primitives.detach_after(here, names, elements=in_tuple == {True})


def _detach_for_the_next_run(facts: SharedGraph) -> tuple[Edit, ...]:
    """Detach what is stored, where this run of the function does not read it any more."""
    link = facts.link
    store = spots.statement_at(link) if link is not None else None
    if link is None or not isinstance(store, ast.Assign) or not isinstance(store.value, ast.Name):
        return ()
    if facts.holder.endswith("]"):
        return ()  # what is stored is no tensor
    attribute = facts.holder.rpartition(".")[2]
    for node in ast.walk(source.tree(link.file)):
        if not isinstance(node, ast.Attribute) or node.attr != attribute:
            continue
        if isinstance(node.ctx, ast.Load) and not _comes_first(node, store, link):
            return ()
    return primitives.detach_stored(link)


def _comes_first(node: ast.expr, store: ast.stmt, link: Site) -> bool:
    """Return whether a read stands before the store in its function."""
    around = source.function_around(link)
    return source.spans(around, node.lineno) and node.lineno < store.lineno


def _detach_in_loss(facts: SharedGraph) -> tuple[Edit, ...]:
    """Detach the shared tensor in the loss that trains something else as well."""
    site = facts.next_call if facts.only_shared else facts.call.site
    assert site is not None
    store = changes.last_store(site, source.root_name(site))
    if not facts.shared or store is None:
        return ()
    return primitives.detach_reads(places.of_node(store, site.file), facts.shared)
