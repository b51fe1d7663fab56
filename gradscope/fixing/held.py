"""Proposes fixes for what keeps graphs alive: a total, a list, an average, a weight."""

from __future__ import annotations

import ast
import re

from gradscope.code import places, source
from gradscope.fixing import primitives as edit
from gradscope.model import Applicability, Edit, Fix, FixKind, Site
from gradscope.rules.gs301 import Carried
from gradscope.rules.gs302 import KeptAlive, fix_kind

_SAFE = Applicability.MACHINE_APPLICABLE
_BACKWARDS = ("backward", "manual_backward", "grad", "step")
_OF_CONTAINERS = frozenset({*dir(list), *dir(dict), *dir(set), "appendleft"})
_ELEMENT = re.compile(r"\[-?\d+\]\[(\d+)\]$")


def fixes_for_kept(facts: KeptAlive, detached: tuple[Edit, ...], message: str) -> tuple[Fix, ...]:
    """Return what can be done, the first with this ``message``.

    ``detached`` are the edits that store what is held detached.
    """
    kind, store, holder = fix_kind(facts), facts.stored, facts.holder
    effects = ("nothing is trained through what is stored, and nothing was",)
    detached = detached or _detached_part(store, holder)
    detach = Fix(FixKind.DETACH, f"store it detached in `{holder}`", detached, _SAFE, effects)
    if store is None:
        return (Fix(kind, message, (), _SAFE, effects),)
    others: tuple[Fix, ...] = (detach,)
    reason = ""
    if facts.through_frame:
        edits, others = edit.stored_as(store, "str"), ()
    elif kind is FixKind.ITEM and _is_used_as_tensor(store, holder):
        edits, reason = detached, "only its value is needed, as a tensor"
    elif kind is FixKind.ITEM:
        edits = edit.item_added(store, holder) or edit.item_stored(store) or detached
        reason = "only its value is needed"
    elif kind is FixKind.NO_GRAD and facts.call is None:
        edits = _loop_without_grad(store) or detached
        reason = "no backward call comes"
    elif kind is FixKind.NO_GRAD:
        edits = edit.no_grad(store) or detached
        reason = "an average is not trained through"
    else:
        edits, others = detached, ()
    return Fix(kind, message, edits, _SAFE, effects, reason), *others


def fix_for_carried(facts: Carried, detached: tuple[Edit, ...], message: str) -> Fix:
    """Return the fix of a graph that goes back over the iterations."""
    edits = detached
    if facts.steps and facts.stored is not None:
        edits = edit.detach_to_leaf(facts.stored, facts.holder) or detached
    effects = (f"gradient reaches what this iteration does to `{facts.holder}`, nothing earlier",)
    reason = "a weight that is stepped by hand" if facts.steps else "a carried state"
    return Fix(FixKind.DETACH, message, edits, _SAFE, effects, reason)


def edits_for_unused(made: Site) -> tuple[Edit, ...]:
    """Return the edits that run a line under ``torch.no_grad()``."""
    statement = source.statement_at(made)
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr):
        return ()
    return edit.no_grad(places.of_node(statement, made.file, made.function))


def _is_used_as_tensor(store: Site, holder: str) -> bool:
    """Return whether the file calls a method on what is held, or hands it to a library's function:
    a number in its place might not do.
    """
    name = holder.partition("[")[0]
    tree = source.tree(store.file)
    names = {name}
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.comprehension) and _mentions(node.iter, names):
            names |= {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = node.func.value
        if ast.unparse(owner) == name and node.func.attr in _OF_CONTAINERS:
            continue
        is_library = isinstance(owner, ast.Name) and owner.id in ("torch", "np", "numpy", "F")
        if _mentions(owner, names) or (is_library and any(_mentions(a, names) for a in node.args)):
            return True
    return False


def _mentions(node: ast.AST, names: set[str]) -> bool:
    variables = (n for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute))
    return any(ast.unparse(each) in names for each in variables)


def _loop_without_grad(store: Site) -> tuple[Edit, ...]:
    """Run the loop around a store under ``torch.no_grad()``, if it calls no backward."""
    loop = source.loop_around(store)
    if loop is None or any(source.called_name(c) in _BACKWARDS for c in source.calls_in(loop)):
        return ()
    return edit.no_grad(places.of_node(loop, store.file, store.function))


def _detached_part(store: Site | None, holder: str) -> tuple[Edit, ...]:
    """Detach one element of the tuple that a statement puts into a container."""
    found = _ELEMENT.search(holder)
    statement = source.statement_at(store) if store is not None else None
    if store is None or found is None or statement is None:
        return ()
    for call in source.calls_in(statement):
        given = call.args[0] if len(call.args) == 1 else None
        if isinstance(given, ast.Tuple) and int(found[1]) < len(given.elts):
            return edit.detach_stored(store, ast.unparse(given.elts[int(found[1])]))
    return ()
