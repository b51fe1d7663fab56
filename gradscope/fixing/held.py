"""Proposes fixes for what keeps graphs alive: a total, a list, an average, a weight."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gradscope.code import places, source
from gradscope.fixing import primitives as edit
from gradscope.fixing import spots
from gradscope.fixing.choosing import chosen
from gradscope.model import Applicability, Edit, Fix, FixKind, Site
from gradscope.rules.base import place
from gradscope.rules.gs301 import Carried
from gradscope.rules.gs302 import KeptAlive, fix_kind
from gradscope.rules.gs305 import NeverBackpropagated
from gradscope.rules.gs305 import words_for as words_for_unused

_SAFE = Applicability.MACHINE_APPLICABLE
_CHANGES = Applicability.MAYBE_INCORRECT
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


def fixes_for_carried(
    facts: Carried, detached: tuple[Edit, ...], message: str, *, in_tuple: bool
) -> tuple[Fix, ...]:
    """Return what can be done where a graph goes back over the iterations, the first with this
    ``message`` and the edits that detach after the call.

    ``in_tuple``: what is carried is a tuple of tensors.
    """
    edits = detached
    if facts.steps and facts.stored is not None:
        edits = edit.detach_to_leaf(facts.stored, facts.holder) or detached
    effects = (f"gradient reaches what this iteration does to `{facts.holder}`, nothing earlier",)
    reason = "a weight that is stepped by hand" if facts.steps else "a carried state"
    read = () if facts.steps or in_tuple else _detached_where_handed_on(facts)
    first = Fix(FixKind.DETACH, message, edits or read, _SAFE, effects, reason)
    if facts.steps or facts.stored is None:
        return (first,)
    return chosen((first, *_of_state(facts, read, effects)))


def _of_state(facts: Carried, read: tuple[Edit, ...], effects: tuple[str, ...]) -> Iterator[Fix]:
    """Yield what else can be done with a state whose graph is kept over the iterations."""
    if read:
        where = f"at {place(facts.stored)}, where the next iteration takes it"
        message = f"detach() `{facts.holder}` {where}, and drop retain_graph=True"
        yield Fix(FixKind.DETACH, message, read, _SAFE, effects)
    yield Fix(
        FixKind.SUM_LOSSES,
        "add the losses of a few iterations, call backward once for all of them, then detach() "
        f"`{facts.holder}`",
        (),
        Applicability.HAS_PLACEHOLDERS,
        (
            "gradient goes back over as many iterations as are added",
            "their graphs are held until then",
        ),
    )


def _detached_where_handed_on(facts: Carried) -> tuple[Edit, ...]:
    """Detach what the statement that stores the state reads of it, or what it stores where that is
    behind the call; and keep no graph.
    """
    call = facts.call.site if facts.call is not None else None
    if facts.stored is None or call is None or facts.call is None:
        return ()
    stored, holder = facts.stored, facts.holder
    is_behind = stored.function == call.function and stored.line > call.line
    read = edit.detach_stored(stored, holder) if is_behind else edit.detach_carried(stored, holder)
    dropped = edit.without_flag(call, "retain_graph") if facts.call.retain_graph else ()
    return edit.joined(read, dropped) if read and dropped else read


def fixes_for_unused(facts: NeverBackpropagated) -> tuple[Fix, ...]:
    """Return what can be done where graphs are built that no backward call goes through."""
    made = facts.made
    nothing = "nothing is trained through it, and nothing was on this run"
    safe = _CHANGES if facts.also_trained else _SAFE
    return (
        Fix(
            FixKind.NO_GRAD,
            words_for_unused(facts),
            _without_graph(made, "no_grad"),
            safe,
            (nothing,),
            "no backward call comes",
        ),
        Fix(
            FixKind.NO_GRAD,
            f"run {place(made)} under torch.inference_mode(), which costs less still",
            _without_graph(made, "inference_mode"),
            _CHANGES,
            (nothing, "torch raises where what it computes enters a graph later"),
        ),
    )


def _without_graph(made: Site, context: str) -> tuple[Edit, ...]:
    """Return the edits that run a statement under a context in which no graph is built."""
    statement = source.statement_at(made)
    simple = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Return
    if not isinstance(statement, simple):
        return ()
    return edit.no_grad(places.of_node(statement, made.file, made.function), context=context)


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
