"""DistributedDataParallel is given the gradient of a parameter twice in one iteration.

## What it says

A backward call is about to give a gradient to a parameter of a `DistributedDataParallel` that has
had one since the last `forward()`, and other parameters have had none yet. The reducer averages a
gradient over the ranks as soon as it is there, so it takes each once, and raises `Expected to mark
a variable ready only once`. gradscope says so before the engine starts: which parameters, and
which two backward calls give them a gradient.

## Why it happens

- A reentrant checkpoint (`use_reentrant=True`) makes a backward call of its own within the first.
  Where two of them use one block, or one uses a parameter that is also used outside of it, each
  call gives its own gradient.
- Two backward calls follow one `forward()`, or two of them, and neither reaches all parameters: two
  losses with a head each, or a penalty on some weights that is run backward by itself. Where the
  first call does reach all, the reduction is finished, and what the second adds is *not averaged*:
  torch raises nothing then.
- With `find_unused_parameters=True` the reducer looks at what the outputs of `forward()` lead to,
  and counts the gradients of all else as there. If a parameter is used outside of `forward()`, or
  in a reentrant checkpoint, one comes nevertheless.

## Bad example

```python
import torch
from torch.distributed import HashStore, init_process_group

init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
net = torch.nn.ModuleDict({"age": torch.nn.Linear(4, 1), "kind": torch.nn.Linear(4, 3)})
net.register_parameter("scale", torch.nn.Parameter(torch.ones(1)))
net.forward = lambda x: (net["age"](x) * net.scale, net["kind"](x) * net.scale)
model = torch.nn.parallel.DistributedDataParallel(net)
age, kind = model(torch.randn(8, 4))
age.pow(2).mean().backward()
kind.pow(2).mean().backward()
```

## Good example

```python
import torch
from torch.distributed import HashStore, init_process_group

init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
net = torch.nn.ModuleDict({"age": torch.nn.Linear(4, 1), "kind": torch.nn.Linear(4, 3)})
net.register_parameter("scale", torch.nn.Parameter(torch.ones(1)))
net.forward = lambda x: (net["age"](x) * net.scale, net["kind"](x) * net.scale)
model = torch.nn.parallel.DistributedDataParallel(net)
age, kind = model(torch.randn(8, 4))
(age.pow(2).mean() + kind.pow(2).mean()).backward()
```

## What to do

- Of a checkpoint: `checkpoint(..., use_reentrant=False)`. `static_graph=True` allows reentrant ones
  too, if the graph is the same in each iteration.
- Add the losses and call `backward()` once.
- Move what uses the parameter into `forward()` of the module that is wrapped.
- Leave `find_unused_parameters` out where each call reaches every parameter.

## What it costs

Nothing: the call's graph is walked in any case. Nothing is sent to other ranks, and no hook is put
on a parameter.

## Known limits

What marks a parameter is told by the graphs of the calls, and whether the reducer listens by the
times of the marks that torch keeps. After calls of which only the shape is looked at, that is known
only where each call before has reached all parameters by itself; and with `find_unused_parameters`
only of outputs that are tensors, or are in tuples, lists and dicts. In other cases the error is
explained after it was raised: then the parameter is named, and not always the call before. Of a
`static_graph=True` nothing is said beforehand. Where a reentrant checkpoint is still
to run before the second gradient comes, this is predicted: it may finish the reduction, and then
that gradient is not averaged, and nothing is raised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from gradscope.model import BackwardCall, Certainty, Finding, Fix, FixKind, Related, Severity, Site
from gradscope.rules.base import called, on_rank, rule, told

RULE = rule(__doc__, "GS602", "parameter-marked-twice", Severity.ERROR, Certainty.CERTAIN)

ERROR = "mark a variable ready only once"
"""How torch words it (torch/csrc/distributed/c10d/reducer.cpp)."""

NOT_REENTRANT = Fix(
    FixKind.REORDER,
    "use checkpoint(..., use_reentrant=False): it makes no backward call of its own",
)


class MarkedTwice(NamedTuple):
    """Parameters, ``names``, that ``call`` marks again; ``others`` are those of the same reducer.

    ``first`` is the call that marks them first, if one does: those that are ``is_unused`` are
    marked as such. ``is_nested``: one of the calls is within another; ``checkpoints`` are where the
    nodes were built that make such calls. ``none_yet`` have had no gradient. ``is_likely``: a
    call of a checkpoint may finish the reduction before the second mark. ``is_raised``: the reducer
    has raised. ``rank`` is that of the process, among how many.
    """

    call: BackwardCall
    names: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    first: BackwardCall | None = None
    checkpoints: tuple[Site, ...] = ()
    none_yet: tuple[str, ...] = ()
    is_unused: bool = False
    is_nested: bool = False
    is_likely: bool = False
    is_raised: bool = False
    rank: tuple[int, int] | None = None


def index_in(error: str) -> int:
    """Return the index of the parameter that the error names."""
    said = re.search(r"Parameter at index (\d+)", error)
    return 0 if said is None else int(said[1])


def finding(facts: MarkedTwice) -> Finding:
    """Return the finding."""
    named = told(facts.names, facts.others) if facts.names else "a parameter"
    marked = "was marked" if facts.is_raised else "would be marked"
    raises = "it has raised" if facts.is_raised else "it will raise"
    certainty = Certainty.PREDICTED if facts.is_likely else None
    return RULE.finding(
        f"{named} {marked} as ready twice{on_rank(facts.rank)}",
        facts.call,
        label=f"the reducer takes one gradient of each in an iteration: {raises}",
        related=_notes(facts),
        fixes=_fixes(facts),
        certainty=Certainty.OBSERVED if facts.is_raised else certainty,
        parameters=facts.names,
    )


def _notes(facts: MarkedTwice) -> Iterator[Related]:
    own = called(facts.call)
    if facts.first is not None:
        is_within = facts.first.parent == facts.call.number
        within = " that is made within it" if is_within else ""
        yield Related(
            "linked_by",
            facts.first.site,
            f"first marked by {called(facts.first)}{within}, then by {own}",
        )
    elif facts.is_unused:
        why = "the outputs of the last forward() do not lead to it"
        yield Related("linked_by", None, f"first marked as unused: {why}")
    for site in facts.checkpoints:
        yield Related("created", site, "built here: a node that makes a backward call of its own")
    if facts.none_yet:
        short = told(facts.none_yet, (*facts.names, *facts.others))
        yield Related("made", None, f"the reduction is not finished: no gradient yet of {short}")


def _fixes(facts: MarkedTwice) -> Iterator[Fix]:
    if facts.is_nested:
        yield NOT_REENTRANT
    if facts.is_unused:
        yield Fix(FixKind.REORDER, "use the parameter in forward() alone, once for each backward()")
        yield Fix(FixKind.OTHER, "leave find_unused_parameters out, if all get gradients each time")
    elif not facts.is_nested:
        yield Fix(FixKind.SUM_LOSSES, "add the losses and call backward once")
        yield Fix(FixKind.REORDER, "have the first call reach no parameter that the second reaches")
    else:
        same = "if the graph is the same in each iteration"
        yield Fix(FixKind.OTHER, f"DistributedDataParallel(..., static_graph=True), {same}")
