"""A backward call needs a saved tensor that was modified in place after it was saved.

## What it says

The backward call that is about to start will run a node whose saved tensor is no longer what it was
in the forward pass: its version counter has moved on. The engine raises `RuntimeError: one of the
variables needed for gradient computation has been modified by an inplace operation`. gradscope says
so before the engine starts, so no `.grad` has been touched yet, and names the line that saved the
tensor, the line that changed it, and the parameter if it was an optimizer's step.

## Why it happens

A node keeps the tensors that its derivative needs, not copies of them. `relu` keeps its output, a
matrix product keeps the weight. An in-place operation (`+=`, `x[...] = y`, `masked_fill_`), or
`optimizer.step()`, which changes all parameters in place, then changes what the node holds. The
gradient would be wrong, so the engine refuses.

## Bad example

```python
import torch

weight = torch.randn(4, requires_grad=True)
y = torch.sigmoid(weight * 2)
y += 1
y.sum().backward()
```

## Good example

```python
import torch

weight = torch.randn(4, requires_grad=True)
y = torch.sigmoid(weight * 2)
y = y + 1
y.sum().backward()
```

## What to do

- An in-place operation on an output: write it out of place (`y = y + 1`, `masked_fill`), or change
  a `clone()`.
- A buffer or queue that is written while a graph needs it: write after the backward, or let the
  forward pass read a `clone()`.
- An optimizer's step between the forward and the backward: call backward first, or compute the loss
  after the step.

`p.data -= …` only hides the error: the version counter does not see it, and the gradient is
silently wrong.

## What it costs

An out-of-place operation or a `clone()` costs one more tensor of that size until the graph goes.
Calling things in another order costs nothing; computing the loss after the step costs one more
forward pass.

## Known limits

The line of an in-place operation is exact where gradscope saw the version change; where it did not,
the finding names the two lines between which it happened. Changes through `.data`, through NumPy or
by another process move no version counter: neither torch nor this rule sees them. A change by a
hook or another thread while the call runs is reported afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from gradscope.formatting import counted
from gradscope.model.calls import BackwardCall
from gradscope.model.finding import Certainty, Finding, Fix, Related, Severity
from gradscope.model.graph import Node, SavedTensor, Site
from gradscope.rules.base import Situation, head, met, rule

RULE = rule(__doc__, "GS201", "saved-tensor-modified-in-place", Severity.ERROR, Certainty.CERTAIN)


class Modified(NamedTuple):
    """What changed a tensor: what runs between ``first``, where it was as saved, and ``last``;
    either may be unknown. Both are the line that did it, if that is known; ``by_step`` if that
    calls an optimizer's ``step``.
    """

    first: Site | None = None
    last: Site | None = None
    by_step: bool = False


class StaleTensor(NamedTuple):
    """What is known when ``call`` is about to run ``node``, whose ``saved`` tensor is at
    ``version_now``.

    ``saved.version`` is the version that the node needs, ``saved.source`` the qualified name if it
    is a parameter or buffer, and ``more`` counts further stale tensors of the call.
    ``is_older``: the step that changed it comes behind the call in one function, an iteration ago.
    """

    call: BackwardCall
    node: Node
    saved: SavedTensor
    version_now: int
    modified: Modified
    more: int = 0
    is_older: bool = False


def finding(facts: StaleTensor) -> Finding:
    """Return the finding."""
    saved = facts.saved
    subject = f"`{saved.source}`" if saved.source else f"`{saved.label}` of {facts.node.name}"
    more = f", and {counted(facts.more, 'more tensor')}" if facts.more else ""
    versions = f"at version {saved.version}, it is at version {facts.version_now}"
    return RULE.finding(
        "backward through a saved tensor that was modified in place",
        facts.call,
        site=head(facts.call, *_own(facts)),
        label=f"needs {subject} {versions}{more}",
        related=_related(facts),
        nodes=(facts.node,),
        saved=(saved,),
        fixes=(_fix(facts),),
    )


def finding_meanwhile(facts: StaleTensor) -> Finding:
    """Return the finding for a tensor that was as saved when ``call`` began."""
    found = finding(facts._replace(modified=Modified(), is_older=False))
    notes = [one for one in found.related if one.role != "modified_by"]
    who = "modified while this call ran: by a hook, or by another thread"
    message = "a saved tensor was modified in place while backward ran"
    related = (*notes, Related("modified_by", None, who))
    return replace(found, certainty=Certainty.OBSERVED, message=message, related=related)


def _own(facts: StaleTensor) -> Iterator[Site | None]:
    """Yield the user's lines that had a part in it, the one to blame first."""
    modified = facts.modified
    if modified.first == modified.last != facts.call.site and not modified.by_step:
        yield modified.last
    yield facts.node.site


def _related(facts: StaleTensor) -> Iterator[Related]:
    """Yield where it was saved, and where it was changed."""
    name = f"`{facts.saved.source or facts.saved.label}`"
    made = facts.node.site
    if made is not None:
        yield Related("created", made, f"{facts.node.name} saved {name} here")
    for site, message in _changes(facts.modified, name):
        yield Related("modified_by", site, message)


def _changes(modified: Modified, name: str) -> list[tuple[Site | None, str]]:
    first, last = modified.first, modified.last
    if modified.by_step:
        return [(first, f"the optimizer's step modified {name}")]
    if first is None and last is None:
        return [(None, f"{name} was modified in place, but gradscope did not see where")]
    if first == last:
        return [(last, "modified in place here")]
    after, before = "after this line", "at or before this line"
    return [(s, f"modified in place {w}") for s, w in ((first, after), (last, before)) if s]


def _fix(facts: StaleTensor) -> Fix:
    """Return what can be done in the first situation whose facts hold."""
    modified, here = facts.modified, facts.call.site
    made = facts.node.site
    situations = {
        Situation.CARRIED: facts.is_older,
        Situation.EARLY_STEP: modified.by_step,
        Situation.OVERWRITTEN: True,
    }
    write = modified.last if modified.first == modified.last else None
    return met(situations).fix(made=[made] if made else (), frees=here, runs=here, write=write)
