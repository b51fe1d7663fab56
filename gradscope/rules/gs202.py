"""A tensor that a graph still to be run backward has saved was changed in place.

## What it says

An operation in place (`x += y`, `x[0] = y`, `x.relu_()`) or an optimizer's step has just changed a tensor that a graph
saved in its forward pass. A variable of the program holds that graph, and the code that follows calls backward on it.
That call will fail with `one of the variables needed for gradient computation has been modified by an inplace
operation`. The finding names the line that changed the tensor, the tensor, the line that saved it, and the backward
call that will fail.

## Why it happens

A node keeps the very tensors that its derivative needs: a matrix product its weight, `sigmoid` its output, a product
both factors. A buffer, a queue or an activation that is written to between the forward pass and the backward call is
then no longer what it was. So are the parameters after `optimizer.step()`: all backward calls that go through a
forward pass must come before the step that changes what it saved. Two losses computed up front, with a step between
their backward calls, break this; so does a graph kept with `retain_graph=True` over a step.

## Bad example

```python
import torch

critic, actor = torch.nn.Linear(4, 1), torch.nn.Linear(3, 4)
optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)

critic_loss = critic(torch.randn(5, 4)).pow(2).mean()
actor_loss = -critic(torch.tanh(actor(torch.randn(5, 3)))).mean()
critic_loss.backward()
optimizer.step()
actor_loss.backward()
```

## Good example

```python
import torch

critic, actor = torch.nn.Linear(4, 1), torch.nn.Linear(3, 4)
optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)

critic_loss = critic(torch.randn(5, 4)).pow(2).mean()
critic_loss.backward()
optimizer.step()
actor_loss = -critic(torch.tanh(actor(torch.randn(5, 3)))).mean()
actor_loss.backward()
```

## What to do

- An operation on an activation: write it out of place, `x = x + y`, `x = x.masked_fill(mask, 0)`.
- A buffer, queue or table: write to it after the backward call, or let the forward pass read a `clone()` of it.
- A step: compute the loss after the step, with the new parameters, or call backward on it before the step.
- If the graph was kept with `retain_graph=True` to get around GS101, undo that and follow GS101's advice.

## What it costs

An out-of-place operation or a `clone()` costs one more tensor of that size until the graph goes. Calling backward before
the step costs nothing, but the second loss then uses the old parameters. Computing it after the step costs one more
forward pass where a part of it was shared.

## Known limits

It is said where the code shows that backward is called on what is held; else GS201 says it when the call is made. Steps
of `torch.optim` optimizers are always seen. Other operations are seen while graphs of a new shape are built, when the
code is watched line by line: never with `--no-hooks`, where a debugger traces the program, or inside a compiled region.
A change through `.data` moves no version counter: torch does not see it, and neither does gradscope.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradscope.model import Certainty, Finding, Fix, Related, Severity, Site
from gradscope.rules.base import place, rule
from gradscope.units import counted, listed

RULE = rule(__doc__, "GS202", "saved-tensor-will-be-stale", Severity.WARNING, Certainty.PREDICTED)


@dataclass(frozen=True, slots=True)
class StaleSoon:
    """What is known when ``changed_at`` has changed ``tensors`` that the graph of ``holder`` saved: a step, or an operation in place.

    ``nodes`` saved them, ``made`` are the lines where they did; ``read`` is where the holder is used next, ``next_call`` the backward
    call that comes of it, ``after`` the number of the last backward call.
    """

    changed_at: Site
    holder: str
    tensors: tuple[str, ...]
    nodes: tuple[str, ...]
    made: tuple[Site, ...]
    read: Site
    next_call: Site
    after: int
    by_step: bool = True


def finding(facts: StaleSoon, fix: Fix | None = None) -> Finding:
    """The finding in words; ``fix`` is that of an operation in place."""
    names = listed(name if " " in name else f"`{name}`" for name in facts.tensors)
    notes = [Related("created", site, f"{listed(facts.nodes)} saved {names} here") for site in facts.made]
    what = "this step modified" if facts.by_step else "this modified"
    notes.append(Related("modified_by", facts.changed_at, f"{what} {names}"))
    notes.append(Related("next_read", facts.read, f"`{facts.holder}` is used here"))
    if facts.next_call != facts.read:
        notes.append(Related("failing_node", facts.next_call, "the backward call here will fail"))
    if facts.by_step:
        message = "the optimizer changed what a graph still to be run backward has saved"
        label = f"modified {counted(len(facts.tensors), 'parameter')} that the graph of `{facts.holder}` needs"
    else:
        message = "an operation in place changed what a graph still to be run backward has saved"
        label = f"modified {names} that the graph of `{facts.holder}` needs"
    found = RULE.finding(
        message,
        None,
        label=label,
        related=tuple(notes),
        nodes=facts.nodes,
        saved=facts.tensors,
        fix=fix or _reorder(facts),
    )
    return replace(found, site=facts.changed_at, backward_call=facts.after)


def _reorder(facts: StaleSoon) -> Fix:
    step = place(facts.changed_at)
    message = f"compute `{facts.holder}` after this step, or move the step at {step} after the backward call at {{}}"
    return Fix("reorder", message.format(place(facts.next_call)))
