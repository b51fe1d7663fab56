"""A tensor that has a graph is to be copied, or to be sent to another process.

## What it says

`copy.deepcopy`, or what sends objects to another process (a queue, the arguments and results of a
pool, `mp.spawn`), has come to a tensor that was computed and requires grad. Its graph can neither
be copied nor leave the process, so torch refuses: `Only Tensors created explicitly by the user
(graph leaves) support the deepcopy protocol`, or `Cowardly refusing to serialize non-leaf tensor
which requires_grad`. gradscope names the tensor by the way that leads to it
(`model.decoder.cache[2]`), the line that stored it there, and the line where its graph was made.

## Why it happens

Something on the way to what is copied keeps a result with its graph: a module that stores an output
or a state as an attribute (a hook that keeps features, a cache, `self.hidden = h`), a buffer of
rollouts, a dictionary with a loss in it. Parameters and buffers are leaves, and are copied.
`torch.nn.utils.weight_norm`, the old one, keeps each weight as such a result.

## Bad example

```python
import torch
import copy

model = torch.nn.Linear(4, 4)
model.last = model(torch.randn(2, 4))
model.last.sum().backward()
average = copy.deepcopy(model)
```

## Good example

```python
import torch
import copy

model = torch.nn.Linear(4, 4)
out = model(torch.randn(2, 4))
model.last = out.detach()
out.sum().backward()
average = copy.deepcopy(model)
```

## What to do

- Store the value without its graph, `out.detach()`, at the line that the finding names; or take it
  out before the copy (`model.last = None`).
- Send values: `loss.item()`, `state.detach()`. A graph never crosses to another process; run the
  backward call where it was made, and send gradients.
- To copy a model, make a new one and `load_state_dict(model.state_dict())`: that leaves out what is
  neither a parameter nor a buffer.
- `torch.nn.utils.parametrizations.weight_norm` and `spectral_norm` keep no such result.

## What it costs

Nothing: a tensor that is sent is asked whether it requires grad; a copy is looked at once it has
failed.

## Known limits

`torch.save`, `pickle` and `share_memory_()` take such a tensor: what is read back is a leaf without
a graph. Nothing is raised there, and nothing is found. What is sent is announced before torch
refuses it; of a copy it is said when the error ends the program or leaves the `with` block of the
watch. A queue's own thread prints that error, and the program goes on without the object: the
finding is then at the line that sends, if the code has only one that can be meant. What a worker
sends back is told of in the worker, where it is watched.
"""

from __future__ import annotations

from typing import NamedTuple

from gradscope.model import Certainty, Finding, Fix, FixKind, Related, Severity, Site
from gradscope.rules.base import rule

RULE = rule(__doc__, "GS604", "attached-tensor-crosses", Severity.ERROR, Certainty.OBSERVED)

REFUSES_TO_SEND = "Cowardly refusing to serialize non-leaf tensor"
CROSSES = ("Only Tensors created explicitly by the user", REFUSES_TO_SEND)
"""How torch words it."""


class Crossing(NamedTuple):
    """A tensor with a graph that is copied, or ``sent`` to another process, at ``site``, the last
    backward call being ``after``.

    ``name`` is the path that leads to it, empty if none is known; ``label`` says what it is
    (``f32[4, 8]``). A line has ``stored`` it there, unless a function of torch's keeps it, ``by``
    its name; its graph was ``made`` at another. ``is_module``: what is copied is a module.
    """

    sent: bool
    site: Site | None
    name: str
    label: str
    stored: Site | None = None
    made: Site | None = None
    by: str = ""
    is_module: bool = False
    after: int = 0


def _line(site: Site | None) -> tuple[str, int] | None:
    return None if site is None else (site.file, site.line)


def finding(facts: Crossing) -> Finding:
    """Return the finding."""
    what = f"`{facts.name}`" if facts.name else f"a tensor ({facts.label})"
    verb, to = ("sent", "send") if facts.sent else ("copied", "copy")
    kept = f"{facts.by} keeps {what}, and computes it anew each time"
    site, stored = facts.site or facts.made, None if facts.by else facts.stored
    told = {_line(site), None}
    related = [Related("held_by", None, kept)] if facts.by else []
    for role, where, said in (
        ("held_by", stored, f"{what} was stored here"),
        ("created", facts.made, "its graph was made here"),
    ):
        if _line(where) not in told:
            told.add(_line(where))
            related.append(Related(role, where, said))
    if facts.by:
        module, _, name = facts.by.rpartition(".")
        fixes = [Fix(FixKind.OTHER, f"use {module}.parametrizations.{name}: it keeps no result")]
    elif facts.sent:
        number = " or as a number (`.item()`)" if facts.label.endswith("[]") else ""
        it = what if facts.name else "it"
        fixes = [Fix(FixKind.DETACH, f"send {it} without its graph (`.detach()`){number}")]
    else:
        fixes = [Fix(FixKind.DETACH, f"store {what} without its graph (`.detach()`)")]
        state = "copy only parameters and buffers: load_state_dict(….state_dict()) in a new module"
        fixes += [Fix(FixKind.OTHER, state)] if facts.is_module else []
    whither = " to another process" if facts.sent else ""
    return RULE.finding(
        f"{what} has a graph and cannot be {verb}{whither}",
        site=site,
        after=facts.after,
        label=f"torch refuses to {to} {facts.label} with a graph",
        related=related,
        fixes=fixes,
        certainty=Certainty.CERTAIN if facts.sent else None,
    )
