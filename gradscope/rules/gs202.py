"""A tensor that a graph still to be run backward has saved was changed in place.

## What it says

An operation in place (`x += y`, `x[0] = y`, `x.relu_()`) or an optimizer's step has just changed a
tensor that a graph saved in its forward pass. A variable of the program holds that graph, and the
code that follows calls backward on it. That call will fail with `one of the variables needed for
gradient computation has been modified by an inplace operation`. The finding names the line that
changed the tensor, the tensor, the line that saved it, and the backward call that will fail.

A write through `.data` (`p.data -= 0.1`, `p.data.clamp_(-c, c)`, `p.data[0] = y`, `p.data = y`)
does the same and is worse: torch does not see it, so nothing fails, and the backward call computes
a wrong gradient. The finding then says so.

## Why it happens

A node keeps the very tensors that its derivative needs: a matrix product its weight, `sigmoid` its
output, a product both factors. A buffer, a queue or an activation that is written to between the
forward pass and the backward call is then no longer what it was. So are the parameters after
`optimizer.step()`: all backward calls that go through a forward pass must come before the step that
changes what it saved. Two losses computed up front, with a step between their backward calls, break
this; so does a graph kept with `retain_graph=True` over a step.

torch notices by a counter of versions that each operation in place moves. `p.data` is a new tensor
with the same memory and a separate counter: what is written through it reaches the saved tensor,
and the saved tensor's counter stays.

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
- A buffer, queue or table: write to it after the backward call, or let the forward pass read a
  `clone()` of it.
- A step: compute the loss after the step, with the new parameters, or call backward on it before
  the step.
- A write through `.data`: make it after the backward call, and under `torch.no_grad()` without
  `.data`: `with torch.no_grad(): p -= 0.1 * p.grad`. Then torch fails where it would have computed
  a wrong gradient.
- If the graph was kept with `retain_graph=True` to get around GS101, undo that and follow GS101's
  advice.

## What it costs

An out-of-place operation or a `clone()` costs one more tensor of that size until the graph goes.
Calling backward before the step costs nothing, but the second loss then uses the old parameters.
Computing it after the step costs one more forward pass where a part of it was shared.

## Known limits

It is announced where the code shows that backward is called on what is held; else GS201 follows
when the call is made. It is a warning only where every way on leads to that call: where a condition
is not known yet, it is advice that names the condition. Steps of `torch.optim` optimizers are
always seen. Other operations are seen while graphs of a new shape are built, when the code is
watched line by line: never with `--no-hooks`, where a debugger traces the program, or inside a
compiled region. A write through `.data` is seen in the same places, by comparing what the saved
tensors hold before and after a line that uses some tensor's `.data`: only on the CPU, and of
tensors of more than a megabyte samples are compared, so a few elements written there may go unseen.
An attribute that was given a `.data` earlier, NumPy, and optimizers of other libraries that write
through `.data` in their own code go unseen too. It is not announced for ReLU and others that
need no more than a sign or a size of what they saved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from gradscope.formatting import counted, lines_told, listed
from gradscope.model import Certainty, Finding, Fix, Related, Severity, Site
from gradscope.rules.base import Situation, met, rule
from gradscope.rules.gs102 import unless_certain

RULE = rule(__doc__, "GS202", "saved-tensor-will-be-stale", Severity.WARNING, Certainty.PREDICTED)

_TOLERANT = {
    "Backward0": "Relu LeakyRelu Threshold Hardtanh Abs ClampMin ClampMax MaxPool2DWithIndices "
    "MaxPool3DWithIndices AdaptiveMaxPool2D",
    "Backward1": "LeakyRelu Clamp",
}
TOLERANT = frozenset(name + end for end, names in _TOLERANT.items() for name in names.split())
"""Nodes whose derivative asks what they saved for a sign, a side or a size: a change of values
seldom makes it wrong.
"""


class By(Enum):
    """What changed the tensor; a write through ``.data`` is the one that torch does not see."""

    STEP = "step"
    OPERATION = "operation"
    DATA = "data"


_WILL = {"need": "will need", "will": "will"}
_MAY = {"need": "may need", "will": "would"}
_MESSAGES = {
    By.STEP: "the optimizer step modified saved tensors that a later backward call {need}",
    By.OPERATION: "an in-place operation modified saved tensors that a later backward call {need}",
    By.DATA: "a write through .data modified a saved tensor: "
    "backward {will} silently compute a wrong gradient",
}


class StaleSoon(NamedTuple):
    """What is known when ``changed_at`` has changed ``tensors`` that the graph of ``holder`` saved.

    ``nodes`` saved them, ``made`` are the lines where they did; ``read`` is where the holder is
    used next, ``next_call`` the backward call that comes of it, ``after`` the number of the last
    backward call. ``conditions`` are as in ``SharedGraph``.

    What the situation is: ``carried``, the holder goes from one iteration into the next; ``again``,
    it was made before this iteration. Of a change by an operation, ``computed``: an operation of
    the graph made what was changed; ``trained``: it is a parameter.
    """

    changed_at: Site
    holder: str
    tensors: tuple[str, ...]
    nodes: tuple[str, ...]
    made: tuple[Site, ...]
    read: Site
    next_call: Site
    after: int
    by: By = By.STEP
    conditions: tuple[str, ...] | None = None
    carried: bool = False
    again: bool = False
    computed: bool = False
    trained: bool = False


def finding(facts: StaleSoon) -> Finding:
    """Return the finding, with what can be done about it, in words."""
    names = listed(name if " " in name else f"`{name}`" for name in facts.tensors)
    label = f"{names} {'were' if len(facts.tensors) > 1 else 'was'} saved by {_operations(facts)}"
    label += " and changed in place here"
    if facts.by is By.STEP:
        modified = counted(len(facts.tensors), "parameter")
        label = f"modified {modified} that the graph of `{facts.holder}` needs"
    return RULE.finding(
        _MESSAGES[facts.by].format_map(_MAY if facts.conditions is not None else _WILL),
        site=facts.changed_at,
        after=facts.after,
        label=label,
        related=_related(facts, names),
        nodes=facts.nodes,
        saved=facts.tensors,
        fixes=(_fix(facts, names),),
        severity=None if facts.conditions is None else Severity.ADVICE,
        silent=facts.by is By.DATA,
    )


def _operations(facts: StaleSoon) -> str:
    """Return what the program ran that has saved the tensors, and where: ``sigmoid (line 19)``."""
    names = (re.sub(r"Backward\d+$", "", node) for node in facts.nodes)
    written = listed(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() for name in names)
    lines = {site.line for site in facts.made if site.file == facts.changed_at.file}
    return f"{written} ({lines_told(lines)})" if lines else written


def _related(facts: StaleSoon, names: str) -> Iterator[Related]:
    is_hidden = facts.by is By.DATA
    for site in facts.made:
        yield Related("created", site, f"{listed(facts.nodes)} saved {names} here")
    what = "this step modified" if facts.by is By.STEP else "this modified"
    unseen = " through `.data`, which torch does not see: no version counter moved"
    yield Related("modified_by", facts.changed_at, f"{what} {names}{unseen if is_hidden else ''}")
    if_so = unless_certain(facts.conditions)
    yield Related("next_read", facts.read, f"{if_so}`{facts.holder}` is used here")
    if facts.next_call != facts.read:
        fate = "compute a wrong gradient" if is_hidden else "fail"
        what = f"{if_so}the backward call here will {fate}"
        yield Related("failing_node", facts.next_call, what)


def _fix(facts: StaleSoon, tensors: str) -> Fix:
    """Return what can be done in the first situation whose facts hold."""
    is_step = facts.by is By.STEP
    situations = {
        Situation.CARRIED: facts.carried and (is_step or facts.trained),
        Situation.MADE_ONCE: is_step and facts.again,
        Situation.EARLY_STEP: is_step,
        Situation.UNSEEN: facts.trained and facts.by is By.DATA,
        Situation.PARAMETER: facts.trained,
        Situation.OVERWRITTEN: facts.computed,
        Situation.TABLE: True,
    }
    return met(situations).fix(
        facts.holder,
        facts.made,
        frees=facts.next_call,
        runs=facts.next_call,
        write=facts.changed_at,
        tensors=tensors,
    )
