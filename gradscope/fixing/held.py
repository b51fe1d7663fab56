"""Proposes fixes for what keeps graphs alive: a total, a list, an average, a weight."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from gradscope.code import places, source
from gradscope.fixing import primitives as edit
from gradscope.fixing import spots
from gradscope.model import Applicability, Edit, Fix, FixKind, Site
from gradscope.rules.gs301 import Carried
from gradscope.rules.gs302 import KeptAlive, fix_kind

_SAFE = Applicability.MACHINE_APPLICABLE
_BACKWARDS = ("backward", "manual_backward", "grad", "step")
_OF_CONTAINERS = frozenset({*dir(list), *dir(dict), *dir(set), "appendleft"})


def fixes_for_kept(facts: KeptAlive, detached: tuple[Edit, ...], message: str) -> tuple[Fix, ...]:
    """Return what can be done, the first with this ``message``.

    ``detached`` are the edits that store what is held detached.
    """
    kind, store, holder = fix_kind(facts), facts.stored, facts.holder
    effects = ("nothing is trained through what is stored, and nothing was",)
    detached = detached or _detached_parts(store, facts.parts)
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
        owner = held = node.func.value
        while isinstance(held, ast.Subscript):
            held = held.value
        if ast.unparse(held) == name and node.func.attr in _OF_CONTAINERS:
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


def _detached_parts(store: Site | None, keys: Sequence[object]) -> tuple[Edit, ...]:
    """Detach those parts of the tuple, dict or object that a statement puts into a container."""
    statement = source.statement_at(store) if store is not None else None
    if store is None or statement is None or not keys:
        return ()
    for node in spots.own_nodes(statement):
        parts = [_part(node, key) for key in keys]
        if all(parts):
            return edit.joined(
                *(edit.detach_stored(store, ast.unparse(each)) for each in parts if each)
            )
    return ()


def _part(node: ast.AST, key: object) -> ast.expr | None:
    """Return the expression of which a display, or a call by keywords, makes its part ``key``."""
    match node:
        case ast.Tuple(elts=parts) | ast.List(elts=parts) if isinstance(key, int):
            starred = any(isinstance(part, ast.Starred) for part in parts)
            return parts[key] if key < len(parts) and not starred else None
        case ast.Dict(keys=names, values=values):
            named = zip(names, values, strict=True)
            return next(
                (v for n, v in named if isinstance(n, ast.Constant) and n.value == key), None
            )
        case ast.Call(keywords=keywords) if isinstance(key, str):
            return next((each.value for each in keywords if each.arg == key), None)
    return None
