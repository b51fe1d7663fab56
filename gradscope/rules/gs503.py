"""Parameters get gradients, no optimizer that steps holds them, and they never change.

## What it says

Backward calls computed gradients of parameters in every step, and nothing used them: no optimizer
that has stepped holds these parameters, and their values are what they were at the beginning. Or an
optimizer holds them, and at each of its steps the gradients had been reset already.

## Why it happens

An optimizer holds the tensors that it was given. A layer that is put in the place of another one
after that (a new head for a pretrained model), a copy of the model (`copy.deepcopy`, `prepare()`),
a list of modules that is no `nn.ModuleList`, or a group of parameters that was left out, are not
among them. Or a `zero_grad()` stands between `backward()` and `step()`: each step then finds no
gradient, or zeros, and trains nothing.

## Bad example

```python
import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model[1] = torch.nn.Linear(8, 5)
for _ in range(4):
    loss = model(torch.randn(16, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
```

## Good example

```python
import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
model[1] = torch.nn.Linear(8, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    loss = model(torch.randn(16, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
```

## What to do

- Build the optimizer, and the scheduler, after the last layer is in its place.
- `optimizer.add_param_group({"params": …})` for what came later.
- Keep modules in a `nn.ModuleList` or `nn.ModuleDict`, so that `parameters()` has theirs.
- `optimizer.zero_grad()` belongs before `backward()` or after `step()`, never between the two.
- What is not to be trained: `requires_grad_(False)` spares its gradients.

## What it costs

Gradients that nobody uses take as much memory as the parameters, and their part of the backward
pass.

## Known limits

It is said when the watch ends, of parameters that at least three calls have reached, each of which
reached one that an optimizer steps as well, or whose optimizer steps parameters that no gradient
reaches. On the CPU some of their values are compared, so an update through `.data` counts as use;
elsewhere only a replaced layer or a copy is named. Where the optimizer was given other submodules
only, it is advice, unless a group of it is empty, as an iterator gives its parameters just once;
nothing is said where it holds no parameter of a module (an attack, a style transfer). Reading a
gradient leaves no trace: a program that reads these may suppress it.

Gradients that are reset too early are said of an optimizer of which no step ever used one. Zeros
are read on the CPU alone; elsewhere `zero_grad(set_to_none=False)` is not seen.
"""

from __future__ import annotations

from typing import NamedTuple

from gradscope.formatting import counted, nbytes
from gradscope.model import Certainty, Finding, Fix, FixKind, Related, Severity, Site
from gradscope.rules.base import rule, told

RULE = rule(__doc__, "GS503", "gradient-never-used", Severity.WARNING, Certainty.OBSERVED)


class NeverUsed(NamedTuple):
    """Parameters, ``names``, that calls have reached in all ``steps`` of an optimizer, and that
    never changed; ``others`` are those that one holds.

    ``instead``: the optimizer holds so many parameters that no gradient reaches, which have the
    same sizes, or are in no module of the program any more. ``is_listed``: their modules are in a
    list that is not an ``nn.ModuleList``.
    ``is_beside``: it was given other submodules only; ``is_emptied``: with a group that holds
    nothing. ``nbytes`` are those of their gradients.
    ``is_held``: it holds them, and at each step their gradients had been reset, by the line
    ``reset`` if that is known.
    """

    names: tuple[str, ...]
    others: tuple[str, ...]
    steps: int
    optimizer: str | None
    step: Site | None
    after: int = 0
    instead: int = 0
    is_listed: bool = False
    is_beside: bool = False
    is_emptied: bool = False
    nbytes: int = 0
    is_held: bool = False
    reset: Site | None = None


def finding(facts: NeverUsed) -> Finding:
    """Return the finding, as far as the calls and steps show it."""
    parameters = counted(len(facts.names), "parameter")
    who = f"`{facts.optimizer}`" if facts.optimizer else "the optimizer"
    named = told(facts.names, facts.others)
    notes, label = [], f"does not hold {named}"
    if facts.is_held:
        label = f"has found those of {named} reset each time"
    if facts.reset is not None:
        label = f"resets the gradients before {who} steps"
        notes.append(Related("made", facts.step, f"{who} steps here, and finds no gradient"))
    if facts.instead:
        it = f"{who} holds {counted(facts.instead, 'parameter')} that no gradient reaches"
        before = "it was probably built before these were made, or copied"
        notes.append(Related("made", None, f"{it}: {before}"))
    if facts.is_emptied:
        said = "a group of it holds nothing: what gave its parameters had been read to its end"
        notes.append(Related("emptied", None, said))
    return RULE.finding(
        f"in {counted(facts.steps, 'step')}, nothing used the gradients of {parameters}",
        site=facts.reset or facts.step,
        after=facts.after,
        label=label,
        related=notes,
        bytes=facts.nbytes,
        fixes=(_fix(facts, who),),
        severity=Severity.ADVICE if facts.is_beside and not facts.is_emptied else None,
        parameters=facts.names,
        step=facts.step,
    )


def _fix(facts: NeverUsed, who: str) -> Fix:
    if facts.is_held:
        return Fix(FixKind.REORDER, f"reset them after {who} has stepped, or before backward")
    if facts.is_emptied:
        return Fix(FixKind.OTHER, f"give {who} a list: an iterator gives the parameters once")
    if facts.is_beside:
        spares = f"spares their gradients ({nbytes(facts.nbytes)}) and their part of backward"
        freeze = f"if they are not to be trained, requires_grad_(False) {spares}"
        return Fix(FixKind.OTHER, f"{freeze}; else give them to {who}")
    if facts.is_listed:
        keep = "keep their modules in an nn.ModuleList or nn.ModuleDict"
        return Fix(FixKind.OTHER, f"{keep}, so that parameters() gives them to {who}")
    if facts.instead:
        return Fix(FixKind.REORDER, f"build {who} from the parameters that the forward pass uses")
    return Fix(FixKind.OTHER, f"give them to {who}, which must see them when it is built")
