"""The forward pass continues from a graph whose saved tensors are gone, and backward will follow.

## What it says

A line is about to compute something new from a variable whose graph an earlier backward call has
freed. Computing is fine: the forward pass does not need what was freed. But the code that follows
calls backward on the result, and that call runs through the freed part. It will fail with
`Trying to backward through the graph a second time`. The finding names the line that built the
freed part, the call that freed it, and the call that will fail.

## Why it happens

A graph belongs to one backward call, unless that keeps it. What is built on a freed graph is joined
to it all the same. GS102 is announced at the call that frees, where the code shows what will
happen. Here it did not: a branch on something that was not known yet decided what the variable
would hold.

## Bad example

```python
import torch

net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
for level in torch.tensor([0.9, 0.2, 0.1]):
    if level.item() > 0.5:
        features = net(torch.randn(4))
    loss = features.sum() * level
    loss.backward()
```

## Good example

```python
import torch

net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
for level in torch.tensor([0.9, 0.2, 0.1]):
    if level.item() > 0.5:
        x = torch.randn(4)
    loss = net(x).sum() * level
    loss.backward()
```

## What to do

- If all calls are to go through one forward pass: pass `retain_graph=True` to every call but the
  last, or add the losses and call backward once.
- A state that is carried from one iteration into the next: `detach()` it once the backward call is
  over.
- Something made once before the loop: make it inside the loop, or `detach()` it if it should not be
  trained.

## What it costs

`retain_graph=True` keeps all that the call would have freed until the graph goes. Adding losses and
`detach()` are free; nothing is trained through what was detached. Computing again costs that part
of the forward pass.

## Known limits

It is announced only while graphs of a new shape are built, since only then is the code watched line
by line (never with `--no-hooks`, or where a debugger traces it), and only where the code shows that
backward is called on the result. A value that is only looked at (`torch.sqrt(loss).item()`) is no
finding. GS101 is announced in any case, when the call is made.
"""

from __future__ import annotations

from typing import NamedTuple

from gradscope.formatting import listed
from gradscope.model import BackwardCall, Certainty, Finding, Fix, Related, Severity, Site
from gradscope.rules.base import Situation, built, called, is_grad, met, rule

RULE = rule(__doc__, "GS103", "forward-on-freed-graph", Severity.WARNING, Certainty.PREDICTED)


class ForwardOnFreed(NamedTuple):
    """What is known when the line of ``read`` is about to build on ``holder``, whose graph
    ``freed_by`` has freed.

    ``nodes`` have lost what they saved, ``made`` are the lines that built them; ``next_call`` is
    the backward call that comes of it, and ``after`` the number of the last one. What the
    situation is: ``again``, ``freed_by`` and ``next_call`` are one line of code; ``carried``, the
    holder holds something else by then.
    """

    read: Site
    holder: str
    nodes: tuple[str, ...]
    made: tuple[Site, ...]
    freed_by: BackwardCall
    next_call: Site
    after: int
    again: bool = False
    carried: bool = False


def finding(facts: ForwardOnFreed) -> Finding:
    """Return the finding, with what can be done about it, in words."""
    names = listed(facts.nodes)
    freed = f"freed by {called(facts.freed_by)}, which did not keep it"
    return RULE.finding(
        "the forward pass continues from a freed graph",
        site=facts.read,
        after=facts.after,
        label=f"builds on the graph of `{facts.holder}`, where {names} is already freed",
        related=(
            *built(facts.made, f"the freed part was built here: {names}"),
            Related("freed_by", facts.freed_by.site, freed),
            Related("next_read", facts.next_call, "the backward call here will fail"),
        ),
        nodes=facts.nodes,
        fixes=(_fix(facts),),
    )


def _fix(facts: ForwardOnFreed) -> Fix:
    """Return what can be done in the first situation whose facts hold."""
    by = facts.freed_by
    situations = {
        Situation.ONCE_MORE: is_grad(by) and not facts.again,
        Situation.CARRIED: facts.carried,
        Situation.MADE_ONCE: facts.again,
        Situation.SIBLINGS: True,
    }
    return met(situations).fix(
        facts.holder, facts.made, frees=by.site, runs=facts.next_call, is_driven=by.driven
    )
