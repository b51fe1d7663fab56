"""A backward call starts from a tensor that has no graph.

## What it says

`backward()` or `autograd.grad()` is about to start from a tensor that does not require grad: no
graph leads from it to any parameter. The engine raises `RuntimeError: element 0 of tensors does not
require grad and does not have a grad_fn`. gradscope says so before the engine starts, names the
tensor and the line that computed it, and says what is known of it: that it holds integers, or was
made in inference mode.

## Why it happens

A result requires grad if one of the tensors that it was computed from does, grad mode is on, and
the operation has a derivative. So the graph is missing, or the way from the parameters to the loss
was cut, where

- the forward pass ran under `torch.no_grad()`, `torch.inference_mode()` or after
  `torch.set_grad_enabled(False)`, often in a helper that was written to evaluate;
- an operation gives integers or booleans: `argmax`, `round` to integers, a comparison;
- numbers left torch and came back: `.item()`, `.tolist()`, `.numpy()`, then `torch.tensor(…)`;
- `.detach()` or `.data` was taken of what the loss is made of;
- all parameters that lead there are frozen (`requires_grad_(False)`);
- a reentrant checkpoint got inputs none of which requires grad.

## Bad example

```python
import torch

model = torch.nn.Linear(4, 3)
logits = model(torch.randn(8, 4))
wrong = (logits.argmax(dim=1) != torch.randint(3, (8,))).float()
loss = wrong.mean()
loss.backward()
```

## Good example

```python
import torch

model = torch.nn.Linear(4, 3)
logits = model(torch.randn(8, 4))
loss = torch.nn.functional.cross_entropy(logits, torch.randint(3, (8,)))
loss.backward()
```

## What to do

- Train on a loss that has a derivative; report the error rate beside it.
- Compute what is trained outside of `no_grad` and `inference_mode`, or let the mode follow the
  model: `with torch.set_grad_enabled(model.training):`.
- Keep tensors as tensors: `torch.stack(losses).mean()`, not `torch.tensor([l.item() for l in …])`.
- If all is frozen on purpose, leave the backward call out; if by accident, `requires_grad_(True)`
  at the parameters.
- `checkpoint(..., use_reentrant=False)`.

`loss.requires_grad_(True)` silences the error and trains nothing: the loss is then a leaf of its
own, with no parameter behind it.

## What it costs

Nothing: the look asks each tensor that a call starts from for its `requires_grad`.

## Known limits

In the run itself it is not known where the way was cut: `gradscope why SCRIPT --line N` reruns the
program and says so. `grad can be implicitly created only for scalar outputs` is another error,
which torch raises before any of this.
"""

from __future__ import annotations

from typing import NamedTuple

from gradscope.formatting import listed, short_path
from gradscope.model import BackwardCall, Certainty, Finding, Fix, FixKind, Related, Severity, Site
from gradscope.rules.base import head, is_grad, rule

RULE = rule(__doc__, "GS501", "backward-without-graph", Severity.ERROR, Certainty.CERTAIN)


class Bare(NamedTuple):
    """A tensor without a graph that a call starts from: its ``name``, the line that bound it,
    and its ``label`` (``f32[]``). ``is_inference``: it was made in inference mode;
    ``is_discrete``: it holds integers or booleans.
    """

    name: str | None
    label: str
    made: Site | None = None
    is_inference: bool = False
    is_discrete: bool = False


class NoGraph(NamedTuple):
    """What is known when ``call`` is about to start from tensors without a graph, ``bare``, the
    first of which the engine will stop at. ``roots`` counts all that it starts from. ``script`` is
    the program that runs, if it is one that can be rerun.
    """

    call: BackwardCall
    bare: tuple[Bare, ...]
    roots: int = 1
    script: str = ""


def finding(facts: NoGraph) -> Finding:
    """Return the finding, as far as the call itself shows it."""
    first = facts.bare[0]
    names = [f"`{each.name}`" if each.name else each.label for each in facts.bare]
    does = "does" if len(names) == 1 else "do"
    of = f" of the {facts.roots} roots" if 1 < facts.roots > len(names) else ""
    what = listed(names) if first.name or len(names) > 1 else f"a tensor ({first.label})"
    has = "which has" if len(names) == 1 else "which have"
    return RULE.finding(
        f"{'autograd.grad' if is_grad(facts.call) else 'backward'} from {what}, {has} no graph",
        facts.call,
        site=head(facts.call, first.made),
        label=f"{what}{of} {does} not require grad: the engine will raise",
        related=tuple(
            Related("made", each.made, _made(each)) for each in facts.bare if _says(each)
        ),
        fixes=(Fix(FixKind.OTHER, where(facts.call.site, facts.script)),),
    )


def where(site: Site | None, script: str) -> str:
    """Return how to find out what a call's graph is missing."""
    if site is None or not script:
        say = "print requires_grad of the tensors on the way to it"
        return f"{say}: the first that says False is the place"
    line = f"{site.line}" if site.file == script else f"{short_path(site.file)}:{site.line}"
    return f"to see where it was lost: gradscope why {short_path(script)} --line {line}"


def _says(bare: Bare) -> bool:
    return bare.made is not None or bare.is_inference or bare.is_discrete


def _made(bare: Bare) -> str:
    what = f"`{bare.name}`" if bare.name else "it"
    if bare.is_inference:
        return f"{what} was made in inference mode"
    if bare.is_discrete:
        return f"{what} is {bare.label}, and only floating-point and complex numbers have gradients"
    return f"{what} was made here"
