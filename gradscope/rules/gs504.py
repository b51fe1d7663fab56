"""Half of the steps of an optimizer, or more, use gradients that it had used before.

## What it says

Between two steps nothing has reset `.grad`, so backward added to what the earlier step had used
already. The step then uses the sum of the gradients of the steps since. It says so where that
holds for every second step of an optimizer, or more, and of which of its parameters.

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
that the step itself has changed. The first 32 steps of an optimizer are looked at.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from gradscope.formatting import counted
from gradscope.model import Certainty, Finding, Fix, FixKind, Severity, Site
from gradscope.rules.base import rule, told

RULE = rule(__doc__, "GS504", "gradient-not-reset", Severity.WARNING, Certainty.OBSERVED)


class NotReset(NamedTuple):
    """Parameters, ``names``, whose gradients ``times`` of the first ``steps`` of an optimizer had
    used before; ``others`` are its other ones.
    """

    names: tuple[str, ...]
    others: tuple[str, ...]
    times: int
    steps: int
    optimizer: str | None
    step: Site | None
    after: int = 0


def finding(facts: NotReset) -> Finding:
    """Return the finding."""
    who = f"`{facts.optimizer}`" if facts.optimizer else "an optimizer"
    named = told(facts.names, facts.others) if facts.others else "each parameter"
    still = "still hold" if facts.others and len(facts.names) > 1 else "still holds"
    owner = facts.optimizer or "optimizer"
    fix = Fix(FixKind.OTHER, f"reset what the optimizer steps: {owner}.zero_grad() once a step")
    found = RULE.finding(
        f"in {facts.times:,} of {counted(facts.steps, 'step')}, {who} used gradients that it had "
        "used before",
        site=facts.step,
        after=facts.after,
        label=f"{named} {still} the gradients of earlier steps",
        fixes=(fix,),
    )
    return replace(found, parameters=facts.names, step=facts.step)
