"""A backward call keeps its graph with retain_graph=True, and nothing runs the graph again.

## What it says

The calls at this line keep what their graphs have saved, and all of it was dropped later without
another backward call through it. gradscope says how many bytes stay for nothing after each call.
The same is said of `autograd.grad(create_graph=True)` where no call ever ran through the graphs
that these calls have built.

## Why it happens

`retain_graph=True` is needed for a second call through the same graph. It is often put there
against an error whose cause went away since, or on the last of several calls, where only the
earlier ones need it. The saved tensors then live until the loss is assigned again, which is after
the next forward pass: at the peak there are two graphs instead of one.

## Bad example

```python
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
for step in range(6):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward(retain_graph=True)
```

## Good example

```python
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
for step in range(6):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
```

## What to do

Leave `retain_graph=True` away. If an error appears, its cause is elsewhere: see GS101.

`gradscope fix` shows the fix as an edit of your lines where a few of them do it, and tries it out.

## What it costs

Nothing: the gradients are the same, and the saved tensors go during the call.

## Known limits

It is advice, said when the watch ends, where there were three such calls. Nothing is said of
`backward(create_graph=True)`, which is GS304, nor where the line of the call does not write
`retain_graph` or `create_graph`: a library may pass it on its own account. Less than 1 MB that is
less than 1 % of what graphs held at the peak is counted under "not told".
"""

from __future__ import annotations

from gradscope.formatting import counted, nbytes
from gradscope.model import BackwardCall, Certainty, Finding, Fix, FixKind, Related, Severity
from gradscope.rules.base import called, rule

RULE = rule(__doc__, "GS303", "retain-graph-not-needed", Severity.ADVICE, Certainty.OBSERVED)


def finding(call: BackwardCall, times: int, size: int) -> Finding:
    """Return the finding for so many calls at one line, of which ``call`` is the last, and which
    kept ``size`` bytes at the most. What was kept so many times is gone; 0 if it still is there.
    """
    after = f"after each call, dropped unused {counted(times, 'time')}"
    option = "create_graph" if call.create_graph else "retain_graph"
    kept = "built" if call.create_graph else "kept"
    note = f"{kept} by {option}=True in {called(call)} and those before it"
    kind, leave = FixKind.REMOVE_RETAIN, "remove retain_graph=True"
    same = "the gradients stay the same, and the call frees this memory"
    if call.create_graph:
        kind, leave = FixKind.OTHER, "remove create_graph=True"
        same = "the gradients stay the same; if the graph itself is run again, it takes"
        same += " retain_graph=True"
    return RULE.finding(
        f"{option}=True is not needed here",
        call,
        label=f"{nbytes(size)} {kept} {after if times else 'and not run again'}",
        related=(Related("retained_by", call.site, note),),
        bytes=size,
        fixes=(Fix(kind, f"{leave}: {same}"),),
    )
