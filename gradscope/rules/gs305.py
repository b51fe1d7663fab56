"""Graphs are built in forward passes that no backward call ever goes through.

## What it says

A line saved tensors for backward again and again, and each time the graph was gone before any
backward call met it. gradscope names the outermost line of yours of which that is true: where
training and evaluation go through the same forward pass, it is the evaluation's call, and never a
line that is also trained through, nor one in a function that others train through. It says how many
bytes each forward pass saved and, where they are known, where the graph was built and the variable
that held it.

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

It is advice, announced once and at the end, when it is known that no backward call came: from three
forward passes on, when what was saved so is at least 1 KiB and 5 % of all that was saved. Of the
lines on the way it takes one in a loop, if there is one; it does not look past a generator, which
may run anywhere. It names no line that may yet train: one whose way leads through a file in which
a backward call is written that was never made, or that calls a function as a line that trains does.
Where one line does both, in turn, it says nothing: run that line under
`torch.set_grad_enabled(training)`. It needs gradscope's hooks (not with `--no-hooks`).
"""

from __future__ import annotations

from gradscope.formatting import counted, nbytes
from gradscope.model import Certainty, Finding, Fix, FixKind, Related, Severity, Site
from gradscope.rules.base import place, rule

RULE = rule(__doc__, "GS305", "forward-never-backpropagated", Severity.ADVICE, Certainty.OBSERVED)


def finding(
    made: Site, built: Site | None, times: int, size: int, exactly: bool = True, after: int = 0
) -> Finding:
    """Return the finding for forward passes by way of the line ``made``, which saved ``size`` bytes
    each.

    ``built`` is where their graphs are built, None if that line is also trained through; ``after``
    is the number of the last backward call. There may have been more passes where that is not
    ``exactly`` known; 0 if what they saved still is there.
    """
    message = f"{nbytes(size)} saved for backward by each forward pass"
    run = f"run {place(made)} under torch.no_grad()"
    dropped = f" and dropped, {'' if exactly else 'at least '}{counted(times, 'time')}"
    return RULE.finding(
        "graphs are built here and no backward call goes through them",
        site=made,
        after=after,
        label=f"{nbytes(size)} saved{dropped if times else ''}; never run backward",
        related=() if built is None else (Related("created", built, message),),
        bytes=size,
        fixes=(Fix(FixKind.NO_GRAD, f"{run}; no gradient then flows through it"),),
    )
