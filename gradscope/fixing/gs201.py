"""Proposes fixes where a step has changed parameters that a later backward call needs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from gradscope.code import changes, source
from gradscope.code.losses import Way, way_to
from gradscope.code.stepping import What, events_before
from gradscope.fixing import calls, moves, recompute
from gradscope.fixing.choosing import chosen
from gradscope.model import Applicability, Edit, Fix, FixKind, Site
from gradscope.rules.base import place
from gradscope.rules.roles import grouped

_SAFE = Applicability.MACHINE_APPLICABLE
_CHANGES = Applicability.MAYBE_INCORRECT


@dataclass(frozen=True, slots=True)
class Stepped:
    """What is known: the step at ``step`` has changed ``tensors``, which the lines ``made`` saved
    for the call ``next_call`` of the graph of ``holder``.

    ``carried``: the holder goes from one iteration into the next; ``again``: it was made before
    this iteration. ``link`` is where it was stored, ``kept`` the backward call that keeps its
    graph. ``in_tuple``: it is an element of a tuple.
    """

    step: Site
    next_call: Site
    holder: str
    tensors: tuple[str, ...]
    made: tuple[Site, ...]
    carried: bool = False
    again: bool = False
    constant: str = ""
    link: Site | None = None
    kept: Site | None = None
    in_tuple: bool = False


def fixes_for_step(facts: Stepped) -> tuple[Fix, ...]:
    """Return what can be done, the expert's choice first."""
    return chosen(_candidates(facts))


def _candidates(facts: Stepped) -> Iterator[Fix]:
    if facts.carried:
        yield from _of_state(facts)
    elif facts.again:
        yield from _of_made_once(facts)
    else:
        yield from _of_second_loss(facts)
    yield _moved(facts)


def _of_state(facts: Stepped) -> Iterator[Fix]:
    """A graph that is kept over the step although only its value is carried on."""
    name, at = facts.holder, facts.kept or facts.next_call
    whole = name.rpartition("[")[0] if facts.in_tuple else name
    drop = bool(calls.without_flag(at, "retain_graph"))
    without = "retain_graph" if drop else ""
    after = moves.detach_after(at, [whole], elements=facts.in_tuple, without=without)
    effects = (
        "each loss trains through its own iteration, not through earlier ones",
        "each iteration's graph goes once its call is over",
    )
    where = f"the backward call at {place(at)}"
    too = ", and leave retain_graph=True out" if drop else ""
    reason = "a carried state, whose old graph the step has made stale"
    yield Fix(
        FixKind.DETACH,
        f"detach() {f'`{whole}`' if name else 'what is carried on'} after {where}{too}",
        after if name else (),
        _SAFE,
        effects,
        reason,
    )
    if facts.link is not None and name:
        yield Fix(
            FixKind.DETACH,
            f"detach() `{name}` at {place(facts.link)}, where it is stored",
            moves.detach_stored(facts.link, name),
            _CHANGES,
            effects,
        )


def _of_made_once(facts: Stepped) -> Iterator[Fix]:
    """What was made before the loop, and is kept over its steps."""
    name, link = facts.holder, facts.link
    again = Fix(
        FixKind.RECOMPUTE,
        f"compute `{name}` again in each iteration: the step has changed what it is made from",
        recompute.recomputed(facts.next_call, [name]),
        _SAFE,
        (f"{grouped(facts.tensors)} would get gradient in each iteration, at its new value",),
        "" if facts.constant else "what it is computed from is trained",
    )
    detach = Fix(
        FixKind.DETACH,
        f"detach() `{name}` where it is stored",
        moves.detach_stored(link, name) if link is not None else (),
        _SAFE if facts.constant else _CHANGES,
        (f"{grouped(facts.tensors)} would get no gradient through `{name}`",),
        facts.constant,
    )
    yield from (detach, again) if facts.constant else (again, detach)


def _of_second_loss(facts: Stepped) -> Iterator[Fix]:
    """A loss that was computed before the step, and is run backward after it."""
    loss = way_to(facts.next_call)
    stale = _stale(facts, loss)
    names = [n for each in stale for n in sorted(changes.targets_of(each)) if n in loss.reads]
    others = [way_to(each) for each in _earlier(facts)]
    shared = [each for each in stale if any(_leads_to(way, each) for way in others)]
    listed = ", ".join(f"`{name}`" for name in names) or f"`{facts.holder}`"
    after = f"after the step at {place(facts.step)}"
    edits = recompute.forward_again(facts.next_call, names)
    who = grouped(facts.tensors)
    if stale and not shared:
        reason = "no other loss needs what is moved"
        effects = (
            f"`{facts.holder}` would be computed with {who} as stepped",
            "nothing is computed twice",
        )
        yield Fix(FixKind.REORDER, f"compute {listed} {after}", edits, _SAFE, effects, reason)
        return
    both = (
        f"`{facts.holder}` would be computed with {who} as stepped, and train what it trains now",
        "this forward pass would run twice",
    )
    reason = "both losses were computed before the step, and each trains another part"
    message = f"run the forward pass again {after}, for the second loss: {listed}"
    yield Fix(FixKind.RECOMPUTE, message, edits, _SAFE, both, reason)


def _stale(facts: Stepped, loss: Way) -> list[ast.stmt]:
    """Return the statements of the loss before the step that saved what it changes, or build on
    that, in order.
    """
    lines = {site.line for site in facts.made if site.file == loss.file}
    found: list[ast.stmt] = []
    names: set[str] = set()
    for each in sorted(loss.statements, key=lambda one: one.lineno):
        if each.lineno >= facts.step.line and facts.step.function == loss.function:
            continue
        reads = {name for name, nodes in loss.reads.items() if any(n is each for n in nodes)}
        if any(source.spans(each, line) for line in lines) or names & reads:
            found.append(each)
            names |= changes.targets_of(each)
    return found


def _earlier(facts: Stepped) -> list[Site]:
    """Return the backward calls of the code before the step."""
    return [
        each.site
        for each in events_before(facts.step)
        if each.what is What.BACKWARD and each.site.line != facts.next_call.line
    ]


def _leads_to(way: Way, statement: ast.stmt) -> bool:
    return any(each is statement for each in way.statements)


def _moved(facts: Stepped) -> Fix:
    """Step later: the second loss then adds its gradient to what the step takes."""
    return Fix(
        FixKind.REORDER,
        f"move the step at {place(facts.step)} after the backward call at {place(facts.next_call)}",
        _move_after(facts.step, facts.next_call),
        _CHANGES,
        (f"{grouped(facts.tensors)} would be stepped with the gradient of both losses",),
    )


def _move_after(step: Site, call: Site) -> tuple[Edit, ...]:
    if step.file != call.file or step.function != call.function or step.line >= call.line:
        return ()
    return moves.move_after(step, call)
