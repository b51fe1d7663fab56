"""A backward call is about to free nodes that a later backward call will run.

## What it says

The backward call that is about to start runs without `retain_graph=True`, so it will free what its nodes have saved. A
variable of the program still leads to some of these nodes, and the code that follows uses it for another backward
call. That call will fail with `Trying to backward through the graph a second time`. The finding names the line that built the
shared nodes, the variable, the line where it is used next, and the call that will fail.

## Why it happens

A graph belongs to one backward call, unless that keeps it. The program goes on to use a part of it: a state carried into the
next iteration, a tensor that was made once before the loop, a second loss over the same forward pass, or a running
total of losses. The error then comes at another line, often in the next iteration, and says nothing about the first.

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
- Something made once before the loop: make it inside the loop, or `detach()` it if it should not be trained.
- Two losses of one optimizer over one forward pass: add them, and call backward once.
- A loss that should not train the shared part: `detach()` that part where the loss takes it.
- An `autograd.grad` used as a probe: pass `retain_graph=True` to it.
- A running total of losses: add `loss.item()`, and call backward on the loss alone.

`gradscope fix` shows the fix as an edit of your lines where a few of them do it, and tries it out.

## What it costs

`detach()` is free, and nothing is trained through it. Adding losses is free. Computing again costs that part of the forward
pass. `retain_graph=True` keeps all that the call would have freed until the graph goes; with a carried state it only puts the
error off, as the graph then grows with every iteration.

## Known limits

It is said only where the code shows that the variable is read again and leads to a backward call. Where a branch or a call that
cannot be followed may have put something else in its place, where `retain_graph` is computed, or where the variable is
out of reach (in C++, in a library's own objects), nothing is said here, and GS101 says it when the call is made.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.model import (
    BackwardCall,
    Certainty,
    Edit,
    Finding,
    Fix,
    Node,
    Related,
    Severity,
    Site,
)
from gradscope.model.graph import activation_bytes
from gradscope.rules.base import called, is_grad, place, rule
from gradscope.units import counted, listed, nbytes

RULE = rule(
    __doc__, "GS102", "shared-graph-about-to-be-freed", Severity.WARNING, Certainty.PREDICTED
)


@dataclass(frozen=True, slots=True)
class SharedGraph:
    """What is known when ``call`` is about to free ``nodes``, which ``holder`` leads to.

    ``read`` is where the holder is read next and ``next_call`` the backward call that comes of it. ``link`` is where the
    holder was assigned. ``others`` are further holders with the same fate.

    What decides the fix: ``same_root``, both calls start at the same node; ``again``, they are one line of code;
    ``carried``, the holder is assigned anew in each iteration; ``elements``, the list over which the loop of the call runs;
    ``accumulated``, the holder is a running total that the call starts from; ``averaged``, it is computed from parameters alone;
    ``trained``, it leads to parameters that something trains; ``stepped_between``, an optimizer steps before ``next_call``.
    ``shared`` is the variable by which both losses reach the shared part, ``only_shared``: the loss of ``call`` leads nowhere else,
    so that it is the other loss that may do without; ``next_root`` is what ``next_call`` starts from. ``alive`` are the bytes that all
    graphs hold as ``call`` begins, 0 where they are not known.
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


def finding(facts: SharedGraph, edits: tuple[Edit, ...] = ()) -> Finding:
    """The finding in words."""
    saved = tuple(s for node in facts.nodes for s in node.saved)
    kind = fix_kind(facts)
    return RULE.finding(
        f"{called(facts.call)} frees a graph that a later backward call needs",
        facts.call,
        label=f"will free {counted(len(facts.nodes), 'node')} that `{facts.holder}` leads to",
        related=_related(facts, activation_bytes(saved)),
        nodes=tuple(node.name for node in facts.nodes),
        saved=tuple(s.label for s in saved),
        bytes=activation_bytes(saved),
        fix=Fix(kind, _advice(kind, facts, activation_bytes(saved)) + _cost(kind, facts), edits),
        graph_nodes=tuple(node.index for node in facts.nodes),
    )


def _related(facts: SharedGraph, size: int) -> tuple[Related, ...]:
    notes = []
    names = listed(node.name for node in facts.nodes)
    what = f"{names}, {nbytes(size)} saved" if size else names
    for position, site in enumerate(facts.made):
        notes.append(
            Related(
                "created",
                site,
                "and here" if position else f"the shared part was built here: {what}",
            )
        )
    notes.append(
        Related(
            "freed_by", facts.call.site, "this call frees it, as it runs without retain_graph=True"
        )
    )
    for holder, link in ((facts.holder, facts.link), *facts.others):
        if link is not None and link not in facts.made:
            notes.append(Related("held_by", link, f"`{holder}` holds it from here on"))
    notes.append(Related("next_read", facts.read, f"`{facts.holder}` is used again here"))
    if facts.next_call != facts.read:
        when = ", in its next run" if facts.again else ""
        notes.append(
            Related("failing_node", facts.next_call, f"the backward call here will fail{when}")
        )
    return tuple(notes)


def fix_kind(facts: SharedGraph) -> str:
    """What an expert would do; the order of the questions matters."""
    if facts.accumulated:
        return "item"
    if not facts.again and (
        is_grad(facts.call) or (facts.same_root and facts.call.inputs is not None)
    ):
        return "retain_graph"
    if facts.elements:
        return "sum_losses"
    if facts.same_root:
        return "recompute"
    if facts.again:
        if facts.carried:
            return "no_grad" if facts.averaged else "detach"
        return "recompute" if facts.trained else "detach"
    return "detach" if facts.stepped_between else "sum_losses"


def _cost(kind: str, facts: SharedGraph) -> str:
    """What the fix and ``retain_graph=True`` in its place would hold in memory, where that is known."""
    keeps = facts.call.saved_bytes
    if not keeps or kind in ("retain_graph", "item", "no_grad"):
        return ""
    retaining = f"; retain_graph=True instead would keep {nbytes(keeps)}"
    if kind == "sum_losses":
        peak = (
            f" (holds {nbytes(facts.alive)} at the peak, as now)"
            if facts.alive and not facts.elements
            else ""
        )
        return f"{peak}{retaining} from one call to the next"
    if facts.again:
        return (
            f"{retaining} more with each iteration"
            if facts.carried
            else f"{retaining} from one call to the next"
        )
    return f"{retaining} until the later call"


def _advice(kind: str, facts: SharedGraph, size: int) -> str:
    holder = facts.holder
    made = f"what {place(facts.made[0])} computes" if facts.made else f"`{holder}`"
    match kind:
        case "item":
            return f"add the value of each loss to `{holder}` with .item(), and call backward on the loss alone"
        case "retain_graph":
            keeps = f" (keeps {nbytes(size)} of what it shares)" if size else ""
            return f"pass retain_graph=True to this call{keeps}"
        case "no_grad":
            return f"compute `{holder}` under torch.no_grad(): an average of parameters is not trained through"
        case "recompute":
            if facts.same_root:
                return "run the forward pass again before each backward call, or call backward once"
            return f"compute {made} again for each backward call; or detach() `{holder}` if it should not be trained"
        case "sum_losses":
            if facts.elements:
                return f"add the losses and call backward once: sum({facts.elements}).backward()"
            first = facts.call.roots[0].name if len(facts.call.roots) == 1 else None
            known = first and facts.next_root
            return "add the losses and call backward once" + (
                f": ({first} + {facts.next_root}).backward()" if known else ""
            )
    if facts.again:
        when = "after this call" if facts.carried else "where it is stored"
        trained = "earlier iterations are" if facts.carried else "what it was computed from is"
        return f"detach() `{holder}` {when}; {trained} then not trained through it"
    shared = facts.shared or holder
    if facts.only_shared:
        return f"if the loss of {place(facts.next_call)} should not train it, use {shared}.detach() in that loss"
    return f"if this loss should not train it, use {shared}.detach() in this loss"
