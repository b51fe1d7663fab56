"""Proposes the fixes of GS202: what a backward call needs is not changed in place before it."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

from gradscope.code import places, source
from gradscope.code.statements import Statement
from gradscope.code.stepping import What, events_after
from gradscope.fixing import in_place, moves, values
from gradscope.fixing.choosing import SAME_GRADIENTS, chosen
from gradscope.fixing.edits import joined
from gradscope.model import Applicability, Edit, Fix, FixKind, Site
from gradscope.rules.base import place
from gradscope.rules.gs202 import By, StaleSoon

_AVERAGE = re.compile(
    r"ema|avg|average|mean|momentum|shadow|teacher|target|slow|swa", re.IGNORECASE
)


def fix_for(
    change: Statement, made: Sequence[Site], methods: Container[str], *, computed: bool
) -> Fix:
    """Return what an expert would do, with edits where they can be written down.

    Only a tensor that an operation has ``computed`` is replaced by another; a buffer or a table
    must stay the tensor that it is, as other code may know it. ``methods`` are those that a tensor
    has.
    """
    site, name = change.site, change.target
    edits = in_place.out_of_place(site, methods) if computed else ()
    if edits:
        return cloned(f"at {place(site)}, use the out-of-place form of the operation", edits)
    edits = _clone_where_saved(name, made)
    if edits:
        saved = ", ".join(place(each) for each in made)
        message = f"let {saved} use `{name}.clone()`, or change `{name}` after the backward call"
        return cloned(message, edits)
    where = f" at {place(made[0])}" if made else ""
    form = "use the out-of-place form of the operation or change a clone()"
    return cloned(f"save a clone(){where}, or at {place(site)} {form}", ())


def _fix_for_hidden(change: Statement, made: Sequence[Site]) -> Fix | None:
    """Return the fix of a write through ``.data`` to a buffer or an activation: its graph saves a
    clone.

    None where the lines that saved it do not name it.
    """
    name = change.target.removesuffix(".data")
    edits = _clone_where_saved(name, made)
    if not edits:
        return None
    saved = ", ".join(place(each) for each in made)
    message = f"let {saved} use `{name}.clone()`, or write to `{name}.data` after the backward call"
    return cloned(message, edits)


def cloned(message: str, edits: tuple[Edit, ...]) -> Fix:
    """Return the fix that has the graph save a tensor of its own."""
    effects = ("one more tensor of that size is held until the graph goes",)
    return Fix(FixKind.CLONE, message, edits, Applicability.MACHINE_APPLICABLE, effects)


def _clone_where_saved(name: str, made: Sequence[Site]) -> tuple[Edit, ...]:
    """Let the lines that saved a tensor use a clone of it, where they name it."""
    sites = {site.line: site for site in made} if name else {}
    return joined(*(values.clone_reads(site, name) for site in sites.values()))


def fixes_for_change(
    change: Statement,
    facts: StaleSoon,
    methods: Container[str],
    *,
    computed: bool,
    trained: bool,
) -> tuple[Fix, ...]:
    """Return what can be done, the expert's choice first.

    ``computed``: an operation of the graph made what was changed; ``trained``: it is a parameter.
    ``methods`` are those that a tensor has.
    """
    later = _later(change.site, facts, trained=trained)
    hidden = facts.by is By.DATA
    if hidden:
        cure = _fix_for_hidden(change, facts.made)
        cures = tuple(each for each in (cure,) if each is not None)
    else:
        cures = tuple(
            fix_for(change, facts.made, methods, computed=each)
            for each in dict.fromkeys((computed, False))
        )
    if not any(each.edits for each in cures):
        cures = (*_clones(facts), *cures)
    cures = tuple(each for each in cures if each.edits) or cures
    if trained or (not hidden and not computed and _is_average(change, facts)):
        return chosen((later, *(() if hidden and trained else cures)))
    return chosen(cures if computed else (*cures, later))


def _clones(facts: StaleSoon) -> tuple[Fix, ...]:
    """Return the fix that has the forward pass of a module use a clone of its buffer."""
    for name in facts.tensors:
        own = f"self.{name.rpartition('.')[2]}"
        found = joined(*(values.clone_reads(site, own) for site in facts.made))
        if found:
            where = ", ".join(place(each) for each in facts.made)
            return (cloned(f"let {where} use `{own}.clone()`", found),)
    return ()


def _is_average(change: Statement, facts: StaleSoon) -> bool:
    """Return whether an average of weights is what was changed."""
    names = (change.target, *facts.tensors)
    return any(_AVERAGE.search(name.rpartition(".")[2]) for name in names) and not facts.nodes[1:]


def _later(change: Site, facts: StaleSoon, *, trained: bool) -> Fix:
    """Change it when the backward call is over: parameters when they have been stepped as well."""
    call = facts.next_call
    target = _step_after(call) if trained else None
    goal = target or call
    block = _block(change, call)
    what = "the step" if target is not None else "the backward call"
    reason = "it belongs after the step: nothing is trained through it" if trained else ""
    return Fix(
        FixKind.REORDER,
        f"change it after {what} at {place(goal)}, not before",
        moves.move_after(block, goal) if block is not None and block.line < goal.line else (),
        Applicability.MACHINE_APPLICABLE if trained else Applicability.MAYBE_INCORRECT,
        (SAME_GRADIENTS,),
        reason,
    )


def _step_after(call: Site) -> Site | None:
    """Return the optimizer's step that follows a call in its function."""
    for event in events_after([call]):
        if event.what is What.STEP and event.site.line > call.line:
            return event.site
    return None


def _block(change: Site, call: Site) -> Site | None:
    """Return the statement of the call's function that makes a change."""
    at = change
    if (change.file, change.function) != (call.file, call.function):
        name = change.function.rpartition(".")[2]
        calls = source.calls_in(source.function_around(call))
        made = [c for c in calls if source.called_name(c) == name and c.lineno < call.line]
        if not made or change.file != call.file:
            return None
        at = places.of_node(made[-1], call.file, call.function)
    for node in source.enclosing(at.file, at.line):
        if not source.spans(node, call.line):
            return places.of_node(node, at.file, call.function)
    return None
