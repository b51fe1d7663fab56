"""Every backward call goes back through the graphs of all iterations before it, and they grow.

## What it says

The graph of a backward call reaches nodes that were built before the previous call of the same
line, and it reaches further back each time. Something computed in one iteration (a hidden state, a
memory) is used in the next one with its whole history. gradscope names the variable that carries
the graph on and the line that stores it, and says how many nodes and how many saved bytes each
iteration adds.

## Why it happens

A tensor remembers how it was computed. A state that is carried on without `detach()` takes its
graph along. Without `retain_graph=True` the second backward call would raise (GS101); with it,
nothing is freed, so that every call walks all iterations so far: memory and time per iteration
grow, until the memory is gone.

If the parameters are changed through `.data`, the version counter does not see it. The old graphs
then compute with weights that are no longer those of their forward pass: the gradient is wrong, and
nothing raises.

## Bad example

```python
import torch

torch.manual_seed(0)
cell = torch.nn.RNNCell(3, 5)
h = torch.zeros(2, 5)
for step in range(10):
    h = cell(torch.randn(2, 3), h)
    h.pow(2).mean().backward(retain_graph=True)
```

## Good example

```python
import torch

torch.manual_seed(0)
cell = torch.nn.RNNCell(3, 5)
h = torch.zeros(2, 5)
for step in range(10):
    h = cell(torch.randn(2, 3), h.detach())
    h.pow(2).mean().backward()
```

## What to do

- `detach()` the state where one iteration hands it to the next, and drop `retain_graph=True`.
- To train through several steps, add up their losses, call backward once for all of them, then
  `detach()`.

`gradscope fix` shows the fix as an edit of your lines where a few of them do it, and tries it out.

## What it costs

`detach()` costs nothing. It changes what is trained: no gradient goes back beyond the iteration any
more.

## Known limits

It is announced when the carrier has grown at three looks, and what its graph reaches was trained
meanwhile: at the 4th, 6th and 8th iteration, or at the 24th where no optimizer steps (calls between
two steps count as one iteration); at the end, if the program ends before. A window of up to seven
iterations that are kept on purpose (truncated backpropagation through time) is no finding; a longer
one may be.
"""

from __future__ import annotations

from typing import NamedTuple

from gradscope.model import BackwardCall, Certainty, Finding, Fix, FixKind, Related, Severity, Site
from gradscope.model.variable_paths import Path
from gradscope.rules.base import Grown, head, place, rule

RULE = rule(
    __doc__, "GS301", "graph-carried-across-iterations", Severity.WARNING, Certainty.OBSERVED
)


class Carried(NamedTuple):
    """What is known when the graph of ``call`` goes back over earlier iterations by way of
    ``holder``, and has ``grown`` with each.

    ``stored`` is the line that stores the holder. ``silent``: parameters are changed through
    ``.data``. ``steps``: the calls are ``autograd.grad(create_graph=True)``, and none ever ran
    through the graph of an earlier one.
    """

    call: BackwardCall
    holder: Path
    stored: Site | None
    grown: Grown
    silent: bool = False
    steps: bool = False


def finding(facts: Carried) -> Finding:
    """Return the finding, with what can be done about it, in words."""
    message = "the graph is carried from one iteration into the next"
    if facts.silent:
        message += ", and through weights changed via .data: its gradients are wrong"
    name = f"`{facts.holder.text}`"
    related = [
        Related("held_by", facts.stored, f"{name} carries the graph on: {facts.grown}"),
        Related("linked_by", facts.stored, f"{name} is stored here"),
    ]
    if facts.silent:
        unseen = "no version counter tells that the saved weights are stale"
        note = f"parameters are changed through .data, so {unseen}"
        related.append(Related("modified_by", None, note))
    return RULE.finding(
        message,
        facts.call,
        site=head(facts.call, facts.stored),
        label=f"goes back over {facts.grown.span}",
        related=related,
        bytes=facts.grown.total,
        trend=facts.grown.trend,
        fixes=(Fix(FixKind.DETACH, _words(facts)),),
    )


def _words(facts: Carried) -> str:
    """Return what to do, and what it means."""
    where = f" where it is handed on ({place(facts.stored)})" if facts.stored else ""
    rest = " and drop retain_graph=True"
    if facts.steps:
        rest = ", and requires_grad_() what comes out; drop create_graph=True unless"
        rest += " a second derivative is taken"
    beyond = "gradients then stop at the start of the iteration"
    return f"detach() `{facts.holder.text}`{where}{rest}; {beyond}"
