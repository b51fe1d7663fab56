"""Proposes fixes for what is made once and used by many calls: a constant, or a cache to train."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradscope.code import changes, places, source
from gradscope.code.names import owner_of
from gradscope.fixing import primitives as edit
from gradscope.fixing import special
from gradscope.fixing.choosing import computed_again, loses
from gradscope.fixing.shared import retained
from gradscope.model import Applicability, Edit, Fix, FixKind, Site
from gradscope.rules.gs102 import SharedGraph, words_for
from gradscope.rules.roles import grouped

_SAFE = Applicability.MACHINE_APPLICABLE
_CHANGES = Applicability.MAYBE_INCORRECT


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


def of_made_once(facts: SharedGraph, holders: Sequence[Holder]) -> Iterator[Fix]:
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
        () if at is None or facts.call.driven else edit.no_grad(_cached(facts.holder, at) or at),
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
        return edit.without_decorator(link)
    found: tuple[Edit, ...] = ()
    if link is not None and "." not in facts.holder and "[" not in facts.holder:
        found = edit.recompute(holders[0].at, [each.name for each in holders])
    elif link is not None:
        inside = getattr(source.function_around(link), "name", "")
        lazy = edit.rebuild_cache(link)
        found = lazy or (edit.recompute_in(facts.read, link) if inside == "__init__" else ())
    found = found or edit.recompute(holders[0].at, [each.name for each in holders])
    return found or (() if link is None else edit.refilled(link, facts.next_call))


def detach_where_stored(facts: SharedGraph) -> tuple[Edit, ...]:
    """Return the edits that store the holder detached."""
    link = facts.link or (facts.made[0] if facts.made else None)
    if link is None:
        return ()
    if function := _cached(facts.holder, link):
        return edit.detach_returned(function)
    name = "" if facts.holder.startswith("<") else facts.holder
    found = edit.detach_stored(link, name)
    return found if found or not _is_the_tensor(link, name) else edit.detach_stored(link)


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
