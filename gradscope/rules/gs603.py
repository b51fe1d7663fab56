"""An optimizer steps before DistributedDataParallel has averaged the gradients.

## What it says

Backward calls have given gradients to some parameters of a `DistributedDataParallel` and none to
others, and an optimizer steps. The reducer waits for the others still: the gradients that are there
are those of this rank alone, or not all of them averaged. The next `forward()` raises `Expected to
have finished reduction in the prior iteration before starting a new one`. gradscope says at the
step which parameters got no gradient, and which calls gave one to the rest.

## Why it happens

- `forward()` does not use a parameter: a layer that is left over, a branch that depends on the data
  or differs between ranks.
- An output of `forward()` is not part of the loss, or what was computed from it was cut off
  (`detach()`, `item()`).
- A parameter was frozen after the module was wrapped, so the reducer still waits for it.
- With `static_graph=True`, an iteration reaches fewer parameters than the first one.

## Bad example

```python
import torch
from torch.distributed import HashStore, init_process_group

init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
net = torch.nn.ModuleDict({"age": torch.nn.Linear(4, 1), "kind": torch.nn.Linear(4, 3)})
net.forward = lambda x: (net["age"](x), net["kind"](x))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    age, kind = model(torch.randn(8, 4))
    optimizer.zero_grad()
    age.pow(2).mean().backward()
    optimizer.step()
```

## Good example

```python
import torch
from torch.distributed import HashStore, init_process_group

init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
net = torch.nn.ModuleDict({"age": torch.nn.Linear(4, 1), "kind": torch.nn.Linear(4, 3)})
net.forward = lambda x: (net["age"](x), net["kind"](x))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    age, kind = model(torch.randn(8, 4))
    optimizer.zero_grad()
    (age.pow(2).mean() + kind.pow(2).mean()).backward()
    optimizer.step()
```

## What to do

- Use the output, or leave out what computes it.
- Freeze or remove parameters that are not to be trained *before* the module is wrapped.
- Where it differs from step to step which are used: `find_unused_parameters=True`, which walks the
  graph in each step. Where it is always the same ones: `static_graph=True`.
- A branch that differs between ranks: take the same one in all, or use both, as in
  `y = small(x) + 0 * large(x)`.

## What it costs

Nothing: the call's graph is walked in any case. Nothing is sent to other ranks, and no hook is put
on a parameter.

## Known limits

It is said at a step, as another backward call may still give the gradients before; so the last
step of a program has it too, where no `forward()` follows that raises. Without an optimizer, and
with `find_unused_parameters=True`, it is said once the forward has raised and the program ends with
that: the parameters are named then as well, and the calls, if they were looked at. Which parameters
a reducer knows is read from the module; where some were frozen before it was wrapped and others
after, only their index is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from gradscope.formatting import counted
from gradscope.model import BackwardCall, Certainty, Finding, Fix, FixKind, Related, Severity, Site
from gradscope.rules.base import called, on_rank, rule, share, told

RULE = rule(__doc__, "GS603", "reduction-not-finished", Severity.ERROR, Certainty.PREDICTED)

ERROR = "have finished reduction in the prior iteration"
"""How torch words it (torch/csrc/distributed/c10d/reducer.cpp)."""


class Unfinished(NamedTuple):
    """Parameters, ``names``, that ``calls`` gave no gradient, unlike the ``others``.

    ``frozen`` are those that require none any more. ``step`` is the optimizer's, ``after`` the
    number of the last backward call, ``raised`` the line where the forward has raised. The options
    of the module are ``is_static`` and ``is_dynamic`` (``find_unused_parameters=True``). ``rank``
    is that of the process, among how many.
    """

    names: tuple[str, ...]
    others: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    calls: tuple[BackwardCall, ...] = ()
    step: Site | None = None
    after: int = 0
    raised: Site | None = None
    is_static: bool = False
    is_dynamic: bool = False
    rank: tuple[int, int] | None = None


def indices_in(error: str) -> list[int]:
    """Return the indices of the parameters that the error names."""
    said = re.search(r"did not receive grad for rank \d+: ([\d ]+)", error)
    return [] if said is None else [int(each) for each in said[1].split()]


def finding(facts: Unfinished) -> Finding:
    """Return the finding."""
    part = share(len(facts.names), len(facts.names) + len(facts.others))
    part = part if facts.others else counted(len(facts.names), "parameter")
    named = told(facts.names, facts.others)
    if facts.raised is None:
        message = f"a step on gradients that are not averaged: {part} got none"
        label = f"{named} got no gradient: the next forward() will raise"
    else:
        message = f"no gradient came to {part} in the iteration before"
        label = f"the reducer still waits for {named}"
    return RULE.finding(
        message + on_rank(facts.rank),
        site=facts.raised or facts.step,
        after=facts.after,
        label=label,
        related=_notes(facts),
        fixes=_fixes(facts),
        certainty=None if facts.raised is None else Certainty.OBSERVED,
        # What a step has announced, and then was raised, is one finding.
        count=0 if facts.raised is not None and facts.step is not None else 1,
        parameters=facts.names,
        step=facts.step,
    )


def _notes(facts: Unfinished) -> Iterator[Related]:
    for call in facts.calls[:3]:
        yield Related("linked_by", call.site, f"{called(call)} gave gradients to the others")
    if facts.raised is not None and facts.step is not None:
        yield Related("linked_by", facts.step, "an optimizer has stepped, on what is not averaged")
    if facts.frozen:
        which = told(facts.frozen, (*facts.names, *facts.others))
        yield Related("made", None, f"frozen after it was wrapped: {which}")


def _fixes(facts: Unfinished) -> Iterator[Fix]:
    if facts.frozen:
        yield Fix(FixKind.REORDER, "freeze parameters before the module is wrapped")
    if facts.is_static:
        yield Fix(FixKind.OTHER, "leave static_graph=True out: the iterations differ")
    elif not facts.frozen:
        yield Fix(FixKind.ATTACH, "use all outputs of forward() in the loss")
        if not facts.is_dynamic:
            option = "find_unused_parameters=True"
            message = f"DistributedDataParallel(..., {option}), if some stay unused"
            yield Fix(FixKind.ALLOW_UNUSED, message)
