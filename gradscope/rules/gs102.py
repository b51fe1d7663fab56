"""A backward call is about to free nodes that a later backward call will run.

## What it says

The backward call that is about to start runs without `retain_graph=True`, so it will free what its
nodes have saved. A variable of the program still leads to some of these nodes, and the code that
follows uses it for another backward call. That call will fail with
`Trying to backward through the graph a second time`. The finding names the line that built the
shared nodes, the variable, the line where it is used next, and the call that will fail.

## Why it happens

A graph belongs to one backward call, unless that keeps it. The program uses a part of it later:
a state carried into the next iteration, a tensor that was made once before the loop, a second loss
over the same forward pass, or a running total of losses. The error then comes at another line,
often in the next iteration, and says nothing about the first.

## Bad example

```python
import torch

cell = torch.nn.RNNCell(3, 5)
h = torch.zeros(2, 5)
for step in range(3):
    h = cell(torch.randn(2, 3), h)
    h.pow(2).mean().backward()
```

## Good example

```python
import torch

cell = torch.nn.RNNCell(3, 5)
h = torch.zeros(2, 5)
for step in range(3):
    h = cell(torch.randn(2, 3), h.detach())
    h.pow(2).mean().backward()
```

## What to do

- A state that is carried on: `detach()` it once the backward call is over.
- Something made once before the loop: make it inside the loop, or `detach()` it if it should not be
  trained.
- Two losses of one optimizer over one forward pass: add them, and call backward once.
- A loss that should not train the shared part: `detach()` that part where the loss takes it.
- An `autograd.grad` used as a probe: pass `retain_graph=True` to it.
- A running total of losses: add `loss.item()`, and call backward on the loss alone.

`gradscope fix` shows the fix as an edit of your lines where a few of them do it, and tries it out.

## What it costs

`detach()` is free, and nothing is trained through it. Adding losses is free. Computing again costs
that part of the forward pass. `retain_graph=True` keeps all that the call would have freed until
the graph goes; with a carried state it only puts the error off, as the graph then grows with every
iteration.

## Known limits

It is a warning only where every way on leads to the later call. Conditions are evaluated where
that runs none of your code: constants, flags, arguments, and the elements that an iterator still
has. Where a condition is not known yet, it is advice that names the condition; where it is known
not to hold, nothing is said. Where a branch or a call that cannot be followed may have put
something else in the variable's place, or where the variable is out of reach (in C++, in a
library's own objects), nothing is announced here, and GS101 follows when the call is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from gradscope.model.calls import BackwardCall
from gradscope.model.finding import Certainty, Finding, Fix, FixKind, Related, Severity
from gradscope.model.graph import Node, Site, activation_bytes
from gradscope.rules.base import NOT_REENTRANT, built, called, first_few, head, is_grad, place, rule
from gradscope.units import common_module, counted, listed, nbytes

RULE = rule(
    __doc__, "GS102", "shared-graph-about-to-be-freed", Severity.WARNING, Certainty.PREDICTED
)


_MOST_NAMED = 3
CARRIED = "a carried state"
"""Why a detach is proposed that takes nothing but what earlier iterations would train."""


def is_constant(finding: Finding) -> bool:
    """Return whether facts say that what is shared is not to be trained, though steps use it."""
    first = finding.fix
    if first is None or first.kind is not FixKind.DETACH or finding.code not in ("GS101", "GS102"):
        return False
    return first.reason not in ("", CARRIED)


# what a part that two graphs share is for, and who is trained by what


class Cut(Enum):
    """Which of the two losses may do without the gradient of a variable that they share."""

    FIRST = "first"
    SECOND = "second"
    NEITHER = "neither"
    BOTH = "both"


class Loss(NamedTuple):
    """One of two losses: its name, its backward call, and by name the optimizers that step with
    it.
    """

    name: str
    site: Site
    steps: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Return how a sentence names it: ```d_loss` (line 31)``."""
        return f"{f'`{self.name}`' if self.name else 'the loss'} (line {self.site.line})"


class Link(NamedTuple):
    """A variable by which both losses reach the shared part, and which of them may do without.

    ``leaves`` are the parameters behind it. ``lost_first`` and ``lost_second`` are those that get
    gradient from that loss in no other way; ``only``: the first loss trains nothing else.
    """

    name: str
    cut: Cut
    leaves: tuple[str, ...]
    lost_first: tuple[str, ...] = ()
    lost_second: tuple[str, ...] = ()
    only: bool = False


class Roles(NamedTuple):
    """What is known of a shared part: its parameters (``leaves``), and the two losses.

    ``known``: the optimizers that step with both are known. ``links`` are the variables between.
    ``constant`` says in half a sentence why it is a constant for the second loss; empty if it is
    none. ``total``: what losses are
    added to is a total of values.
    """

    leaves: tuple[str, ...] = ()
    first: Loss | None = None
    second: Loss | None = None
    known: bool = False
    links: tuple[Link, ...] = ()
    constant: str = ""
    same_optimizer: bool = False
    total: bool = False


UNKNOWN = Roles()
"""Where nothing was asked."""


def grouped(names: Iterable[str]) -> str:
    """Return parameters as text: those of one module as ``encoder.*``, an unnamed one as it is."""
    by_root: dict[str, list[str]] = {}
    for name in names:
        root, _, rest = name.partition(".")
        root += rest.partition(".")[0] if root == "self" else ""  # of one object, part by part
        by_root.setdefault(root, []).append(name)
    words = [_common(group) for group in by_root.values()]
    more = f" and {len(words) - _MOST_NAMED} more" if len(words) > _MOST_NAMED else ""
    told = [word if " " in word else f"`{word}`" for word in words[:_MOST_NAMED]]
    if more or len(told) < 2:
        return ", ".join(told) + more
    return f"{', '.join(told[:-1])} and {told[-1]}"


def _common(names: list[str]) -> str:
    """Return what parameters of one variable have in common."""
    if len(names) == 1:
        return names[0]
    common = common_module(name.rpartition(".")[0] for name in names)
    return f"{common}.*" if common else names[0]


class SharedGraph(NamedTuple):
    """What is known when ``call`` is about to free ``nodes``, which ``holder`` leads to.

    ``read`` is where the holder is read next and ``next_call`` the backward call that comes of it.
    ``link`` is where the holder was assigned. ``others`` are further holders with the same fate.

    What decides the fix: ``same_root``, both calls start at the same node; ``again``, they are one
    line of code; ``carried``, the holder holds something else by then; ``elements``, the list
    over which the loop of the call runs; ``accumulated``, the holder is a running total that the
    call starts from; ``averaged``, it is a weighted sum of parameters that this loss trains in
    another way; ``trained``, it leads to parameters that something trains; ``stepped_between``, an
    optimizer steps before ``next_call``; ``computed``, the call computes whether to keep its graph.
    ``conditions`` must hold for the later call to come, in words; None where it comes in any case.
    ``roles`` says who is trained by what.
    """

    call: BackwardCall
    holder: str
    nodes: tuple[Node, ...]
    made: tuple[Site, ...]
    read: Site
    next_call: Site
    link: Site | None = None
    others: tuple[tuple[str, Site | None], ...] = ()
    same_root: bool = False
    again: bool = False
    carried: bool = False
    elements: str = ""
    accumulated: bool = False
    averaged: bool = False
    trained: bool = True
    stepped_between: bool = False
    computed: bool = False
    conditions: tuple[str, ...] | None = None
    roles: Roles = UNKNOWN


def finding(facts: SharedGraph) -> Finding:
    """Return the finding, with what can be done about it, in words."""
    saved = tuple(s for node in facts.nodes for s in node.saved)
    size = activation_bytes(saved)
    needs = "needs" if facts.conditions is None else "would need"
    found = RULE.finding(
        f"{called(facts.call)} frees a graph that a later backward call {needs}",
        facts.call,
        site=head(facts.call, facts.link, *facts.made),
        label=_label(facts),
        related=_related(facts, size),
        nodes=facts.nodes,
        saved=saved,
        fixes=first_few(_fixes(facts)),
    )
    return found if facts.conditions is None else replace(found, severity=Severity.ADVICE)


def _label(facts: SharedGraph) -> str:
    nodes = counted(len(facts.nodes), "node")
    if facts.call.driven:
        return f"`{facts.holder}` leads to {nodes} that {called(facts.call)} will free"
    return f"will free {nodes} that `{facts.holder}` leads to"


def _related(facts: SharedGraph, size: int) -> Iterator[Related]:
    names = listed(node.name for node in facts.nodes)
    what = f"{names}, {nbytes(size)} saved" if size else names
    yield from built(facts.made, f"the shared part was built here: {what}")
    which = f"{called(facts.call)}, made in here," if facts.call.driven else "this call"
    frees = f"{which} frees it, as it runs without retain_graph=True"
    yield Related("freed_by", facts.call.site, frees)
    for holder, link in ((facts.holder, facts.link), *facts.others):
        if link is not None and link not in facts.made:
            yield Related("held_by", link, f"`{holder}` holds it from here on")
    if_so = unless_certain(facts.conditions)
    yield Related("next_read", facts.read, f"{if_so}`{facts.holder}` is used again here")
    if facts.next_call != facts.read:
        when = ", in its next run" if facts.again and not facts.call.driven else ""
        which = "the next backward call in here" if facts.call.driven else "the backward call here"
        yield Related("failing_node", facts.next_call, f"{if_so}{which} will fail{when}")


def unless_certain(conditions: tuple[str, ...] | None) -> str:
    """Return what a statement about a call that may not come begins with."""
    if conditions is None:
        return ""
    return f"if {' and '.join(conditions)}, " if conditions else "if the program comes to it, "


def _fixes(facts: SharedGraph) -> Iterator[Fix]:
    """Yield what can be done, what an expert would do first; the order of the questions matters."""
    call = facts.call
    is_part = facts.same_root and call.inputs is not None
    if call.parent is not None and not is_grad(call):
        yield NOT_REENTRANT
    elif facts.accumulated:
        yield from _of_total(facts)
    elif facts.again and not (facts.carried or facts.stepped_between) and is_grad(call):
        yield _retained(facts, "each call asks for a part of one result")
        yield _recomputed(facts)
    elif facts.computed and not (facts.again and facts.carried):
        yield _retained(facts)
        yield _recomputed(facts) if facts.again else _forward_again(facts, "")
    elif not facts.again and (is_grad(call) or is_part):
        yield from _of_probe(facts)
    elif facts.elements:
        yield _together(facts, "all of them are trained by one step")
        yield _retained(facts)
    elif facts.same_root:
        yield _forward_again(facts, "each call needs a graph of its own")
        yield _retained(facts)
    elif facts.again and facts.carried:
        yield from _of_state(facts)
    elif facts.again:
        yield from _of_made_once(facts)
    else:
        yield from _of_siblings(facts)


def _retained(facts: SharedGraph, reason: str = "") -> Fix:
    """Return the fix that has this call keep the graph."""
    if facts.computed:
        when = " in every run but the last" if facts.again else ""
        message = f"let this call keep the graph{when}, or add the losses"
    else:
        each = " more with each iteration" if facts.again and facts.carried else ""
        keeps = f" (keeps {nbytes(facts.call.saved_bytes)}{each})"
        message = f"pass retain_graph=True to this call{keeps if facts.call.saved_bytes else ''}"
    return Fix(FixKind.RETAIN_GRAPH, message, reason=reason)


def _of_total(facts: SharedGraph) -> Iterator[Fix]:
    name = facts.holder
    effect = "each call trains by its own loss alone"
    add = f"add the value of each loss to `{name}` with .item()"
    alone, why = f"{add}, and call backward on the loss alone", f"`{name}` is a running total"
    item = Fix(FixKind.ITEM, alone, effects=(effect,), reason=why)
    reset = f"set `{name}` to zero at the start of each iteration: it still holds earlier losses"
    never = f"`{name}` is a loss, never reset"
    zero = Fix(FixKind.RECOMPUTE, reset, effects=(effect,), reason=never)
    yield from (item, zero) if facts.roles.total else (zero, item)


def _of_probe(facts: SharedGraph) -> Iterator[Fix]:
    yield _retained(facts, "it asks for a gradient of a graph that is run once more")
    create = "pass create_graph=True to this call if the later loss is to train through its result"
    effect = "the later loss trains through the gradient as well, which it does not now"
    yield Fix(FixKind.CREATE_GRAPH, create, effects=(effect,))
    yield _forward_again(facts, "")


def _of_state(facts: SharedGraph) -> Iterator[Fix]:
    """Yield what can be done with a state that goes from one iteration into the next."""
    lost = grouped(facts.roles.leaves) or "the parameters"
    own = f"{lost} would get gradient from each loss through its own iteration, not earlier ones"
    if facts.averaged:
        average = "an average of parameters is not trained through"
        message = f"compute `{facts.holder}` under torch.no_grad(): {average}"
        yield Fix(FixKind.NO_GRAD, message, effects=("no parameter is trained through it",))
    goes = "each iteration's graph goes once its call is over"
    when = "where it is stored" if facts.call.driven else "after this call"
    detach = f"detach() `{facts.holder}` {when}; earlier iterations are then not trained through it"
    yield Fix(FixKind.DETACH, detach, effects=(own, goes), reason=CARRIED)
    if not facts.averaged and not facts.call.driven:
        yield _retained(facts)


def _of_made_once(facts: SharedGraph) -> Iterator[Fix]:
    """What was made once, and is used by every iteration: a constant, or a cache to be trained."""
    roles, again = facts.roles, _recomputed(facts)
    if facts.holder.startswith("<cached "):
        open_it = "open parametrize.cached() in each iteration of the loop, not around it"
        reason = "a cache belongs to one graph"
        yield replace(again, kind=FixKind.REORDER, message=open_it, reason=reason)
        yield _retained(facts)
        return
    trained = facts.trained and not roles.constant
    lost = loses(grouped(roles.leaves), roles.second, f"through `{facts.holder}`")
    stored = f"detach() `{facts.holder}` where it is stored"
    untrained = f"{stored}; what it was computed from is then not trained through it"
    why = "" if trained else roles.constant
    detach = Fix(FixKind.DETACH, untrained, effects=(lost,), reason=why)
    without = f"compute `{facts.holder}` under torch.no_grad(): it keeps no graph at all"
    no_grad = Fix(FixKind.NO_GRAD, without, effects=(lost,))
    yield from (again, detach, no_grad) if trained else (detach, no_grad, again)


def _recomputed(facts: SharedGraph) -> Fix:
    """Return the fix that computes what is shared anew, where it is used."""
    who = grouped(facts.roles.leaves)
    gets = f"{who} would get gradient in each iteration" if who else ""
    is_trained = facts.trained and not facts.roles.constant
    reason = "what it is computed from is trained" if is_trained else ""
    made = f"what {place(facts.made[0])} computes" if facts.made else f"`{facts.holder}`"
    instead = f"or detach() `{facts.holder}` if it should not be trained"
    message = f"compute {made} again for each backward call; {instead}"
    message = _ONCE_EACH if facts.same_root else message
    effects = (*filter(None, (gets,)), "the shared part is computed each time")
    return Fix(FixKind.RECOMPUTE, message, effects=effects, reason=reason)


def _of_siblings(facts: SharedGraph) -> Iterator[Fix]:
    """Yield what can be done with two losses over one forward pass."""
    roles = facts.roles
    cuts = {link.cut for link in roles.links}
    first, second = (_detached(facts, cut) for cut in (Cut.FIRST, Cut.SECOND))
    one_step = "one optimizer steps with both" if roles.same_optimizer else ""
    together, retain = _together(facts, one_step), _retained(facts)
    apart = "each loss has a step of its own" if facts.stepped_between else ""
    again = _forward_again(facts, apart or "each loss trains another part")
    if not roles.known or not roles.links:
        one, other = (second, first) if any(x.only for x in roles.links) else (first, second)
        yield from (one, together, other) if facts.stepped_between else (together, one)
    elif cuts == {Cut.NEITHER}:
        yield from _of_constant(facts)
    elif len(cuts) == 1 and cuts <= {Cut.FIRST, Cut.SECOND}:
        yield second if cuts == {Cut.SECOND} else first
    elif cuts == {Cut.FIRST, Cut.SECOND}:
        message = f"{first.message} and {second.message.removeprefix('use ')}"
        yield replace(first, message=message, effects=(*first.effects, *second.effects))
    elif not facts.stepped_between:
        yield together
    yield from (again, together, retain)


def _of_constant(facts: SharedGraph) -> Iterator[Fix]:
    """Yield what can be done with what neither loss trains."""
    link = facts.roles.links[0]
    reason = "no optimizer that steps with these losses has its parameters"
    effects = (f"{grouped(link.leaves)} would get no gradient, which no step uses",)
    detach = f"detach() `{link.name}` where it is computed"
    yield Fix(FixKind.DETACH, detach, effects=effects, reason=reason)
    no_grad = f"compute `{link.name}` under torch.no_grad()"
    yield Fix(FixKind.NO_GRAD, no_grad, effects=effects)


def _detached(facts: SharedGraph, cut: Cut) -> Fix:
    """Return the fix that detaches what is shared in one of the two losses."""
    roles = facts.roles
    links = [link for link in roles.links if link.cut is cut] or [*roles.links[:1]]
    is_first = cut is Cut.FIRST
    loss, other = (roles.first, roles.second) if is_first else (roles.second, roles.first)
    if not links or loss is None or other is None:
        here = "detach() it where this loss takes it"
        return Fix(FixKind.DETACH, f"if this loss should not train the shared part, {here}")
    lost = grouped(n for link in links for n in (link.lost_first if is_first else link.lost_second))
    keeps = f"{grouped(links[0].leaves) or 'the shared part'} would get gradient from {other.words}"
    return Fix(
        FixKind.DETACH,
        f"use {', '.join(f'`{link.name}.detach()`' for link in links)} in {loss.words}",
        effects=(loses(lost, loss), f"{keeps} as before"),
        reason=_why(links[0], loss, other) if all(link.cut is cut for link in links) else "",
    )


def _why(link: Link, loss: Loss, other: Loss) -> str:
    """Return why one loss may do without the gradient of a variable."""
    if not other.steps:
        return ""
    steps, others = (", ".join(f"`{name}`" for name in each.steps) for each in (loss, other))
    return f"{steps} steps with this loss, and only {others} has {grouped(link.leaves)}"


def _together(facts: SharedGraph, reason: str) -> Fix:
    """Return the fix that makes one backward call of the two."""
    late = "the first step would come after both losses"
    effect = late if facts.stepped_between else _untouched(facts.roles)
    first = facts.call.roots[0].name if len(facts.call.roots) == 1 else None
    second, example = facts.roles.second, ""
    if facts.elements:
        example = f": sum({facts.elements}).backward()"
    elif first and second and second.name:
        example = f": ({first} + {second.name}).backward()"
    message = f"add the losses and call backward once{example}"
    return Fix(FixKind.SUM_LOSSES, message, effects=(effect,), reason=reason)


def _forward_again(facts: SharedGraph, reason: str) -> Fix:
    """Return the fix that gives the later call a graph of its own."""
    names = ", ".join(f"`{link.name}`" for link in facts.roles.links)
    what = f" ({names})" if names else ""
    message = f"run the forward pass again{what} for the call at {place(facts.next_call)}"
    effects = (_untouched(facts.roles), "the shared part is computed twice")
    message = _ONCE_EACH if facts.same_root else message
    return Fix(FixKind.RECOMPUTE, message, effects=effects, reason=reason)


_ONCE_EACH = "run the forward pass again before each backward call, or call backward once"
"""What to do where both calls start at the same node."""


def loses(leaves: str, loss: Loss | None, how: str = "") -> str:
    """Return that parameters get no gradient from a loss any more."""
    source_of = loss.words if loss is not None else "this loss"
    what = leaves or "what it was computed from"
    return f"{what} would get no gradient from {source_of}{f' {how}' if how else ''}"


def _untouched(roles: Roles) -> str:
    """Return that all parameters get gradient from both losses, as before."""
    who = grouped(roles.leaves)
    return f"{who} would get gradient from both losses as before" if who else "trains as before"
