"""Proposes how to break a reference cycle that keeps graphs alive."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradscope.code import source
from gradscope.code.stepping import What, events_after
from gradscope.fixing import primitives as edit
from gradscope.fixing import special
from gradscope.fixing.choosing import SAME_GRADIENTS, chosen
from gradscope.model import Applicability, Fix, FixKind, Site
from gradscope.rules.base import at
from gradscope.rules.gs304 import KeptByCycle, words_for

_SAFE = Applicability.MACHINE_APPLICABLE
_CHANGES = Applicability.MAYBE_INCORRECT


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
        () if site is None else edit.detach_stored(site),
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
        () if site is None else edit.without_flag(site, "create_graph"),
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
        edit.put_at_end(site, f"{owner}.zero_grad()") if site and owner else (),
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
    calls = {
        each.func.id
        for each in source.calls_in(made)
        if isinstance(each.func, ast.Name) and _is_module(each.func.id, site)
    }
    return calls.pop() if len(calls) == 1 else ""


def _is_module(name: str, site: Site) -> bool:
    """Return whether a variable is made by a class of ``nn``."""
    for node in ast.walk(source.tree(site.file)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            names = {each.id for each in node.targets if isinstance(each, ast.Name)}
            if name in names and "nn" in ast.unparse(node.value.func).split("."):
                return True
    return False
