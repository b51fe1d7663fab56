"""Graphs are built in forward passes that no backward call ever goes through.

## What it says

A line saved tensors for backward again and again, and each time the graph was gone before any
backward call met it. gradscope says which line, how many bytes each forward pass saved, and, where
it is known, the variable that held the graph.

## Why it happens

An evaluation or prediction without `torch.no_grad()` builds the same graph as training does.
Nothing accumulates, but every activation stays until the output goes; if the output has a name,
that is after the next forward pass, so that the peak is that of two graphs.

## Bad example

```python
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))
model.eval()
hits = 0
for batch in range(6):
    out = model(torch.randn(16, 32))
    hits += int(out.argmax(1).eq(0).sum())
```

## Good example

```python
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))
model.eval()
hits = 0
for batch in range(6):
    with torch.no_grad():
        out = model(torch.randn(16, 32))
    hits += int(out.argmax(1).eq(0).sum())
```

## What to do

Run it under `torch.no_grad()`, or `torch.inference_mode()` if nothing of it is used in training.
`model.eval()` changes what layers do, and does not do this.

## What it costs

Nothing: it saves the memory and some time. What is computed so cannot be trained through.

## Known limits

It is advice, announced once per run, from three forward passes on, when what was saved so is at
least 1 KiB and 5 % of all that was saved. It needs gradscope's hooks (not with `--no-hooks`).
"""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.model import Certainty, Finding, Fix, FixKind, Related, Severity, Site
from gradscope.rules.base import place, rule
from gradscope.units import counted, nbytes

RULE = rule(__doc__, "GS305", "forward-never-backpropagated", Severity.ADVICE, Certainty.OBSERVED)


@dataclass(frozen=True, slots=True)
class NeverBackpropagated:
    """What is known: the line ``made`` saved the most, ``times`` forward passes saved ``nbytes``
    each.

    ``holder`` is a variable that held such a graph, ``stored`` the line that assigns it, ``after``
    the number of the last backward call.
    """

    made: Site
    holder: str | None
    stored: Site | None
    times: int
    nbytes: int
    after: int = 0


def finding(facts: NeverBackpropagated) -> Finding:
    """Return the finding in words."""
    size = nbytes(facts.nbytes)
    related = [Related("created", facts.made, f"{size} saved for backward by each forward pass")]
    if facts.holder is not None:
        message = f"`{facts.holder}` holds the graph until it is assigned again"
        related.append(Related("held_by", facts.stored or facts.made, message))
    run = f"run {place(facts.stored or facts.made)} under torch.no_grad()"
    return RULE.finding(
        "graphs are built here and no backward call goes through them",
        site=facts.made,
        after=facts.after,
        label=f"{size} saved and dropped, {counted(facts.times, 'time')}",
        related=related,
        bytes=facts.nbytes,
        fix=Fix(FixKind.NO_GRAD, f"{run}; nothing then trains through it"),
    )
