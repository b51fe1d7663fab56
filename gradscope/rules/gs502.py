"""An optimizer steps parameters that no gradient has reached in any step.

## What it says

An optimizer has stepped at least twice, and some of its parameters that require grad had no
gradient (`.grad` is None) at every step: the step skips them, and they keep the values that they
began with. The loss may fall even so, as the others are trained.

## Why it happens

Either nothing was computed from these parameters (a layer that `forward` does not use), or what was
computed from them does not lead to a loss: the way was cut by `.detach()`, `torch.no_grad()`,
`.item()`, `torch.tensor(…)` of tensors, an integer result (`argmax`), or an `autograd.grad` without
`create_graph=True` whose result is part of the loss. Or they are frozen though the program means to
train them: `module.requires_grad = True` only makes an attribute, as a module has no such property.

## Bad example

```python
import torch

encoder, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
for _ in range(4):
    features = encoder(torch.randn(16, 4)).detach()
    loss = head(features).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
```

## Good example

```python
import torch

encoder, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
for _ in range(4):
    features = encoder(torch.randn(16, 4))
    loss = head(features).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
```

## What to do

- Find out where: `gradscope why SCRIPT NAME`, with the name of a parameter or a module.
- If the way was cut by accident, take the cut out: use the tensor itself, `torch.stack` for
  `torch.tensor`, `.rsample()` for `.sample()`, `create_graph=True`.
- If the layer is not used, use it or remove it.
- For a module write `module.requires_grad_(True)`.
- If it is not to be trained, `requires_grad_(False)` says so, and this finding is gone.

## What it costs

Parameters that get no gradient cost what they take in memory; the optimizer keeps no state for
them. Training them costs their part of the backward pass.

## Known limits

The run itself shows only that no gradient arrived, so this is advice there; where the program sets
`requires_grad` of the loss itself, or a rehearsal has found the cut, it is a warning. It is said
when the watch ends, of optimizers with two steps or more. A parameter that had a gradient at one
step is never named: experts that are chosen rarely, heads that alternate. Those of a `ModuleList`,
`ModuleDict`, `ParameterList` or `ParameterDict` of which others were reached are named only after
20 steps, likewise those of a `DistributedDataParallel(…, find_unused_parameters=True)`. Nothing is
said where `requires_grad` is off, unless it is on at their module, of a parameter that is empty in
this process (FSDP), nor with `--budget` once it was spent.
"""

from __future__ import annotations

from typing import NamedTuple

from gradscope.formatting import counted, short_path
from gradscope.model import Certainty, Finding, Fix, FixKind, Severity, Site
from gradscope.rules.base import rule, share, short_names, told

RULE = rule(__doc__, "GS502", "parameter-not-reached", Severity.WARNING, Certainty.OBSERVED)


class NotReached(NamedTuple):
    """Parameters, ``names``, of an optimizer that had no gradient in all its ``steps``; ``others``
    are those that had one.

    ``optimizer`` is its name in the program, ``step`` the place where it steps, ``after`` the
    number of the last backward call, ``script`` the program if it can be rerun. ``silenced`` is
    the line that sets ``requires_grad`` of a loss with nothing behind it, ``loss``.
    """

    names: tuple[str, ...]
    others: tuple[str, ...]
    steps: int
    optimizer: str | None
    step: Site | None
    after: int = 0
    script: str = ""
    silenced: Site | None = None
    loss: str = "loss"


def finding(facts: NotReached) -> Finding:
    """Return the finding, as far as the steps show it."""
    of = f"`{facts.optimizer}`" if facts.optimizer else "an optimizer"
    part = share(len(facts.names), len(facts.names) + len(facts.others))
    is_all = "all of them" if not facts.others else told(facts.names, facts.others)
    label = f"has skipped {is_all} each time"
    if facts.silenced is not None:
        label = f"only silences the error: nothing behind `{facts.loss}` is trained"
    return RULE.finding(
        f"in {counted(facts.steps, 'step')}, no gradient reached {part} of {of}",
        site=facts.silenced or facts.step,
        after=facts.after,
        label=label,
        fixes=(Fix(FixKind.OTHER, _where(facts)),),
        severity=Severity.ADVICE if facts.silenced is None else None,
        parameters=facts.names,
        step=facts.step,
    )


def _where(facts: NotReached) -> str:
    if not facts.script:
        return "print requires_grad of what is computed from them: it says False behind a cut"
    short = short_names(facts.names, facts.others)[0].removesuffix(".*")
    name = facts.names[0] if "*" in short else short
    return f"to see why: gradscope why {short_path(facts.script)} {name}"
