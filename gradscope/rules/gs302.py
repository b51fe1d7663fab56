"""A variable keeps the graphs of all iterations so far alive, and grows with each one.

## What it says

A total, a list, a dict or another holder still leads to the graphs of earlier iterations. gradscope
names the holder as you would type it and the line that stores into it. It keeps nodes and tensors
apart: a loss that is kept after its backward call keeps the nodes of its graph and a number, an
output that no backward call has gone through keeps everything that its graph has saved. What is
counted is all that is reached from the holder, each storage once: the tensors themselves, what is
saved, inputs that were made to require grad, and 512 bytes for a node (torch takes a little more).

## Why it happens

A tensor that requires grad holds the node that made it, and with it the whole graph.
`total += loss` makes the graph of the total one longer; `losses.append(loss)` keeps one graph for
each entry. In an evaluation loop without `torch.no_grad()` nothing ever frees what these graphs
have saved.

## Bad example

```python
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
total = 0
for step in range(10):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    total += loss
```

## Good example

```python
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
total = 0
for step in range(10):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    total += loss.item()
```

A holder that is emptied from time to time, such as a metric with a `reset()` for each epoch, keeps
the graphs of a whole epoch until then, and the memory must have room for them.

It is a *warning* where nothing in the code empties the holder, so that it grows as long as the
program runs. Of a holder that was seen to be emptied, or that has grown between backward calls and
not since the last one, it is a warning if it held more than what the graph of one backward call has
saved (and more than 1 MiB), else *advice*.

## What to do

- A number for a log or a total: `loss.item()`, or `loss.detach()` if the device should not be
  waited for, or where tensors are needed, as by `torch.stack(losses)`.
- Outputs, features or embeddings that are kept: `detach()` them where they are stored.
- Evaluation: run it under `torch.no_grad()` or `torch.inference_mode()`.
- A running average of weights or statistics: update it under `torch.no_grad()`.
- Exceptions that are kept: keep `str(error)`; a traceback keeps the variables of every function in
  it.

`gradscope fix` shows the fix as an edit of your lines where a few of them do it, and tries it out.

## What it costs

`.item()` waits for the device; `detach()` and `no_grad()` cost nothing and save memory. What is
detached is not trained through.

## Known limits

Holders are looked for at the 4th, 6th, 8th, 12th … iteration of a backward call, in the variables
of the user's functions that are running and in what they lead to, up to the first hundred entries
of a container. An iteration is what lies between two steps of optimizers. It is announced when the
same holder has grown three times, and a leaf that its graphs reach has been changed meanwhile: what
layers, searches and inner loops keep until the next step is no leak. Where no optimizer steps it
takes 24 calls; where nothing is trained, or what is trained is not in these graphs, it is said at
the end, and of `autograd.grad` only where what it has built has lived on all the time. Where of
most iterations a tensor lives that no variable leads to (in an array of objects, in C++), the
finding names the line that built it. A holder that the code empties is said to keep graphs if it
held those of 11 iterations or more, was seen to be emptied, and no later backward call has run any
of them: losses that are collected to be trained on are no leak. What it held at most is what the
last look before that has met. Without backward calls only what was computed apart counts: a
total of independent terms, or a container of independent outputs, and it is said at the end if no
later call has run it.
"""

from __future__ import annotations

from typing import NamedTuple

from gradscope.formatting import listed
from gradscope.model import BackwardCall, Certainty, Finding, Fix, FixKind, Related, Severity, Site
from gradscope.model.variable_paths import Path
from gradscope.rules.base import Grown, at, rule

RULE = rule(__doc__, "GS302", "graph-kept-alive", Severity.WARNING, Certainty.OBSERVED)


class KeptAlive(NamedTuple):
    """What is known of a holder: the line that stores into it, and how what it keeps has
    ``grown``. If no holder was found, it is the line that built what lives.

    ``call`` is None where no backward call goes through these graphs. ``is_scalar``: what is held
    are single numbers. ``after`` is the number of the last backward call. ``emptied``: the code
    empties it from time to time. The same line fills the ``others``, which hold less.
    """

    call: BackwardCall | None
    holder: Path | None
    stored: Site | None
    grown: Grown
    is_container: bool
    is_scalar: bool
    after: int = 0
    level: Severity = Severity.WARNING
    emptied: bool = False
    others: tuple[str, ...] = ()


def finding(facts: KeptAlive) -> Finding:
    """Return the finding, with what can be done about it, in words."""
    if facts.holder is None:
        message = "graphs of earlier iterations stay alive, and who holds them was not found"
        note = Related("created", facts.stored, f"what lives was built here: {facts.grown}")
    else:
        until = " until it is emptied" * facts.emptied
        message = f"`{facts.holder.text}` keeps the graphs of earlier iterations alive{until}"
        held = f"`{facts.holder.text}` {'held' if facts.emptied else 'holds'} {facts.grown}"
        if facts.others:
            held += f"; this line fills {listed(f'`{each}`' for each in facts.others)}, too"
        note = Related("held_by", facts.stored, held)
    return RULE.finding(
        message,
        facts.call,
        site=facts.stored,
        after=facts.after,
        label=f"keeps graphs of {facts.grown.span}, {facts.grown.kept}",
        related=(note,),
        bytes=facts.grown.total,
        trend=facts.grown.trend,
        fixes=(Fix(*_fix(facts)),),
        severity=facts.level,
    )


def _fix(facts: KeptAlive) -> tuple[FixKind, str]:
    """Return what to store instead."""
    if facts.holder is None:
        what = ".item() or .detach() of it" if facts.is_scalar else ".detach() of it"
        seek = "an array of objects, an iterator or C++ may hold it, which Python cannot look into"
        return FixKind.OTHER, f"store {what}{at(facts.stored)} wherever it is kept: {seek}"
    where, holder = at(facts.stored), f"`{facts.holder.text}`"
    part = facts.holder.beyond_attribute  # of an object, which cannot be detached itself
    it, what = "it", "what"
    if part:  # others of its tensors may have graphs, too
        it, what = f"its tensors (`{part}`)", f"the tensors (`{part}`) of what"
    untrained = "no gradient then flows through it"
    if facts.holder.through_traceback:
        keep = f"keep str(error) instead of the exception{where}"
        return FixKind.OTHER, f"{keep}: its traceback keeps the variables"
    if facts.call is None and not facts.is_container:
        run = "run this loop under torch.no_grad(), or add up numbers (.item())"
        return FixKind.NO_GRAD, f"{run}; {untrained}"
    if facts.holder.steps and facts.holder.steps[-1].kind == "hook":
        once = f"register the hook once, or remove() what registering it gave{where}"
        return FixKind.OTHER, f"{once}: each keeps the variables that it closes over"
    if facts.is_scalar:
        # What is read from a container may have to be tensors: torch.stack(losses).
        ways = [".item()", ".detach()"][:: -1 if facts.is_container else 1]
        store = f"store {' or '.join(ways)} of {it}{where}"
        return FixKind.ITEM, f"{store}; the value is the same, and the graph is released"
    if facts.is_container:
        return FixKind.DETACH, f"detach() {what} is stored in {holder}{where}; {untrained}"
    update = f"update {holder}{where} under torch.no_grad(), or detach() {it}"
    return FixKind.NO_GRAD, f"{update}; {untrained}"
