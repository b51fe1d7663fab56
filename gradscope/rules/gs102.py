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
something else in the variable's place, where `retain_graph` is computed, or where the variable is
out of reach (in C++, in a library's own objects), nothing is announced here, and GS101 follows when
the call is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gradscope.model.calls import BackwardCall
from gradscope.model.finding import Certainty, Finding, Fix, FixKind, Related, Severity
from gradscope.model.graph import Node, Site, activation_bytes
from gradscope.rules.base import built, called, head, is_grad, place, rule
from gradscope.rules.roles import UNKNOWN, Roles
from gradscope.units import counted, listed, nbytes

RULE = rule(
    __doc__, "GS102", "shared-graph-about-to-be-freed", Severity.WARNING, Certainty.PREDICTED
)


@dataclass(frozen=True, slots=True)
class SharedGraph:
    """What is known when ``call`` is about to free ``nodes``, which ``holder`` leads to.

    ``read`` is where the holder is read next and ``next_call`` the backward call that comes of it.
    ``link`` is where the holder was assigned. ``others`` are further holders with the same fate.

    What decides the fix: ``same_root``, both calls start at the same node; ``again``, they are one
    line of code; ``carried``, each iteration assigns the holder; ``elements``, the list
    over which the loop of the call runs; ``accumulated``, the holder is a running total that the
    call starts from; ``averaged``, it is computed from parameters alone; ``trained``, it leads to
    parameters that something trains; ``stepped_between``, an optimizer steps before ``next_call``.
    ``shared`` is the variable by which both losses reach the shared part, ``only_shared``: the loss
    of ``call`` leads nowhere else, so that it is the other loss that may do without; ``next_root``
    is what ``next_call`` starts from. ``alive`` are the bytes that all graphs hold as ``call``
    begins, 0 where they are not known. ``conditions`` must hold for the later call to come, in
    words; None where it comes in any case. ``roles`` says who is trained by what. ``share`` are the
    nodes of the shared part, and of the whole graph of ``call``; (0, 0) where that is not known.
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
    shared: str = ""
    only_shared: bool = False
    next_root: str = ""
    alive: int = 0
    conditions: tuple[str, ...] | None = None
    roles: Roles = UNKNOWN
    share: tuple[int, int] = (0, 0)


def finding(facts: SharedGraph, fixes: Sequence[Fix] = ()) -> Finding:
    """Return the finding; ``fixes`` are what can be done, the better first."""
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
        fixes=fixes or (Fix(kind := fix_kind(facts), words_for(kind, facts)),),
    )
    return found if facts.conditions is None else replace(found, severity=Severity.ADVICE)


def words_for(kind: FixKind, facts: SharedGraph) -> str:
    """Return what to do, and what it costs, for a fix of a kind."""
    size = activation_bytes(tuple(s for node in facts.nodes for s in node.saved))
    return _advice(kind, facts, size) + _cost(kind, facts)


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


def fix_kind(facts: SharedGraph) -> FixKind:
    """Return what an expert would do; the order of the questions matters."""
    if facts.accumulated:
        return FixKind.ITEM
    is_part = facts.same_root and facts.call.inputs is not None
    if not facts.again and (is_grad(facts.call) or is_part):
        return FixKind.RETAIN_GRAPH
    if facts.elements:
        return FixKind.SUM_LOSSES
    if facts.same_root:
        return FixKind.RECOMPUTE
    if facts.again:
        if facts.carried:
            return FixKind.NO_GRAD if facts.averaged else FixKind.DETACH
        return FixKind.RECOMPUTE if facts.trained else FixKind.DETACH
    return FixKind.DETACH if facts.stepped_between else FixKind.SUM_LOSSES


def _cost(kind: FixKind, facts: SharedGraph) -> str:
    """What the fix and ``retain_graph=True`` in its place would hold in memory, where that is
    known.
    """
    keeps = facts.call.saved_bytes
    if not keeps or kind in (FixKind.RETAIN_GRAPH, FixKind.ITEM, FixKind.NO_GRAD):
        return ""
    retaining = f"; retain_graph=True instead would keep {nbytes(keeps)}"
    if kind is FixKind.SUM_LOSSES:
        is_known = facts.alive and not facts.elements
        peak = f" (holds {nbytes(facts.alive)} at the peak, as now)" if is_known else ""
        return f"{peak}{retaining} from one call to the next"
    if facts.again and facts.carried:
        return f"{retaining} more with each iteration"
    return f"{retaining} {'from one call to the next' if facts.again else 'until the later call'}"


def _advice(kind: FixKind, facts: SharedGraph, size: int) -> str:
    holder = facts.holder
    match kind:
        case FixKind.ITEM:
            add = f"add the value of each loss to `{holder}` with .item()"
            return f"{add}, and call backward on the loss alone"
        case FixKind.RETAIN_GRAPH:
            keeps = f" (keeps {nbytes(size)} of what it shares)" if size else ""
            return f"pass retain_graph=True to this call{keeps}"
        case FixKind.NO_GRAD:
            reason = "an average of parameters is not trained through"
            return f"compute `{holder}` under torch.no_grad(): {reason}"
        case FixKind.RECOMPUTE if facts.same_root:
            return "run the forward pass again before each backward call, or call backward once"
        case FixKind.RECOMPUTE:
            made = f"what {place(facts.made[0])} computes" if facts.made else f"`{holder}`"
            instead = f"or detach() `{holder}` if it should not be trained"
            return f"compute {made} again for each backward call; {instead}"
        case FixKind.SUM_LOSSES if facts.elements:
            return f"add the losses and call backward once: sum({facts.elements}).backward()"
        case FixKind.SUM_LOSSES:
            first = facts.call.roots[0].name if len(facts.call.roots) == 1 else None
            known = first and facts.next_root
            example = f": ({first} + {facts.next_root}).backward()" if known else ""
            return f"add the losses and call backward once{example}"
    return _advice_to_detach(facts)


def _advice_to_detach(facts: SharedGraph) -> str:
    if facts.again:
        driven = facts.call.driven
        when = "after this call" if facts.carried and not driven else "where it is stored"
        trained = "earlier iterations are" if facts.carried else "what it was computed from is"
        return f"detach() `{facts.holder}` {when}; {trained} then not trained through it"
    shared = f"{facts.shared or facts.holder}.detach()"
    if facts.only_shared:
        loss = f"the loss of {place(facts.next_call)}"
        return f"if {loss} should not train it, use {shared} in that loss"
    return f"if this loss should not train it, use {shared} in this loss"
