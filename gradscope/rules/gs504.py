"""Steps use gradients that were used before, or that another optimizer's loss has left.

## What it says

Between two steps nothing has reset `.grad`, so backward added to what the earlier step had used
already. The step then uses the sum of the gradients of the steps since. It says so where that
holds for every second step of an optimizer, or more, and of which of its parameters.

Two more are said at the backward call that adds: where the loss of another optimizer, which has
stepped meanwhile, has left gradients there, as that of a generator does in its discriminator; and
where the closure that `LBFGS.step(closure)` runs several times adds to what its run before left.

## Why it happens

Backward calls add to `.grad`; that is what makes accumulation over several batches possible. So
what was used has to be reset: by `optimizer.zero_grad()`, or that of each module. It is missing, or
does not have all parameters: `model.zero_grad()` leaves those of a loss module alone.

## Bad example

```python
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(4):
    loss = model(torch.randn(16, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
```

## Good example

```python
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(4):
    loss = model(torch.randn(16, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
```

## What to do

`optimizer.zero_grad()` once before or after each step; for accumulation, once for each step and not
for each batch.

## What it costs

Nothing: `zero_grad()` sets `.grad` to None, which frees its memory until the next backward call.

## Known limits

A gradient counts as used again if it is the same tensor, if its version has counted nothing but the
backward calls since that step, and if, on the CPU, not all values that are looked at are zero (a
reset through `.data` counts no version; elsewhere nothing is said of a program that writes
`.grad.data`). So gradients that are new tensors in each step are never named: those of a
`create_graph=True`, sparse ones, those that a clipping in place has changed between two calls or
that the step itself has changed. The first 32 steps of an optimizer are looked at. What another
loss has left is said if it was there at two steps, and if the call that adds to it reaches nothing
but what this optimizer holds; of a closure only on the CPU, and if it is run from two lines of
`step()`.
"""

from __future__ import annotations

from typing import NamedTuple

from gradscope.formatting import counted
from gradscope.model import Certainty, Finding, Fix, FixKind, Related, Severity, Site
from gradscope.rules.base import rule, told

RULE = rule(__doc__, "GS504", "gradient-not-reset", Severity.WARNING, Certainty.OBSERVED)


class NotReset(NamedTuple):
    """Parameters, ``names``, whose gradients ``times`` of the first ``steps`` of an optimizer had
    used before; ``others`` are its other ones. Or the call at ``by`` has added to what the one at
    ``left`` has left there: that of another optimizer's loss, or as the closure was run before.
    """

    names: tuple[str, ...]
    others: tuple[str, ...]
    times: int
    steps: int
    optimizer: str | None
    step: Site | None
    after: int = 0
    by: Site | None = None
    left: Site | None = None


def finding(facts: NotReset) -> Finding:
    """Return the finding."""
    who = f"`{facts.optimizer}`" if facts.optimizer else "an optimizer"
    owner = facts.optimizer or "optimizer"
    named = told(facts.names, facts.others) if facts.others else "each parameter"
    related = []
    if facts.by is None:
        of = f"{facts.times:,} of {counted(facts.steps, 'step')}"
        message = f"in {of}, {who} used gradients that it had used before"
        still = "still hold" if facts.others and len(facts.names) > 1 else "still holds"
        label = f"{named} {still} the gradients of earlier steps"
        reset = f"reset what the optimizer steps: {owner}.zero_grad() once a step"
    else:
        message = f"the closure of {who} adds to the gradients of its run before"
        if facts.by != facts.left:
            message = f"{who} uses gradients together with what another optimizer's loss has left"
            left = "leaves these gradients, which nothing has reset"
            related = [Related("left_by", facts.left, left)]
        label = f"adds to the gradients of {named}, which were not reset"
        reset = f"reset them before: {owner}.zero_grad()"
    return RULE.finding(
        message,
        site=facts.by or facts.step,
        after=facts.after,
        label=label,
        related=related,
        fixes=(Fix(FixKind.OTHER, reset),),
        parameters=facts.names,
        step=facts.step,
    )
