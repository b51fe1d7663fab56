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

from collections.abc import Iterator
from typing import NamedTuple

from gradscope.formatting import counted, listed, nbytes
from gradscope.model.calls import BackwardCall
from gradscope.model.finding import Certainty, Finding, Fix, Related, Severity
from gradscope.model.graph import Node, Site, activation_bytes
from gradscope.rules.base import Situation, built, called, head, is_grad, met, rule

RULE = rule(
    __doc__, "GS102", "shared-graph-about-to-be-freed", Severity.WARNING, Certainty.PREDICTED
)


class SharedGraph(NamedTuple):
    """What is known when ``call`` is about to free ``nodes``, which ``holder`` leads to.

    ``read`` is where the holder is read next and ``next_call`` the backward call that comes of it.
    ``link`` is where the holder was assigned. ``others`` are further holders with the same fate.

    What the situation is: ``same_root``, both calls start at the same node; ``again``, they are
    one line of code; ``carried``, the holder holds something else by then; ``elements``, the list
    over which the loop of the call runs; ``accumulated``, the holder is a running total that the
    call starts from; ``averaged``, it is a weighted sum of parameters, which the call leads to in
    another way too; ``parted``, an optimizer steps or resets gradients before ``next_call``;
    ``computed``, the call computes whether to keep its graph.
    ``conditions`` must hold for the later call to come, in words; None where it comes in any case.
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
    parted: bool = False
    computed: bool = False
    conditions: tuple[str, ...] | None = None


def finding(facts: SharedGraph) -> Finding:
    """Return the finding, with what can be done about it, in words."""
    saved = tuple(s for node in facts.nodes for s in node.saved)
    size = activation_bytes(saved)
    needs = "needs" if facts.conditions is None else "would need"
    return RULE.finding(
        f"{called(facts.call)} frees a graph that a later backward call {needs}",
        facts.call,
        site=head(facts.call, facts.link, *facts.made),
        label=_label(facts),
        related=_related(facts, size),
        nodes=facts.nodes,
        saved=saved,
        fixes=(_fix(facts),),
        severity=None if facts.conditions is None else Severity.ADVICE,
    )


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
    frees = f"{which} frees it because it runs without retain_graph=True"
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
    return f"if {' and '.join(conditions)}, " if conditions else "if the program gets here, "


def _fix(facts: SharedGraph) -> Fix:
    """Return what can be done in the first situation whose facts hold."""
    call, again, carried = facts.call, facts.again, facts.carried
    is_part = facts.same_root and call.inputs is not None
    situations = {
        Situation.NESTED: call.parent is not None and not is_grad(call),
        Situation.TOTAL: facts.accumulated,
        Situation.PARTS: again and is_grad(call) and not (carried or facts.parted),
        Situation.SOMETIMES_KEPT: facts.computed and not (again and carried),
        Situation.ONCE_MORE: not again and (is_grad(call) or is_part),
        Situation.ELEMENTS: bool(facts.elements),
        Situation.TWICE: facts.same_root,
        Situation.AVERAGED: again and carried and facts.averaged,
        Situation.CARRIED: again and carried,
        Situation.CACHED: again and facts.holder.startswith("<cached "),
        Situation.MADE_ONCE: again,
        Situation.PARTED: facts.parted,
        Situation.SIBLINGS: True,
    }
    return met(situations).fix(
        facts.elements or facts.holder,
        facts.made,
        frees=call.site,
        runs=facts.next_call,
        is_driven=call.driven,
    )
