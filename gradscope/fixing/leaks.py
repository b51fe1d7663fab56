"""Proposes fixes for what keeps graphs alive: a total, a list, an average, a weight, a cycle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from gradscope.code import changes, places, source
from gradscope.code.stepping import What, events_after
from gradscope.code.stores import places_like
from gradscope.fixing import calls, moves, special, syntax, values
from gradscope.fixing.choosing import SAME_GRADIENTS, chosen
from gradscope.fixing.edits import joined
from gradscope.model import Applicability, Edit, Fix, FixKind, Site
from gradscope.model.paths import Origin, Path
from gradscope.rules.base import at, place
from gradscope.rules.gs301 import Carried
from gradscope.rules.gs302 import KeptAlive, fix_kind
from gradscope.rules.gs304 import KeptByCycle, words_for
from gradscope.rules.gs305 import NeverBackpropagated
from gradscope.rules.gs305 import words_for as words_for_unused

_SAFE = Applicability.MACHINE_APPLICABLE
_CHANGES = Applicability.MAYBE_INCORRECT
_BACKWARDS = ("backward", "manual_backward", "grad", "step")
_OF_CONTAINERS = frozenset({*dir(list), *dir(dict), *dir(set), "appendleft"})


def without_retain(site: Site | None) -> tuple[Edit, ...]:
    """Leave ``retain_graph=True`` out of the call at a site."""
    return calls.without_flag(site, "retain_graph") if site is not None else ()


def detached_after(
    site: Site | None, names: Iterable[Path], *, in_tuple: bool = False
) -> tuple[Edit, ...]:
    """Leave ``retain_graph=True`` out, and detach the tensor after the call by one of its names.

    ``in_tuple``: the names are those of a tuple of tensors.
    """
    if site is None or not isinstance(syntax.statement_at(site), ast.Expr):
        return ()
    known = (n.text for n in names if n.origin.file == site.file and _is_known_at(n.origin, site))
    name = next((text for text in known if re.fullmatch(r"[^\W\d][\w.]*", text)), None)
    if name is None or not _is_handed_on(name, site):
        return ()
    return moves.detach_after(site, [name], elements=in_tuple, without="retain_graph")


def detached_where_stored(store: Site | None, *, in_container: bool) -> tuple[Edit, ...]:
    """Store the tensor detached, if there is one place that stores it."""
    if store is None:
        return ()
    for node in ast.walk(source.tree(store.file)):
        if places.is_at(node, store) and (total := _stores(node, in_container)) is not None:
            if places_like(store.file, node) != 1:
                return ()
            added = values.detach_added(store, total) if total else ()
            return added or moves.detach_stored(store)
    return ()


def _stores(node: ast.AST, in_container: bool) -> str | None:
    """Return the total that a node adds to, or an empty text if it stores something else.

    None where it stores nothing that could be detached: into a container, or over what was there.
    """
    match node:
        case ast.Call(func=ast.Attribute(attr=method), args=[value], keywords=[]) if in_container:
            adds = method in changes.ADDS_ONE and not isinstance(value, ast.Starred)
            return "" if adds else None
        case ast.Assign(targets=[ast.Subscript()]) if in_container:
            return ""
        case ast.Assign(targets=[ast.Name() | ast.Attribute() as target]) if not in_container:
            return ast.unparse(target)
        case ast.AugAssign(
            target=ast.Name() | ast.Attribute() as target, op=ast.Add() | ast.Sub()
        ) if not in_container:
            return ast.unparse(target)
    return None


def _is_known_at(origin: Origin, site: Site) -> bool:
    """Return whether a variable can be assigned at a site under its name."""
    if site.function == "<module>":
        return origin.owner == "global"
    return origin.owner == "local" and origin.function == site.function


def _is_handed_on(name: str, site: Site) -> bool:
    """Return whether an iteration reads the name first, and does not store it after the call."""
    regions = (*source.LOOPS, ast.FunctionDef, ast.AsyncFunctionDef)
    around = source.enclosing(site.file, site.line)
    region = next(
        (n for n in reversed(around) if isinstance(n, regions) and n.lineno < site.line), None
    )
    if region is None:
        return False
    uses = [
        n
        for n in ast.walk(region)
        if isinstance(n, ast.Name | ast.Attribute) and ast.unparse(n) == name
    ]
    reads = [n.lineno for n in uses if isinstance(n.ctx, ast.Load)]
    stores = [n.lineno for n in uses if isinstance(n.ctx, ast.Store)]
    if not uses:
        return "." in name  # a module does it, somewhere in its forward
    return bool(reads and stores) and min(reads) <= min(stores) and max(stores) <= site.line


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
        edits, others = values.stored_as(store, "str"), ()
    elif kind is FixKind.ITEM and _is_used_as_tensor(store, holder):
        edits, reason = detached, "only its value is needed, as a tensor"
    elif kind is FixKind.ITEM:
        edits = values.item_added(store, holder) or values.item_stored(store) or detached
        reason = "only its value is needed"
    elif kind is FixKind.NO_GRAD and facts.call is None:
        edits = _loop_without_grad(store) or detached
        reason = "no backward call comes"
    elif kind is FixKind.NO_GRAD:
        edits = moves.no_grad(store) or detached
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
        edits = values.detach_to_leaf(facts.stored, facts.holder) or detached
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
    read = (
        moves.detach_stored(stored, holder) if is_behind else values.detach_carried(stored, holder)
    )
    dropped = calls.without_flag(call, "retain_graph") if facts.call.retain_graph else ()
    return joined(read, dropped) if read and dropped else read


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
    return moves.no_grad(places.of_node(statement, made.file, made.function), context=context)


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
    return moves.no_grad(places.of_node(loop, store.file, store.function))


def _detached_parts(store: Site | None, keys: Sequence[object]) -> tuple[Edit, ...]:
    """Detach those parts of the tuple, dict or object that a statement puts into a container."""
    statement = source.statement_at(store) if store is not None else None
    if store is None or statement is None or not keys:
        return ()
    for node in syntax.own_nodes(statement):
        parts = [_part(node, key) for key in keys]
        if all(parts):
            return joined(
                *(moves.detach_stored(store, ast.unparse(each)) for each in parts if each)
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


def fixes_for_cycle(facts: KeptByCycle) -> tuple[Fix, ...]:
    """Return what can be done, the expert's choice first."""
    return chosen({"ctx": _of_ctx, "hook": _of_hook, "grad": _of_grad}[facts.kind](facts))


def _of_ctx(facts: KeptByCycle) -> Iterator[Fix]:
    """An output that is an attribute of its own Function's ``ctx``."""
    site = facts.site
    saved = () if site is None else special.save_for_backward(site)
    yield Fix(FixKind.OTHER, words_for(facts), saved, _SAFE, (SAME_GRADIENTS,))
    yield Fix(
        FixKind.DETACH,
        f"detach() what is stored{at(site)}: the copy has no node that leads back to the ctx",
        () if site is None else moves.detach_stored(site),
        _SAFE,
        (
            SAME_GRADIENTS,
            "torch does not notice if it is changed in place before the backward call",
        ),
    )


def _of_hook(facts: KeptByCycle) -> Iterator[Fix]:
    """A hook that closes over the tensor that it is registered on."""
    site = facts.site
    captured = () if site is None else special.detach_in_hook(site)
    yield Fix(FixKind.DETACH, words_for(facts), captured, _SAFE, (SAME_GRADIENTS,))
    yield Fix(
        FixKind.OTHER,
        f"keep the handle that register_hook() returns{at(site)}, and remove() the hook after the "
        "backward call",
        (),
        _SAFE,
        (SAME_GRADIENTS,),
    )


def _of_grad(facts: KeptByCycle) -> Iterator[Fix]:
    """A gradient with a graph that leads back to its parameter."""
    site = facts.call.site if facts.call is not None else None
    plain = Fix(
        FixKind.OTHER,
        f"leave create_graph=True out{at(site)}, if no second derivative is taken",
        () if site is None else calls.without_flag(site, "create_graph"),
        _CHANGES,
        (SAME_GRADIENTS, "the gradients have no graph of their own any more"),
        "nothing in the file reads a gradient" if site and not _reads_gradients(site) else "",
    )
    grad = Fix(FixKind.OTHER, words_for(facts), (), _SAFE, (SAME_GRADIENTS,))
    yield from (plain, grad) if plain.reason else (grad, plain)
    owner = "" if site is None else _owner_of_gradients(site)
    how = f" with {owner}.zero_grad()" if owner else ""
    yield Fix(
        FixKind.OTHER,
        f"set the gradients to None at the end of each iteration{how}",
        moves.put_at_end(site, f"{owner}.zero_grad()") if site and owner else (),
        _CHANGES,
        ("each iteration begins without the gradients of the one before",),
    )


def _reads_gradients(site: Site) -> bool:
    """Return whether a file reads ``.grad``, or takes derivatives of what it likes."""
    return any(
        isinstance(node, ast.Attribute) and node.attr in ("grad", "autograd", "step")
        for node in ast.walk(source.tree(site.file))
    )


def _owner_of_gradients(site: Site) -> str:
    """Return what resets the gradients: the optimizer that steps, or the one module whose
    parameters the file names.
    """
    steps = [each.target for each in events_after([site]) if each.what is What.STEP]
    if steps:
        return steps[0]
    loop = source.loop_around(site)
    made = loop if loop is not None else source.function_around(site)
    names = {
        each.func.id
        for each in source.calls_in(made)
        if isinstance(each.func, ast.Name) and _is_module(each.func.id, site)
    }
    return names.pop() if len(names) == 1 else ""


def _is_module(name: str, site: Site) -> bool:
    """Return whether a variable is made by a class of ``nn``."""
    for node in ast.walk(source.tree(site.file)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            names = {each.id for each in node.targets if isinstance(each, ast.Name)}
            if name in names and "nn" in ast.unparse(node.value.func).split("."):
                return True
    return False
