"""Parameters are trained that the program means to freeze.

## What it says

The program sets `requires_grad` to False where autograd does not read it: on a module, which has no
such property, or on a parameter under another name (`require_grad`). Python makes a new attribute
of it, nothing is frozen, and an optimizer trains these parameters.

## Why it happens

`requires_grad` is a property of a tensor. A module has the method `requires_grad_()`, which sets it
for all its parameters; `module.requires_grad = False` looks alike, and raises nothing.

## Bad example

```python
import torch

body, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
body.requires_grad = False
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
for _ in range(4):
    loss = head(body(torch.randn(16, 4))).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
```

## Good example

```python
import torch

body, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
body.requires_grad_(False)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
for _ in range(4):
    loss = head(body(torch.randn(16, 4))).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
```

## What to do

- Write `module.requires_grad_(False)`, or `parameter.requires_grad = False` for each parameter.
- If these parameters are to be trained, take the line out: it does nothing.

## What it costs

A module that is frozen keeps no gradients and no optimizer state, and where nothing before it is
trained, its backward pass and its saved tensors are spared.

## Known limits

It is said where a step of an optimizer held the parameters, and all of them required grad then. A
class of the program's whose own code names the attribute may use it, and is left alone. The line is
named if the files of the program's functions that run at the step have just one that may have set
it. The opposite, `module.requires_grad = True` of what is frozen, is GS502.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from gradscope.formatting import counted
from gradscope.model import Certainty, Finding, Fix, FixKind, Related, Severity, Site
from gradscope.rules.base import Rule, rule, told

RULE = rule(__doc__, "GS506", "frozen-in-name-only", Severity.WARNING, Certainty.OBSERVED)


class NotRead(NamedTuple):
    """An ``attribute`` that a program has set to ``value`` where autograd does not read it: on the
    module ``module``, or if that is empty on the parameters themselves. The parameters ``names``
    are the other way. ``site`` is the line, if it is known.
    """

    attribute: str
    value: bool
    module: str
    names: tuple[str, ...]
    site: Site | None = None

    @property
    def label(self) -> str:
        """What the line does, and does not."""
        whose = f"of the module `{self.module}`" if self.module else f"`{self.attribute}`"
        return f"sets an attribute {whose}, which {'un' * self.value}freezes nothing"

    @property
    def fix(self) -> Fix:
        """What was meant."""
        plain, method = f"requires_grad = {self.value}", f"requires_grad_({self.value})"
        return Fix(FixKind.OTHER, f"write {f'{self.module}.{method}' if self.module else plain}")


def finding(
    facts: NotRead, others: Collection[str], step: Site | None, after: int, of: Rule = RULE
) -> Finding:
    """Return the finding of parameters that are trained at ``step``, or frozen there; ``others``
    are all others, ``of`` is the rule.
    """
    parameters, named = counted(len(facts.names), "parameter"), told(facts.names, others)
    message, note = f"freezing {parameters} had no effect: training goes on", f"{named} trains here"
    if facts.value:
        message, note = (
            f"no gradient reaches {parameters} meant to be trained",
            f"{named} is frozen",
        )
    return of.finding(
        message,
        site=facts.site or step,
        after=after,
        label=facts.label,
        related=[Related("mode", None, note) if facts.value else Related("made", step, note)],
        fixes=(facts.fix,),
        parameters=facts.names,
        step=step,
    )
