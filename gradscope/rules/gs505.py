"""Gradients are asked for of inputs that nothing reaches.

## What it says

`autograd.grad(outputs, inputs)` is about to run, and no graph leads from the outputs to some of the
inputs. The engine raises `The differentiated Tensor at index 6 appears to not have been used in the
graph` (before torch 2.12 without the index: `One of the differentiated Tensors appears to not have
been used in the graph`). gradscope says so before the engine starts, and which inputs they are, by
index and by name. An input that does not require grad is said as well: `One of the differentiated
Tensors does not require grad`.

## Why it happens

The output was not computed from that tensor: from a copy of it, a slice or a view that was made
later, or from what it was before it was made anew; or the way was cut in between. In a step of
meta-learning it is often a parameter that this loss does not use.

## Bad example

```python
import torch

model = torch.nn.ModuleDict({"mean": torch.nn.Linear(4, 1), "spread": torch.nn.Linear(4, 1)})
loss = model["mean"](torch.randn(8, 4)).pow(2).mean()
torch.autograd.grad(loss, list(model.parameters()))
```

## Good example

```python
import torch

model = torch.nn.ModuleDict({"mean": torch.nn.Linear(4, 1), "spread": torch.nn.Linear(4, 1)})
x = torch.randn(8, 4)
loss = (model["mean"](x).pow(2) / model["spread"](x).exp() + model["spread"](x)).mean()
torch.autograd.grad(loss, list(model.parameters()))
```

## What to do

- Use the tensor in what is differentiated: the very one that is asked for, and not a copy.
- Leave it out of the inputs.
- Where it may be unused, `allow_unused=True` gives None for it, which the program must then skip.
  With `materialize_grads=True` it gives zeros, and nothing shows that they mean nothing.

## What it costs

Nothing: the call's graph is walked in any case.

## Known limits

Inputs are compared with what the graph leads to. A function whose derivative is None hands on no
gradient, although its graph leads there: what the engine then raises is explained after it.
`backward(inputs=…)` raises nothing for such an input, and leaves its `.grad` alone.

With `materialize_grads=True` the engine raises nothing, and this is advice: where zeros that
`create_graph=True` made a part of the graph are met in a loss that is run backward, on the CPU, as
nothing is read from a device. Zeros that are only read or assigned are healthy.
"""

from __future__ import annotations

from typing import NamedTuple

from gradscope.formatting import counted, listed
from gradscope.model import BackwardCall, Certainty, Finding, Fix, FixKind, Related, Severity
from gradscope.rules.base import rule

RULE = rule(__doc__, "GS505", "differentiated-tensor-unused", Severity.ERROR, Certainty.CERTAIN)

_MOST_NAMED = 4  # inputs in a sentence, by their place: more are counted


class Input(NamedTuple):
    """One of the inputs of a call: its place among them, how the program writes it
    (``params['w']``), and the name of the parameter that it is, or else a label (``f32[8]``).
    """

    place: int
    written: str | None
    name: str | None
    label: str

    @property
    def text(self) -> str:
        """The input as a note says it."""
        return f"[{self.place}] is {self.written or self.name or f'a tensor ({self.label})'}"


class Unreached(NamedTuple):
    """What is known when ``call`` is about to ask for gradients of ``inputs`` that its ``outputs``
    were not computed from. ``needs_grad``: these do not require grad, whatever leads to them.
    ``led_to``: a graph leads to them, and the engine has raised nevertheless. ``loss``: it was
    asked to give zeros instead, and these are part of the loss of this call.
    """

    call: BackwardCall
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...] = ()
    of: int = 1
    needs_grad: bool = False
    led_to: bool = False
    loss: BackwardCall | None = None


def finding(facts: Unreached) -> Finding:
    """Return the finding, as far as the call itself shows it."""
    count, some = len(facts.inputs), facts.inputs[:_MOST_NAMED]
    one = count == 1
    it, is_, do = ("it", "is", "does") if one else ("them", "are", "do")
    inputs = f"{count:,} of {counted(facts.of, 'input')}" if facts.of > 1 else "an input"
    places = listed((f"[{each.place}]" for each in facts.inputs), _MOST_NAMED)
    if facts.needs_grad:
        message = f"gradients are asked for of {inputs} that {do} not require grad"
        label = f"{places} {do} not require grad: the engine will raise"
        before = f"call requires_grad_(True) on {it} before the outputs are computed"
        fixes = [Fix(FixKind.OTHER, f"{before}, or leave {it} out of the inputs")]
    elif facts.led_to:
        message = f"no gradient came to {inputs} that a graph leads to"
        label = f"no derivative gave a gradient to {places}"
        look = f"look for a backward() on the way to {it} that returns nothing for an argument"
        fixes = [Fix(FixKind.OTHER, f"{look}: it says that no output depends on that")]
    else:
        outputs = listed(f"`{name}`" for name in facts.outputs) or "the outputs"
        were = "was" if len(facts.outputs) == 1 else "were"
        message = f"gradients are asked for of {inputs} that {outputs} {were} not computed from"
        label = f"{places} {is_} unused: the engine will raise"
        use = f"use {it} in what is differentiated, or leave {it} out of the inputs"
        skip = "it gives None for what is unused, which the program must then skip"
        fixes = [Fix(FixKind.OTHER, use), Fix(FixKind.ALLOW_UNUSED, skip)]
    notes = []
    if facts.loss is not None:
        message = f"gradients of {inputs} are zeros: {outputs} {were} not computed from {it}"
        label = f"{places} {is_} unused: materialize_grads=True hides that"
        name = next((f"`{root.name}`" for root in facts.loss.roots if root.name), "what")
        notes = [Related("made", facts.loss.site, f"{name} is computed from these zeros")]
        fixes = [fixes[0], Fix(FixKind.OTHER, "leave materialize_grads out, so that torch says it")]
    more = f", and {count - len(some)} more" if count > len(some) else ""
    note = Related("made", None, ", ".join(each.text for each in some) + more)
    named = (each.name or each.written for each in facts.inputs)
    return RULE.finding(
        message,
        facts.call,
        label=label,
        related=(note, *notes),
        fixes=fixes,
        severity=Severity.ADVICE if facts.loss else None,
        certainty=Certainty.OBSERVED if facts.led_to or facts.loss else None,
        parameters=tuple(filter(None, named)),
    )
