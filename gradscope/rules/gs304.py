"""A reference cycle keeps the graph of every iteration alive, although no variable leads to it.

## What it says

More nodes are alive after each iteration and a cycle of references holds them: a tensor leads to
its graph, and the graph leads back to the tensor. gradscope names what closes the cycle and says
how many iterations it has seen.

## Why it happens

- A custom Function stores its output with `ctx.out = out`: the output holds its node, the node is
  the `ctx`. Python's collector finds such a cycle sooner or later, often too late.
- `backward(create_graph=True)` leaves each `p.grad` with a graph that leads back to `p`. No
  collector sees it.
- A hook on a tensor that uses the tensor itself, `t.register_hook(lambda g: g * t)`. No collector
  sees it either.

## Bad example

```python
import torch
import gc


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = x.exp()
        ctx.out = out
        return out

    @staticmethod
    def backward(ctx, g):
        return g * ctx.out


gc.disable()
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
for step in range(10):
    Square.apply(model(torch.randn(8, 4))).mean().backward()
```

## Good example

```python
import torch
import gc


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = x.exp()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * out


gc.disable()
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
for step in range(10):
    Square.apply(model(torch.randn(8, 4))).mean().backward()
```

## What to do

- In a custom Function: `ctx.save_for_backward(out)` for inputs and outputs; attributes of `ctx` for
  everything else.
- Instead of `backward(create_graph=True)`: `torch.autograd.grad(loss, params, create_graph=True)`,
  or set `p.grad = None` when you are done with it.
- In a hook: use the gradient that it is given, or `t.detach()`.

## What it costs

Nothing: the same tensors are saved, and they go when the graph goes.

## Known limits

It is looked for only after the number of living nodes has grown at three scans and no variable was
found that holds them. With Python's collector on, cycles through `ctx` may be collected often
enough to go unseen.
"""

from __future__ import annotations

from gradscope.formatting import counted
from gradscope.model import BackwardCall, Certainty, Finding, Fix, FixKind, Related, Severity, Site
from gradscope.rules.base import at, rule

RULE = rule(__doc__, "GS304", "reference-cycle-keeps-graph", Severity.WARNING, Certainty.OBSERVED)


def finding(
    call: BackwardCall, kind: str, name: str, site: Site | None, iterations: int, each: float
) -> Finding:
    """Return the finding for a cycle: ``kind`` is ``ctx``, ``hook`` or ``grad``, ``site`` the line
    that closed it. ``iterations`` were seen to add to it, ``each`` so many nodes.
    """
    site = site or call.site
    how = {
        "ctx": f"`{name}` is an output stored on the ctx of its Function",
        "hook": f"the hook `{name}` keeps the tensor that it is registered on",
        "grad": f"`{name}` has a graph that leads back to its parameter",
    }[kind]
    seen = f"{counted(iterations, 'iteration')} seen"
    fix = FixKind.DETACH if kind == "hook" else FixKind.OTHER
    return RULE.finding(
        "a reference cycle keeps the graphs of earlier iterations alive",
        call,
        site=site,
        label=f"{seen}, {counted(round(each), 'node')} more with each",
        related=(Related("held_by", site, how),),
        fixes=(Fix(fix, _words(kind, site)),),
    )


def _words(kind: str, site: Site | None) -> str:
    """Return what to do."""
    where = at(site)
    if kind == "ctx":
        instead = "instead of an attribute, and ctx.saved_tensors in backward"
        return f"use ctx.save_for_backward(){where} {instead}"
    if kind == "hook":
        return f"let the hook{where} use its arguments, or tensor.detach()"
    grad = f"use torch.autograd.grad(..., create_graph=True){where}"
    return f"{grad}, or set .grad = None when done with it"
