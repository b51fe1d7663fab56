"""A compiled graph is to be kept, and its buffers were already given away to its backward.

## What it says

A backward call asks for `retain_graph=True` or `create_graph=True`, and it will run a graph that
`torch.compile` made (one `CompiledFunctionBackward` node) whose backward was compiled to reuse the
memory of the tensors it saved. The engine raises `This backward function was compiled with
non-empty donated buffers`, half way through the backward. gradscope says so before it starts.

## Why it happens

Tensors that only the compiled backward can see are *donated*: the backward may overwrite them,
which saves memory. That is decided when the backward is first compiled, by a plain `backward()`.
From then on the graph can be run only once, and must not be kept.

## Bad example

```python
import torch

@torch.compile(backend="aot_eager")
def forward(x, weight):
    return (torch.sin(x @ weight) ** 2).mean()

weight = torch.randn(4, 4, requires_grad=True)
forward(torch.randn(2, 4), weight).backward()
forward(torch.randn(2, 4), weight).backward(retain_graph=True)
```

## Good example

```python
import torch
import torch._functorch.config

torch._functorch.config.donated_buffer = False

@torch.compile(backend="aot_eager")
def forward(x, weight):
    return (torch.sin(x @ weight) ** 2).mean()

weight = torch.randn(4, 4, requires_grad=True)
forward(torch.randn(2, 4), weight).backward()
forward(torch.randn(2, 4), weight).backward(retain_graph=True)
```

## What to do

- If the graph is not run again, leave `retain_graph=True` out.
- If two losses share it, add them and call backward once.
- If it must be kept, set `torch._functorch.config.donated_buffer = False` before the compiled
  function is first called.
- If you need `create_graph=True`, call the function without `torch.compile`: a compiled graph has
  no second derivative.

## What it costs

Without donated buffers the compiled backward allocates memory where it could have reused
what was saved: at most the bytes that the compiled graph saved. Leaving `retain_graph=True` out
costs nothing.

## Known limits

torch does this only when the backward was first compiled by a plain call. If the first backward of
a compiled function retains its graph, nothing is donated and there is nothing to say, so the same
code may have worked yesterday.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.formatting import counted, listed, nbytes
from gradscope.model.calls import BackwardCall
from gradscope.model.finding import Certainty, Finding, Fix, FixKind, Related, Severity
from gradscope.model.graph import Node, activation_bytes
from gradscope.rules.base import rule

RULE = rule(
    __doc__, "GS104", "compiled-graph-cannot-be-retained", Severity.ERROR, Certainty.CERTAIN
)


SETTING = "torch._functorch.config.donated_buffer"
"""Whether compiled code may give the memory of what it saved to its backward."""


def finding(call: BackwardCall, nodes: tuple[Node, ...]) -> Finding:
    """Return the finding for a call that is to keep a graph whose compiled ``nodes`` have donated
    buffers; they begin with the one the engine will stop at.
    """
    saved = tuple(s for node in nodes for s in node.saved)
    flag = "create_graph=True" if call.create_graph else "retain_graph=True"
    calls = dict.fromkeys(node.site for node in nodes if node.site is not None)
    here = f"the compiled graph was built here: {listed(node.name for node in nodes)}"
    keep = f"asks to keep {counted(len(nodes), 'compiled node')}"
    return RULE.finding(
        f"{flag} on a compiled graph with donated buffers",
        call,
        label=f"{keep} whose buffers its backward overwrites",
        related=[Related("created", site, here) for site in calls],
        nodes=nodes,
        saved=saved,
        fixes=_fixes(call, activation_bytes(saved)),
    )


def _fixes(call: BackwardCall, keeps: int) -> Iterator[Fix]:
    """Keep the graph without donating, build it anew, or do without the compiler where a second
    derivative is wanted.
    """
    if call.create_graph:
        reason = "a compiled graph has no second derivative"
        yield Fix(FixKind.EAGER, f"call the function without torch.compile here: {reason}")
        return
    price = f" (costs up to {nbytes(keeps)})" if keeps else ""
    off = f"set {SETTING} = False before the compiled function is first called{price}"
    yield Fix(FixKind.DONATED_BUFFER_OFF, f"remove retain_graph=True, or {off}")
    again = "call the compiled function again for the later backward call instead of retaining this"
    yield Fix(FixKind.RECOMPUTE, f"{again} graph", effects=("it runs twice",))
