"""Writes down the fixes of GS102 as edits of the user's lines, where a few lines are enough."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gradscope.code import changes, source
from gradscope.fixing.edits import (
    added_to,
    checked,
    detached,
    indent_of,
    is_alone,
    line_alone,
    reads_followed_by,
)
from gradscope.model import Edit, FixKind, Site
from gradscope.rules.gs102 import SharedGraph, fix_kind

_INDENT = "    "


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
    return checked(*_edits(facts, holders))


def _edits(facts: SharedGraph, holders: Sequence[Holder]) -> tuple[Edit, ...]:
    assert facts.call.site is not None
    if facts.call.driven:  # no line of the user's comes before or after the call
        return _detach_for_the_next_run(facts) if fix_kind(facts) is FixKind.DETACH else ()
    match fix_kind(facts):
        case FixKind.RETAIN_GRAPH:
            return _retain(facts.call.site)
        case FixKind.SUM_LOSSES if facts.elements:
            return _sum_of_loop(facts.call.site, facts.elements)
        case FixKind.SUM_LOSSES:
            return _sum(facts.call.site, facts.next_call)
        case FixKind.ITEM:
            return _item(facts.call.site, facts.holder)
        case FixKind.NO_GRAD if facts.link is not None:
            return _no_grad(facts.link)
        case FixKind.RECOMPUTE if not facts.same_root:
            return _uncache(facts) if facts.holder.startswith("<lru_cache of ") else _move(holders)
        case FixKind.DETACH if facts.again and facts.carried:
            return _detach_after(holders)
        case FixKind.DETACH if facts.again:
            return _detach_where_stored(facts)
        case FixKind.DETACH:
            return _detach_in_loss(facts)
    return ()


def _retain(site: Site) -> tuple[Edit, ...]:
    line = source.line_of(site.file, site.line)
    end = site.end_column - 1
    if site.end_line != site.line or line[end - 1 : end] != ")" or "retain_graph" in line:
        return ()
    given = "" if line[:end].endswith("()") else ", "
    changed = f"{line[: end - 1]}{given}retain_graph=True{line[end - 1 :]}"
    return (Edit(site.file, site.line, changed),)


def _plain_backward(site: Site) -> str:
    """Return the loss of a line that is no more than ``loss.backward()``."""
    statement = line_alone(site)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return ""
    if call.func.attr != "backward" or call.args or call.keywords:
        return ""
    return ast.unparse(call.func.value)


def _sum(first: Site, second: Site) -> tuple[Edit, ...]:
    losses = _plain_backward(first), _plain_backward(second)
    if not all(losses) or first.file != second.file or first.function != second.function:
        return ()
    indents = indent_of(first.file, first.line), indent_of(first.file, second.line)
    between = range(first.line + 1, second.line)
    if indents[0] != indents[1] or not first.line < second.line:
        return ()
    root = losses[1].partition(".")[0]
    if any(root in changes.targets_at(first.file, line) for line in between):
        return ()  # the second loss is computed only after the first call
    total = f"{indents[0]}({losses[0]} + {losses[1]}).backward()"
    return Edit(first.file, first.line, total), Edit(first.file, second.line, "")


def _sum_of_loop(site: Site, elements: str) -> tuple[Edit, ...]:
    loop = source.loop_around(site)
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name):
        return ()
    line = source.line_of(site.file, loop.lineno)
    head = f"for {loop.target.id} in {elements}:"
    if ast.unparse(loop.iter) != elements or head not in line:
        return ()
    summed = f"for {loop.target.id} in [sum({elements})]:"
    return (Edit(site.file, loop.lineno, line.replace(head, summed)),)


def _item(site: Site, total: str) -> tuple[Edit, ...]:
    """Add the value of each loss to the total, and call backward on the loss."""
    region = source.loop_around(site)
    stores = changes.stores_in(region, total) if region is not None else []
    if len(stores) != 1 or _plain_backward(site) != total:
        return ()
    store = line_alone(Site(site.file, stores[0].lineno))
    added: ast.expr | None = None
    if isinstance(store, ast.AugAssign) and isinstance(store.op, ast.Add):
        added = store.value
    elif isinstance(store, ast.Assign) and isinstance(store.value, ast.BinOp):
        is_sum = isinstance(store.value.op, ast.Add)
        added = added_to(total, store.value) if is_sum else None
    if store is None or not isinstance(added, ast.Name):
        return ()
    indents = indent_of(site.file, store.lineno), indent_of(site.file, site.line)
    return (
        Edit(site.file, store.lineno, f"{indents[0]}{total} = {total} + {added.id}.item()"),
        Edit(site.file, site.line, f"{indents[1]}{added.id}.backward()"),
    )


def _no_grad(link: Site) -> tuple[Edit, ...]:
    imports = [n for n in source.tree(link.file).body if isinstance(n, ast.Import)]
    names = [alias for node in imports for alias in node.names]
    if line_alone(link) is None or not any(a.name == "torch" and not a.asname for a in names):
        return ()
    indent = indent_of(link.file, link.line)
    line = source.line_of(link.file, link.line).lstrip()
    under = f"{indent}with torch.no_grad():\n{indent}{_INDENT}{line}"
    return (Edit(link.file, link.line, under),)


def _uncache(facts: SharedGraph) -> tuple[Edit, ...]:
    """Take the cache off a function."""
    link = facts.link
    if link is None or not source.line_of(link.file, link.line).lstrip().startswith("@"):
        return ()
    return (Edit(link.file, link.line, ""),)


def _move(holders: Sequence[Holder]) -> tuple[Edit, ...]:
    """Move what makes the holders into the loop, or the function that is run anew."""
    here = holders[0].at
    loop = source.loop_around(here)
    function = source.function_around(here)
    if loop is not None:
        first, scope = loop.body[0].lineno, function
    elif holders[0].again and isinstance(function, ast.FunctionDef):
        first, scope = function.body[0].lineno, source.tree(here.file)
    else:
        return ()
    moved: dict[int, str] = {}
    for holder in holders:
        stores = changes.stores_in(scope, holder.name)
        if len(stores) != 1 or holder.name not in changes.targets_of(stores[0]):
            return ()
        line = stores[0].lineno
        if line != stores[0].end_lineno or line >= first or not is_alone(here.file, stores[0]):
            return ()
        moved[line] = source.line_of(here.file, line).lstrip()
    indent = indent_of(here.file, first)
    lines = [indent + moved[line] for line in sorted(moved)]
    edits = [Edit(here.file, line, "") for line in sorted(moved)]
    return (*edits, Edit(here.file, first, "\n".join((*lines, source.line_of(here.file, first)))))


def _detach_after(holders: Sequence[Holder]) -> tuple[Edit, ...]:
    """Detach the holders after the backward call."""
    here = holders[0].at
    statement = source.statement_at(here)
    if statement is None or not is_alone(here.file, statement):
        return ()
    last = statement.end_lineno or statement.lineno
    indent = indent_of(here.file, statement.lineno)
    lines: dict[str, None] = {}
    for name, in_tuple in ((holder.name, holder.in_tuple) for holder in holders):
        if in_tuple:
            whole = name.rpartition("[")[0]
            lines[f"{indent}{whole} = tuple(t.detach() for t in {whole})"] = None
        elif re.fullmatch(r"[\w.\[\]'\"]+", name):
            lines[f"{indent}{name} = {name}.detach()"] = None
        else:
            return ()
    return (Edit(here.file, last, "\n".join((source.line_of(here.file, last), *lines))),)


def _detach_where_stored(facts: SharedGraph) -> tuple[Edit, ...]:
    """Detach the whole right-hand side of a plain assignment."""
    link = facts.link or (facts.made[0] if facts.made else None)
    statement = line_alone(link)
    if link is None or not isinstance(statement, ast.Assign):
        return ()
    return (Edit(link.file, statement.lineno, detached(statement.value, link.file)),)


def _detach_for_the_next_run(facts: SharedGraph) -> tuple[Edit, ...]:
    """Detach what is stored, where this run of the function does not read it any more."""
    link = facts.link
    store = line_alone(link)
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
    return _detach_where_stored(facts)


def _comes_first(node: ast.expr, store: ast.stmt, link: Site) -> bool:
    """Return whether a read stands before the store in its function."""
    around = source.function_around(link)
    return source.spans(around, node.lineno) and node.lineno < store.lineno


def _detach_in_loss(facts: SharedGraph) -> tuple[Edit, ...]:
    """Detach the shared tensor in the loss that trains something else as well."""
    site = facts.next_call if facts.only_shared else facts.call.site
    assert site is not None
    root = source.root_name(site)
    store = changes.last_store(site, root)
    if not facts.shared or store is None or store.lineno != store.end_lineno:
        return ()
    at = Site(site.file, store.lineno)
    line = reads_followed_by(".detach()", facts.shared, store, at)
    return (Edit(at.file, at.line, line),) if line else ()
